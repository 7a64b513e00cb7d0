"""What the pages say of settings and their mistakes is so; links lead somewhere."""

from __future__ import annotations

import asyncio
import re
import textwrap
from typing import Any

import pytest
from scrapy.settings import Settings

import crawler.settings
import semaphore_middleware
from semaphore_middleware import FairSemaphore, SettingsError
from semaphore_middleware.link import location
from semaphore_middleware.model.settings import SETTINGS, Derived
from semaphore_middleware.observers.stats import ScopeCount
from semaphore_middleware.scrapy.settings import SemaphoreSettings
from semaphore_middleware.shared_crawl.settings import CHECKS, CrawlSettings
from tests.docs.pages import PATHS, Block, anchors, blocks, links, name_of, page
from tests.support.nodes import Loop
from tests.support.paths import REPOSITORY, SOURCES
from tests.support.servers import RedisServer
from tests.support.times import TIMEOUT_S

SOURCE = "\n".join(path.read_text("utf-8") for path in SOURCES)
TEXTS = {name_of(path): path.read_text("utf-8") for path in PATHS}
SETTING = r"\bSEMAPHORE_[A-Z][A-Z_]*\b"


def found(pattern: str, text: str) -> set[str]:
    return set(re.findall(pattern, text, re.MULTILINE))


def test_the_pages_name_each_setting_and_each_stat() -> None:
    assert entries("docs/settings.md").keys() >= SETTINGS.keys()
    assert found(SETTING, page("docs/settings.md")) == found(SETTING, SOURCE) | SETTINGS.keys()
    stats = found(r'(?:\bcounter = |_counts\[)"(\w+)"', SOURCE)
    stats |= found(r'set_value\("semaphore/(\w+)"', SOURCE)
    stats |= {f"scope/<scope>/{part}" for part in ScopeCount.__slots__}
    assert found(r"^- `semaphore/([^`]+)`:", page("docs/stats.md")) == stats


@pytest.mark.parametrize("name", TEXTS)
def test_links_have_targets(name: str) -> None:
    for link in links(TEXTS[name]):
        file, _, anchor = link.partition("#")
        if not link.startswith("https://"):
            target = (REPOSITORY / name).parent / file if file else REPOSITORY / name
            assert target.exists(), link
            assert not anchor or anchor in anchors(target.read_text("utf-8")), link


def entries(name: str) -> dict[str, str]:
    """Settings with a heading of their own, and the line that tells default and allowed values."""
    heading = r"^### `(\w+)`\n\n(Default: (?:.+\n)+)"
    return {
        setting: " ".join(told.split())
        for setting, told in re.findall(heading, page(name), re.MULTILINE)
    }


def default_is(value: object) -> str:
    quoted = repr(value).replace("'", '"')
    return f"Default: `{quoted}`"


def test_settings_have_the_defaults_of_the_page() -> None:
    told = entries("docs/settings.md")
    for name, setting in SETTINGS.items():
        if isinstance(setting.default, Derived):
            assert told[name].startswith(f"Default: {setting.default.text}")
        else:
            assert told[name].startswith(default_is(setting.default))
    assert SETTINGS["SEMAPHORE_BACKOFF_MAX"].read(Settings()) == 300.0  # derived from others
    crawls = {name: text for name, text in told.items() if name.startswith("CRAWL")}
    assert crawls.keys() == {"CRAWL", *(name for name in CHECKS if name.startswith("CRAWL_"))}
    ours = CrawlSettings("redis://unused")
    for name in crawls.keys() - {"CRAWL"}:
        default = getattr(ours, name.removeprefix("CRAWL_").lower())
        assert crawls[name].startswith(default_is(default))
        assert getattr(crawler.settings, name, default) == default


WRONG = {
    "SEMAPHORE_ENABLED": "maybe",
    "SEMAPHORE_LIMITS": "example.com: 2",
    "SEMAPHORE_REDIS_CREDENTIALS": 3,
    "SEMAPHORE_REDIS_OPTIONS": "ssl_ca_certs",
    "SEMAPHORE_SCOPES": ["hosts"],
    "SEMAPHORE_LEASE": "15 s",
    "SEMAPHORE_ACQUIRE_TIMEOUT": 0,
    "SEMAPHORE_START_TIMEOUT": 0,
    "SEMAPHORE_RECOVERY_WAIT": -1,
    "SEMAPHORE_HISTORY": "a week",
    "SEMAPHORE_PREFIX": "{crawl}",
    "SEMAPHORE_JOB": "news\n",
    "SEMAPHORE_MAX_CRAWL_DELAY": -1,
    "SEMAPHORE_ROBOTSTXT_UNREACHABLE": "forbid",
    "SEMAPHORE_BACKOFF_CODES": ["too many"],
    "SEMAPHORE_BACKOFF_START": 0,
    "SEMAPHORE_BACKOFF_MAX": 0.5,
    "SEMAPHORE_BACKOFF_TIMES": 1.5,
    "SEMAPHORE_BACKOFF_WHEN": "none.here",
    "SEMAPHORE_DOWN_AFTER": -1,
    "SEMAPHORE_METRICS": 70000,
    "SEMAPHORE_NODE": "n" * 201,
}
ANY_TEXT = {"SEMAPHORE_REDIS_URL"}


@pytest.mark.parametrize("name", sorted(SETTINGS.keys() - ANY_TEXT))
def test_errors_say_what_the_page_allows(name: str) -> None:
    with pytest.raises(SettingsError) as refused:
        SETTINGS[name].read(Settings({name: WRONG[name]}))
    _, _, allowed = str(refused.value).partition("allowed is ")
    assert f"Allowed: `{allowed}`" in entries("docs/settings.md")[name]


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
    monkeypatch.setattr(location, "check_tls_options", lambda *_: None)  # the files are not here
    if block.page == "docs/without-scrapy.md":
        pytest.skip("run by test_recipes.py")
    if block.page == "docs/cookbook.md":
        pytest.skip("run by test_cookbook.py")
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
    heard |= {"AUTOTHROTTLE_ENABLED", "DOWNLOAD_HANDLERS", "PLAYWRIGHT_ABORT_REQUEST"}
    heard |= {"SCHEDULER", "CRAWL_START_KEY"}
    assert {name for name in given if not name.startswith("SEMAPHORE_")} <= heard
    for host in given.get("SEMAPHORE_LIMITS", {}):
        assert read.limits.of(host.replace("*", "www")) != read.limits.default.limit


@pytest.mark.parametrize("block", [b for b in PYTHON if is_program(b)], ids=title_of)
def test_programs_run(block: Block, server: RedisServer) -> None:
    assert "redis://localhost" in block.text
    text = block.text.replace("redis://localhost", server.url)
    names: dict[str, Any] = dict(vars(semaphore_middleware))
    exec(f"async def program():\n{textwrap.indent(text, '    ')}", names)  # our own pages
    with Loop() as loop:
        loop.run(asyncio.wait_for(names["program"](), TIMEOUT_S))
    assert server.members() == {}
