"""What the pages say of settings and their mistakes is so; links lead somewhere."""

from __future__ import annotations

import ast
import asyncio
import re
import textwrap
from typing import Any

import pytest
from scrapy.settings import Settings

import crawler.settings
import semaphore_middleware
from semaphore_middleware import FairSemaphore, SettingsError
from semaphore_middleware.redis import tls
from semaphore_middleware.scrapy.settings import SETTINGS, Derived, SemaphoreSettings, is_enabled
from semaphore_middleware.telemetry.stats import ScopeCount
from tests.docs.pages import PATHS, Block, anchors, blocks, links, name_of, page, rows
from tests.support.nodes import Loop
from tests.support.paths import PACKAGE, REPOSITORY
from tests.support.servers import RedisServer

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


PROGRAM_TIMEOUT_S = 30.0
PYTHON = [block for block in blocks() if block.kind == "python"]


def is_program(block: Block) -> bool:
    """Whether it awaits something, other than in a function for a project."""
    if "async def " in block.text:
        return False
    return any(word in block.text for word in ("await ", "async with "))


def title_of(block: Block) -> str:
    return block.name


@pytest.mark.parametrize("block", [b for b in PYTHON if not is_program(b)], ids=title_of)
def test_settings_are_allowed(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "check_options", lambda *_: None)  # the files are not here
    if "scrapy_playwright" in block.text:
        pytest.skip("run by tests/companions")
    names: dict[str, Any] = {}
    exec(block.text, names)  # our own pages
    given = {name: value for name, value in names.items() if name.isupper()}
    read = SemaphoreSettings.read(Settings(given))
    FairSemaphore(read.url, url_from=read.url_from)
    # Nothing is set that is not read.
    heard = {"ADDONS", "REDIS_URL", "CONCURRENT_REQUESTS_PER_DOMAIN", "DOWNLOAD_DELAY"}
    heard |= {"HTTPCACHE_ENABLED", "HTTPCACHE_POLICY", "HTTPCACHE_DIR"}
    heard |= {"AUTOTHROTTLE_ENABLED", "SCHEDULER", "DOWNLOAD_HANDLERS", "PLAYWRIGHT_ABORT_REQUEST"}
    assert {name for name in given if not name.startswith("SEMAPHORE_")} <= heard
    for host in given.get("SEMAPHORE_LIMITS", {}):
        assert read.limits.of(host.replace("*", "www")) != read.limits.default


@pytest.mark.parametrize("block", [b for b in PYTHON if is_program(b)], ids=title_of)
def test_programs_run(block: Block, server: RedisServer) -> None:
    assert "redis://localhost" in block.text
    text = block.text.replace("redis://localhost", server.url)
    names: dict[str, Any] = dict(vars(semaphore_middleware))
    exec(f"async def program():\n{textwrap.indent(text, '    ')}", names)  # our own pages
    loop = Loop()
    try:
        loop.run(asyncio.wait_for(names["program"](), PROGRAM_TIMEOUT_S))
    finally:
        loop.close()
    assert server.members() == {}
