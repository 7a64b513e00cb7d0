"""One word for each thing: the glossary's, and none of those that it has replaced."""

from __future__ import annotations

import re

import pytest

from tests.support.paths import REPOSITORY

OLD = (
    *(r"statements?", r"believed", r"resting", r"desks?", r"handovers?", r"walled", r"accounts?"),
    *(r"hand(?:s|ed|ing)?[ _-]+on", r"in[ _-]hand", r"kernels?", r"annex(?:es)?", r"houses?"),
    *(r"arrows?", r"outbox(?:es)?", r"turn[ _-]end"),
    r"turns?(?!\s+(?:\S+\s+){0,2}(?:on|off)\b|\s+a time-out)",  # but for a verb
)
WORDS = re.compile(rf"(?<![a-z])(?:{'|'.join(OLD)})(?![a-z])", re.IGNORECASE)
QUOTED = ("(paid) | the account |", "/proc/sys/kernel/")
"""What others name so."""
KINDS = {".py", ".lua", ".md", ".rst", ".js", ".html", ".css", ".json", ".yml", ".sh"}
PLACES = ("semaphore_middleware", "crawler", "docs", "docker")


def old_words(text: str) -> list[str]:
    for quoted in QUOTED:
        text = text.replace(quoted, "")
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text)  # SiteWalledError
    return WORDS.findall(apart)


@pytest.mark.parametrize("place", PLACES)
def test_what_has_a_word_of_its_own_has_no_other(place: str) -> None:
    files = [path for path in (REPOSITORY / place).rglob("*") if path.suffix in KINDS]
    assert len(files) > 4
    assert {path: words for path in files if (words := old_words(path.read_text("utf-8")))} == {}


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "CONTRIBUTING.md"])
def test_nor_in_the_pages_at_the_top(name: str) -> None:
    assert old_words((REPOSITORY / name).read_text("utf-8")) == []


@pytest.mark.parametrize(
    "text",
    [
        *("a late statement", "STATEMENT.names", "SiteWalledError", "permits_handed_on_total"),
        *("Whose turn it is", "common_turn_end", "said_believed", "for_each_account", "in hand"),
    ],
)
def test_old_words_are_found(text: str) -> None:
    assert old_words(text)


@pytest.mark.parametrize("text", ["Turn it on", "turns the add-on\noff", "an object is returned"])
def test_other_words_are_left_alone(text: str) -> None:
    assert not old_words(text)
