"""What the pages name exists, and what exists is named there; links lead somewhere."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest
from scrapy.downloadermiddlewares import retry as scrapy_retry
from scrapy.settings import Settings, default_settings

import crawler.settings
import semaphore_middleware
from crawler.arguments import KNOWN
from semaphore_middleware import FairSemaphore, SettingsError
from semaphore_middleware.console.cli.connect import Status
from semaphore_middleware.console.cli.semaphore import EXIT_STATUSES, VERBS
from semaphore_middleware.frontier.commands import frontier
from semaphore_middleware.scrapy.settings import (
    SETTINGS,
    Derived,
    SemaphoreSettings,
    is_enabled,
)
from semaphore_middleware.telemetry.stats import ScopeCount
from tests.docs.pages import PATHS, anchors, links, name_of, page, prose, rows
from tests.support.paths import PACKAGE, REPOSITORY

SOURCE = "\n".join(path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py")))
LOGGED = SOURCE + scrapy_retry.__loader__.get_source(scrapy_retry.__name__)  # type: ignore[union-attr]
TEXTS = {name_of(path): path.read_text("utf-8") for path in PATHS}
ALL = "\n".join(TEXTS.values())
FILES = re.compile(r"(?<![\w/.@-])\w[\w./*-]*\.(?:py|lua|md|svg|json|toml|cfg|sh)\b")
PLACES = ("semaphore_middleware", "crawler", "tests", "benchmarks", "docs", "docker")
SILENT = {
    "DOWNLOADER_MIDDLEWARES",  # where the add-on puts itself
    "LOG_ENABLED",  # `scrapy semaphore` has no log
    "TWISTED_REACTOR",  # whatever is not asyncio's is refused
    "USER_AGENT",  # stands in for ROBOTSTXT_USER_AGENT, as in Scrapy
}


def found(pattern: str, text: str) -> set[str]:
    return set(re.findall(pattern, text, re.MULTILINE))


def part(name: str, title: str) -> str:
    """A page's part below a heading."""
    return page(name).partition(f"\n## {title}\n")[2].partition("\n## ")[0]


# Names ------------------------------------------------------------------------------------------

COMMAND = r"(?:`|\$ | {{4}})scrapy {} (\w+)"
OURS = r"\bSEMAPHORE_[A-Z][A-Z_]*\b"
STATS = {
    *(f"semaphore/{name}" for name in found(r'(?:\bcounter = |_counts\[)"(\w+)"', SOURCE)),
    *(f"semaphore/{name}" for name in found(r'set_value\("semaphore/(\w+)"', SOURCE)),
    *(f"semaphore/scope/<scope>/{part}" for part in ScopeCount.__slots__),
}
TARGETS = found(r"^([a-z-]+):", page("Makefile"))
READ = {n for n in found(r'"([A-Z][A-Z_]{4,})"', SOURCE) if hasattr(default_settings, n)}
PUBLIC = set(semaphore_middleware.__all__)


@pytest.mark.parametrize(
    ("named", "known"),
    [
        (found(OURS, page("docs/settings.md")), found(OURS, SOURCE)),
        (found(OURS, ALL) - {"SEMAPHORE_TEST_SERVER"}, found(OURS, SOURCE)),
        (found(r"^\| `(semaphore/[^`]+)`", page("docs/stats.md")), STATS),
        (found(COMMAND.format("semaphore"), ALL), {*VERBS}),
        (found(COMMAND.format("frontier"), ALL), {*frontier.VERBS}),
        (
            found(r"^\| (\d+) \| ", page("docs/commands.md")),
            {*(str(int(s)) for s in Status), "130"},
        ),
        (found(r"^\| (\d+) \| ", page("docs/commands.md")), found(r"(\d+) [a-z]", EXIT_STATUSES)),
        (found(r"^\| `([a-z_]+)` ", part("docs/shared-crawl.md", "The example project")), {*KNOWN}),
        (
            found(r"^\| `(CRAWL\w*)` ", page("docs/shared-crawl.md")),
            found(r"^ {4}(CRAWL\w*)", str(crawler.settings.__doc__)),
        ),
        (found(r"^\.\. auto\w+:: (\w+)$", page("docs/api.rst")), PUBLIC),
        (
            found(r"^(?!```|:)(\S+)$", page("docs/index.md")),
            {path.stem for path in PATHS if path.parent.name == "docs"} - {"README"} | {"api"},
        ),
        (
            {link for link in links(page("docs/README.md")) if "/" not in link},
            {path.name for path in PATHS if path.parent.name == "docs"} - {"README.md"},
        ),
    ],
    ids=(
        *(
            "settings",
            "settings in all pages",
            "stats",
            "verbs",
            "frontier",
            "exit statuses",
            "their help",
        ),
        *("spider's arguments", "CRAWL settings", "public names", "pages of the site", "index"),
    ),
)
def test_pages_name_what_there_is(named: set[str], known: set[str]) -> None:
    assert named == known


def test_settings_of_scrapy_that_are_read_are_named_and_make_targets_exist() -> None:
    assert {name for name in READ - SILENT if f"`{name}`" not in page("docs/settings.md")} == set()
    named = found(r"`make ([a-z-]+)[ `]", ALL)
    assert {name for name in named if not name.startswith("bench-")} <= TARGETS


@pytest.mark.parametrize("name", TEXTS)
def test_links_have_targets_and_named_files_exist(name: str) -> None:
    path = REPOSITORY / name
    for link in links(TEXTS[name]):
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        assert link.startswith("https://") or target.exists(), link
        if anchor and not link.startswith("https://"):
            assert anchor in anchors(target.read_text("utf-8")), link
    places = [path.parent, *(REPOSITORY / place for place in PLACES)]
    for file in set(FILES.findall(prose(TEXTS[name]))) - {"cancel.json"}:  # a URL of Scrapyd
        # A bare name may be in any directory.
        assert next(REPOSITORY.glob(file), None) or any(
            next(place.rglob(file), None) for place in places
        ), file


@pytest.mark.parametrize("title", ["No permit is granted", "The log says"])
def test_lines_of_the_log_are_logged(title: str) -> None:
    quoted = [row[0] for row in rows(part("docs/troubleshooting.md", title))]
    lines = [line for cell in quoted for line in re.findall(r"`([^`]+)`", cell) if " " in line]
    logged = " ".join(re.sub(r'"\s*\n\s*f?"', "", LOGGED).split())
    assert lines
    for line in lines:
        said = [words.strip(" :") for words in re.split(r"…|\b\d+\b|[:;(]", line)]
        assert any(len(words) > 8 for words in said), line
        assert [words for words in said if words not in logged] == []


# Values -----------------------------------------------------------------------------------------


def test_settings_have_the_defaults_of_the_page() -> None:
    told = {row[0].strip("`"): row[1] for row in rows(page("docs/settings.md")) if len(row) == 4}
    assert told.keys() >= SETTINGS.keys()
    for name, setting in SETTINGS.items():
        if isinstance(setting.default, Derived):
            assert setting.default.text == told[name]
        else:
            assert repr(ast.literal_eval(told[name].strip("`"))) == repr(setting.default)
    for name, default in (("SEMAPHORE_BACKOFF_MAX", 300.0), ("SEMAPHORE_TURN", 0.1)):
        assert told[name] == f"`{default}`"  # derived from others that are not set
        assert SETTINGS[name].read(Settings()) == default
    crawls = {row[0].strip("`"): row[1].strip("`") for row in rows(page("docs/shared-crawl.md"))}
    for name in crawls.keys() & vars(crawler.settings).keys() - {"CRAWL"}:
        assert ast.literal_eval(crawls[name]) == getattr(crawler.settings, name)


def mistakes() -> list[list[str]]:
    told = rows(part("docs/settings.md", "Mistakes"))
    return [[cell.strip("`") for cell in row] for row in told if row[0] != "written"]


@pytest.mark.parametrize(("written", "error"), mistakes())
def test_mistakes_cause_these_errors(written: str, error: str) -> None:
    name, _, value = written.partition(" = ")
    settings: dict[str, Any] = {name: ast.literal_eval(value)}
    with pytest.raises(SettingsError) as refused:
        is_enabled(Settings(settings))
        read = SemaphoreSettings.read(Settings(settings))
        FairSemaphore(read.url, url_from=read.url_from)
    begins, shortened, _ = error.partition("…")
    said = str(refused.value)
    assert said.startswith(begins) if shortened else said == error


def test_each_checked_setting_has_a_mistake() -> None:
    taking_anything = {"SEMAPHORE_NODE", "SEMAPHORE_METRICS_HOST"}
    assert set(SETTINGS) - {written.split(" = ")[0] for written, _ in mistakes()} == taking_anything
