"""Links, files, make targets and commands that the pages name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scrapy.downloadermiddlewares import retry as scrapy_retry

import semaphore_middleware
from semaphore_middleware.console.cli.semaphore import VERBS
from tests.docs.pages import PATHS, anchors, links, name_of, page, prose, rows
from tests.support.paths import PACKAGE, REPOSITORY

FILES = re.compile(r"(?<![\w/.@-])\w[\w./*-]*\.(?:py|lua|md|svg|json|toml|cfg|sh)\b")
PLACES = ("semaphore_middleware", "crawler", "tests", "benchmarks", "docs", "docker")
NOT_FILES = {"cancel.json"}  # a URL of Scrapyd
LOG_PARTS = ("No permit is granted", "The log says")
MESSAGES = "\n".join(
    path.read_text("utf-8")
    for path in (*sorted(PACKAGE.rglob("*.py")), Path(str(scrapy_retry.__file__)))
)
pages = pytest.mark.parametrize("path", PATHS, ids=name_of)


@pages
def test_links_have_targets(path: Path) -> None:
    text = path.read_text("utf-8")
    for link in links(text):
        if link.startswith("https://"):
            continue
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text("utf-8")), link


@pages
def test_named_files_exist(path: Path) -> None:
    for name in set(FILES.findall(prose(path.read_text("utf-8")))) - NOT_FILES:
        near = [REPOSITORY, path.parent, *(REPOSITORY / place for place in PLACES)]
        found = any(next(place.glob(name), None) for place in near)
        # A bare name may be in any directory.
        deeper = any(next((REPOSITORY / place).rglob(name), None) for place in PLACES)
        assert found or deeper, name


@pages
def test_named_make_targets_and_commands_exist(path: Path) -> None:
    named = re.findall(r"`([^`\n]+)`", path.read_text("utf-8"))
    targets = re.findall(r"^([a-z%-]+):", page("Makefile"), re.MULTILINE)
    for words in (name.split() for name in named):
        if words[0] == "make" and len(words) > 1 and "=" not in words[1]:
            assert words[1] in targets or (words[1].startswith("bench-")), words
        if words[:2] == ["scrapy", "semaphore"] and len(words) > 2:
            assert words[2] in VERBS, words


def lines_of_the_log() -> list[str]:
    """What docs/troubleshooting.md quotes of the log."""
    text = page("docs/troubleshooting.md")
    parts = [text.partition(f"\n## {title}\n")[2].partition("\n## ")[0] for title in LOG_PARTS]
    return [
        line
        for row in rows("\n".join(parts))
        for line in re.findall(r"`([^`]+)`", row[0])
        if " " in line
    ]


@pytest.mark.parametrize("line", lines_of_the_log())
def test_lines_of_the_log_are_logged(line: str) -> None:
    logged = " ".join(re.sub(r'"\s*\n\s*f?"', "", MESSAGES).split())
    said = [part.strip(" :") for part in re.split(r"…|\b\d+\b|[:;(]", line)]
    assert any(len(part) > 8 for part in said), line
    for part in said:
        assert part in logged, part


@pages
def test_pages_begin_with_a_summary(path: Path) -> None:
    heading, empty, first, *_ = path.read_text("utf-8").splitlines()
    assert heading.startswith("# ")
    assert not empty
    assert first
    assert not first.startswith(("#", "|", "`", "    "))


def test_index_has_every_page() -> None:
    listed = {link for link in links(page("docs/README.md")) if "/" not in link}
    assert listed == {path.name for path in PATHS if path.parent.name == "docs"} - {"README.md"}
    assert len(page("docs/README.md").splitlines()) <= 30


def test_readme_is_short() -> None:
    assert 100 <= len(page("README.md").splitlines()) <= 150


def test_site_has_every_page_and_every_public_name() -> None:
    index = page("docs/index.md")
    named = set(re.findall(r"^(?!```|:)(\S+)$", index, re.MULTILINE))
    pages = {path.stem for path in PATHS if path.parent.name == "docs"} - {"README"}
    assert named == {*pages, "api"}
    told = re.findall(r"^\.\. auto\w+:: (\S+)$", page("docs/api.rst"), re.MULTILINE)
    assert sorted(name for name in told if "." not in name) == list(semaphore_middleware.__all__)


def test_pictures_are_used_and_have_an_alternative_text() -> None:
    shown = {
        (path.parent / link).resolve()
        for path in PATHS
        for text, link in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", path.read_text("utf-8"))
        if len(text) > 10
    }
    assert shown == set((REPOSITORY / "docs" / "pictures").iterdir())


def test_picture_of_the_state_is_small_and_has_a_background() -> None:
    picture = page("docs/pictures/state.svg")
    assert len(picture) < 20_000
    assert re.search(r'<rect width="860" height="530" [^>]*fill="#ffffff"', picture)
    of_a_scope = ("scope:example.com", "queue:example.com", "state", "learned", "node:a", "node:b")
    for key in (*of_a_scope, "epoch", "rules", "sync", "promote"):
        assert 'class="key"' in picture
        assert re.search(rf'class="key"[^>]*>{key}<', picture), key
