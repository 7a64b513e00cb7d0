"""The tables of docs/settings.md and docs/stats.md say the same as the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from scrapy.settings import Settings, default_settings

import crawler.settings
from crawler.arguments import KNOWN
from semaphore_middleware import FairSemaphore, SettingsError
from semaphore_middleware.scrapy.settings import (
    SETTINGS,
    Derived,
    SemaphoreSettings,
    Setting,
    is_enabled,
)
from semaphore_middleware.telemetry.stats import ScopeCount
from tests.docs.pages import PATHS, name_of, page, rows
from tests.support.paths import PACKAGE

SOURCE = "\n".join(path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py")))
PAGE = page("docs/settings.md")
STATS = page("docs/stats.md")
SHARED_CRAWL = page("docs/shared-crawl.md")


def ours(text: str) -> set[str]:
    return set(re.findall(r"\bSEMAPHORE_[A-Z][A-Z_]*\b", text))


def code(cell: str) -> str:
    assert cell.startswith("`"), cell
    return cell.strip("`")


# Settings ---------------------------------------------------------------------------------------


def test_page_has_the_settings_of_the_code() -> None:
    assert ours(PAGE) == ours(SOURCE)


@pytest.mark.parametrize("path", PATHS, ids=name_of)
def test_settings_named_in_pages_exist(path: Path) -> None:
    assert ours(path.read_text("utf-8")) <= ours(SOURCE) | {"SEMAPHORE_TEST_SERVER"}


def test_page_has_the_settings_of_scrapy_that_are_read() -> None:
    named = set(re.findall(r'"([A-Z][A-Z_]{4,})"', SOURCE))
    heard = {name for name in named if hasattr(default_settings, name)} - {
        "DOWNLOADER_MIDDLEWARES",  # where the add-on puts itself
        "LOG_ENABLED",  # `scrapy semaphore` has no log
        "TWISTED_REACTOR",  # whatever is not asyncio's is refused
        "USER_AGENT",  # stands in for ROBOTSTXT_USER_AGENT, as in Scrapy
    }
    assert heard
    assert {name for name in heard if f"`{name}`" not in PAGE} == set()


def default_on_the_page(setting: Setting, cell: str) -> str:
    """The default as the page's cell should show it, in the cell's own quotes."""
    if isinstance(setting.default, Derived):
        return setting.default.text
    shown = ast.literal_eval(code(cell))
    return cell if repr(shown) == repr(setting.default) else f"`{setting.default!r}`"


def test_page_has_the_defaults_of_the_table() -> None:
    told = {
        code(row[0]): row[1]
        for row in rows(PAGE)
        if len(row) == 4 and row[0].startswith("`SEMAPHORE_")
    }
    assert told == {
        name: default_on_the_page(setting, told[name]) for name, setting in SETTINGS.items()
    }


@pytest.mark.parametrize(
    ("name", "default"), [("SEMAPHORE_BACKOFF_MAX", 300.0), ("SEMAPHORE_TURN", 0.1)]
)
def test_page_has_the_defaults_that_are_numbers_and_depend_on_another_setting(
    name: str, default: float
) -> None:
    assert SETTINGS[name].default.text == f"`{default}`"
    assert SETTINGS[name].read(Settings()) == default


def test_readme_has_the_same_defaults() -> None:
    there = {row[0]: row[1] for row in rows(PAGE) if len(row) == 4}
    here = {row[0]: row[1] for row in rows(page("README.md")) if row[0].startswith("`SEMAPHORE_")}
    assert set(here) < {f"`{name}`" for name in SETTINGS}  # the others are on the page alone
    derived = [name for name, row in SETTINGS.items() if isinstance(row.default, Derived)]
    in_words = [f"`{name}`" for name in (*derived, "SEMAPHORE_REDIS_URL")]
    assert len(here) > 5
    for name in set(here) - set(in_words):
        assert here[name] == there[name], name


def test_page_has_the_arguments_of_the_spider() -> None:
    part = SHARED_CRAWL.partition("\n## The example project\n")[2]
    assert tuple(re.findall(r"^\| `([a-z_]+)` ", part, re.MULTILINE)) == KNOWN


def test_page_has_the_defaults_of_the_crawler() -> None:
    told = {code(row[0]): row[1] for row in rows(SHARED_CRAWL) if row[0].startswith("`CRAWL")}
    assert told.pop("CRAWL") == "the spider's name"
    for name, cell in told.items():
        assert ast.literal_eval(code(cell)) == getattr(crawler.settings, name)
    assert {*told, "CRAWL"} == set(
        re.findall(r"^ {4}(CRAWL\w*)", crawler.settings.__doc__ or "", re.MULTILINE)
    )


def mistakes() -> list[list[str]]:
    return [
        [code(cell) for cell in row]
        for row in rows(PAGE.partition("\n## Mistakes\n")[2])
        if row[0] != "written"
    ]


@pytest.mark.parametrize(("written", "error"), mistakes())
def test_mistakes_cause_these_errors(written: str, error: str) -> None:
    name, _, value = written.partition(" = ")
    with pytest.raises(SettingsError) as refused:
        settings = Settings({name: ast.literal_eval(value)})
        is_enabled(settings)
        read = SemaphoreSettings.read(settings)
        FairSemaphore(read.url, url_from=read.url_from)
    begins, shortened, _ = error.partition("…")
    said = str(refused.value)
    assert said.startswith(begins) if shortened else said == error


def test_page_has_a_mistake_for_each_checked_setting() -> None:
    taking_anything = {"NODE", "METRICS_HOST"}
    shown = {written.partition(" = ")[0] for written, _ in mistakes()}
    assert set(SETTINGS) - shown == {f"SEMAPHORE_{name}" for name in taking_anything}


# Figures ----------------------------------------------------------------------------------------


def test_readme_has_figures_of_the_benchmarks_page() -> None:
    shown = page("README.md").partition("\n## What it costs\n")[2].partition("\n## ")[0]
    figures = {
        figure
        for row in rows(shown)
        for cell in row[1:]
        for figure in re.findall(r"\d[\d.,]*", cell)
    }
    measured = set(re.findall(r"\d[\d.,]*\d", page("docs/benchmarks.md")))
    assert len(figures) > 5
    assert figures <= measured


# Stats ------------------------------------------------------------------------------------------


def test_page_has_the_stats_of_the_code() -> None:
    counted = re.findall(r'(?:\bcounter = |_counts\[)"(\w+)"', SOURCE)
    written = re.findall(r'set_value\("semaphore/(\w+)"', SOURCE)
    of_scopes = [f"scope/<scope>/{part}" for part in ScopeCount.__slots__]
    told = [code(row[0]) for row in rows(STATS) if row[0].startswith("`semaphore/")]
    assert sorted(told) == sorted(f"semaphore/{name}" for name in {*counted, *written, *of_scopes})


def test_page_has_the_bounds_of_the_stats() -> None:
    assert "each of the 20 busiest scopes" in STATS
    assert "At most 1000 scopes" in STATS
    assert re.search(r"^SHOWN_SCOPES = 20\b", SOURCE, re.MULTILINE)
    assert re.search(r"^COUNTED_SCOPES_MAX = 1000\b", SOURCE, re.MULTILINE)
