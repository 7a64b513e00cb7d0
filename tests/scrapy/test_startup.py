"""What a crawl says of itself at its start, and what it warns of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scrapy import Request

import semaphore_middleware
from semaphore_middleware.scrapy.settings import NAMES
from tests.support.crawls import Crawl, asyncio_test
from tests.support.servers import RedisServer
from tests.support.site import Site

PACKAGE = Path(semaphore_middleware.__file__).parent
OF_THE_ENVIRONMENT = {"SEMAPHORE_EMBEDDED_DIRECTORY", "SEMAPHORE_TOKEN"}


def test_all_settings_that_are_read_are_known() -> None:
    sources = [path.read_text("utf-8") for path in PACKAGE.rglob("*.py")]
    read = {name for source in sources for name in re.findall(r'"(SEMAPHORE_[A-Z_]+)"', source)}
    assert read - OF_THE_ENVIRONMENT == NAMES


@asyncio_test
async def test_a_crawl_says_which_server_and_limit_it_goes_by(
    server: RedisServer, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    crawl = Crawl(server, Request(site.url("/page/")), DOWNLOAD_DELAY=0.01, SEMAPHORE_NODE="one")
    await crawl.gave_back(1, site)
    (said,) = [r.getMessage() for r in caplog.records if "This is node" in r.getMessage()]
    assert said.startswith("This is node one-")
    assert f"All nodes at {server.url} together have at most 1 open at a site, 0.01 s" in said


@asyncio_test
async def test_settings_that_do_not_exist_are_warned_of(
    server: RedisServer, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    crawl = Crawl(server, Request(site.url("/page/")), SEMAPHORE_LIMIT=2, SEMAPHORE_XYZ=1)
    await crawl.gave_back(1, site)
    said = [r.getMessage() for r in caplog.records]
    assert "SEMAPHORE_LIMIT: there is no such setting; did you mean SEMAPHORE_LIMITS?" in said
    assert "SEMAPHORE_XYZ: there is no such setting" in said


@pytest.mark.parametrize("name", ["http://127.0.0.1:80/", "localhost:80"])
@asyncio_test
async def test_a_limit_that_fits_no_site_is_warned_of(
    server: RedisServer, site: Site, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    limits = {name: 2, "127.0.0.1": 1, "any text": 1}
    await Crawl(server, Request(site.url("/page/")), SEMAPHORE_LIMITS=limits).gave_back(1, site)
    said = [r.getMessage() for r in caplog.records if "SEMAPHORE_LIMITS" in r.getMessage()]
    assert len(said) == 1
    assert said[0].startswith(f"SEMAPHORE_LIMITS[{name!r}]: a site goes by its host alone, ")
