"""What the pages say of settings and their mistakes is so; links lead somewhere."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest
from scrapy.settings import Settings

import crawler.settings
from semaphore_middleware import FairSemaphore, SettingsError
from semaphore_middleware.scrapy.settings import SETTINGS, Derived, SemaphoreSettings, is_enabled
from semaphore_middleware.telemetry.stats import ScopeCount
from tests.docs.pages import PATHS, anchors, links, name_of, page, rows
from tests.support.paths import PACKAGE, REPOSITORY

SOURCE = "\n".join(path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py")))
TEXTS = {name_of(path): path.read_text("utf-8") for path in PATHS}
SETTING = r"\bSEMAPHORE_[A-Z][A-Z_]*\b"


def found(pattern: str, text: str) -> set[str]:
    return set(re.findall(pattern, text, re.MULTILINE))


def test_the_pages_name_each_setting_and_each_stat() -> None:
    assert found(SETTING, page("docs/settings.md")) == found(SETTING, SOURCE)
    stats = found(r'(?:\bcounter = |_counts\[)"(\w+)"', SOURCE)
    stats |= found(r'set_value\("semaphore/(\w+)"', SOURCE)
    stats |= {f"scope/<scope>/{part}" for part in ScopeCount.__slots__}
    assert found(r"^\| `semaphore/([^`]+)`", page("docs/stats.md")) == stats


@pytest.mark.parametrize("name", TEXTS)
def test_links_have_targets(name: str) -> None:
    for link in links(TEXTS[name]):
        file, _, anchor = link.partition("#")
        if not link.startswith("https://"):
            target = (REPOSITORY / name).parent / file if file else REPOSITORY / name
            assert target.exists(), link
            assert not anchor or anchor in anchors(target.read_text("utf-8")), link


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
    part = page("docs/settings.md").partition("\n## Mistakes\n")[2].partition("\n## ")[0]
    return [[cell.strip("`") for cell in row] for row in rows(part) if row[0] != "written"]


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
