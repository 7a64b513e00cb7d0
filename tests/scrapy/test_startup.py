"""Log lines and warnings at the start of a crawl."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scrapy import Request
from scrapy.settings import Settings

import semaphore_middleware
from semaphore_middleware import Limit
from semaphore_middleware.model.limits import parse_limits
from semaphore_middleware.scrapy.settings import SETTINGS
from semaphore_middleware.scrapy.startup import warn_of_mistakes
from tests.support.crawls import Crawl, asyncio_test
from tests.support.servers import RedisServer
from tests.support.site import Site

PACKAGE = Path(semaphore_middleware.__file__).parent
OF_THE_ENVIRONMENT = {"SEMAPHORE_EMBEDDED_DIRECTORY", "SEMAPHORE_TOKEN"}


def test_the_table_has_every_setting_that_is_read() -> None:
    sources = [path.read_text("utf-8") for path in PACKAGE.rglob("*.py")]
    read = {name for source in sources for name in re.findall(r'"(SEMAPHORE_[A-Z_]+)"', source)}
    assert read - OF_THE_ENVIRONMENT == set(SETTINGS)


@asyncio_test
async def test_the_log_names_the_node_the_server_and_the_default_limit(
    server: RedisServer, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    crawl = Crawl(server, Request(site.url("/page/")), DOWNLOAD_DELAY=0.01, SEMAPHORE_NODE="one")
    await crawl.gave_back(1, site)
    (line,) = [r.getMessage() for r in caplog.records if "Default limit" in r.getMessage()]
    assert line.startswith("Node one-")
    assert f"shares its limits with all nodes at {server.url}. " in line
    assert line.endswith("Default limit of a site: concurrency 1, delay 0.01 s.")


@asyncio_test
async def test_unknown_settings_get_a_warning(
    server: RedisServer, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    crawl = Crawl(server, Request(site.url("/page/")), SEMAPHORE_LIMIT=2, SEMAPHORE_XYZ=1)
    await crawl.gave_back(1, site)
    said = [r.getMessage() for r in caplog.records]
    assert "SEMAPHORE_LIMIT: there is no such setting; did you mean SEMAPHORE_LIMITS?" in said
    assert "SEMAPHORE_XYZ: there is no such setting" in said


@pytest.mark.parametrize("name", ["http://127.0.0.1:80/", "localhost:80"])
@asyncio_test
async def test_a_limit_for_a_url_gets_a_warning(
    server: RedisServer, site: Site, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    limits = {name: 2, "127.0.0.1": 1, "any text": 1}
    await Crawl(server, Request(site.url("/page/")), SEMAPHORE_LIMITS=limits).gave_back(1, site)
    said = [r.getMessage() for r in caplog.records if "SEMAPHORE_LIMITS" in r.getMessage()]
    assert len(said) == 1
    assert said[0].startswith(f"SEMAPHORE_LIMITS[{name!r}] is not the name of a site: ")


def test_a_limit_of_a_kind_that_is_not_listed_gets_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = parse_limits({"ip:*": 2, "all": 3, "a": 1}, {}, Limit(1), "SEMAPHORE_LIMITS")
    warn_of_mistakes(Settings(), limits, ["host", "all"])
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("SEMAPHORE_LIMITS has limits of the kind 'ip', which SEMAPHORE_SCOPES")
