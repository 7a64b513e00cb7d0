"""What the pages say about the code is where they say: files, words in them, tests of promises."""

from __future__ import annotations

import inspect
import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

import semaphore_middleware
from tests.docs.pages import PATHS, page
from tests.support.paths import REPOSITORY

PACKAGE = REPOSITORY / "semaphore_middleware"
PLACE = r"((?:`[^`]+`(?:, | and | or )?)+) in `([^`]+)`"
"""One or more words, and the file that they are in."""
FILE = r"`([\w/.*-]+\.(?:py|lua|toml|js|html))`"
TESTS = [path for folder in ("tests", "lab") for path in (REPOSITORY / folder).rglob("test_*.py")]
RULES = tomllib.loads((REPOSITORY / "lab" / "simulation" / "power.toml").read_text("utf-8"))


def file_of(name: str) -> Path:
    """Of a path as the pages have it: of the repository, or of the package."""
    path = REPOSITORY / name
    return path if path.exists() else PACKAGE / name


def rows_of(name: str, first: str) -> list[str]:
    """The rows of the table on a page whose first column has this heading."""
    table = re.search(rf"^\| {first} \|.*\n\| ---.*\n((?:\|.*\n)+)", page(name), re.MULTILINE)
    assert table is not None
    return table[1].splitlines()


TO_ADD = [*rows_of("docs/how-it-works.md", "to add"), *rows_of("CONTRIBUTING.md", "to add")]


@pytest.mark.parametrize("row", TO_ADD, ids=lambda row: row.split("|")[1].strip())
def test_what_is_to_be_added_has_its_place(row: str) -> None:
    places = re.findall(PLACE, row)
    assert places, "no word in a file is named"
    for words, name in places:
        text = file_of(name).read_text("utf-8")
        for word in re.findall("`([^`]+)`", words):
            assert re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text), f"{word} is not in {name}"
    assert {*re.findall(FILE, row)} <= {name for _, name in places}, "a file without a word"


@pytest.mark.parametrize(
    "name",
    [
        *("docs/how-it-works.md", "docs/protocol.md", "docs/report.md", "docs/shared-crawl.md"),
        "CONTRIBUTING.md",
    ],
)
def test_files_are_where_the_pages_say(name: str) -> None:
    for file in re.findall(FILE, page(name)):
        assert "/" not in file or file_of(file).exists(), file


def test_each_promise_names_tests_that_exist() -> None:
    names = r"`((?:[\w/]+/)?test_[\w*]+\.py|(?:tests|lab)(?:/\w+)+)`"
    named = re.findall(names, page("docs/verification.md"))
    assert len(named) > 50
    for name in named:
        if not name.endswith(".py"):
            assert (REPOSITORY / name).is_dir(), name
            continue
        found = [path for path in TESTS if fnmatch(str(path), f"*/{name}")]
        assert found, name
        assert "*" in name or len(found) == 1, f"{name} is any of {found}"


def test_each_rule_of_the_page_is_switched_off_by_its_number() -> None:
    _, _, table = page("docs/protocol.md").partition("## The rules of the protocol")
    numbers = re.findall(r"^rule (\d+): ", "\n".join(RULES), re.MULTILINE)
    assert {*numbers} == {*re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}


def test_each_benchmark_that_the_pages_name_exists() -> None:
    named = {
        name for path in PATHS for name in re.findall(r"bench-(\w+)`", path.read_text("utf-8"))
    }
    cases = {path.stem for path in (REPOSITORY / "lab" / "benchmarks" / "cases").glob("*.py")}
    assert named
    assert named <= cases


def test_the_reference_has_each_public_name() -> None:
    named = {*re.findall(r"auto\w+:: (?:.*\.)?(\w+)$", page("docs/api.rst"), re.MULTILINE)}
    assert {*semaphore_middleware.__all__} <= named


@pytest.mark.parametrize("name", semaphore_middleware.__all__)
def test_docstrings_are_for_users_and_name_papers_last(name: str) -> None:
    text = inspect.getdoc(getattr(semaphore_middleware, name)) or ""
    *paragraphs, _ = text.split("\n\n")
    assert not re.search(r", (19|20)\d\d\)", "\n\n".join(paragraphs))
    assert not re.search(r"\w\.(py|lua)\b", text), "they have no source beside them"
