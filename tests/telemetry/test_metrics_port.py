"""Where metrics are served, and that nothing of it is in a crawl's way."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from scrapy import Request
from scrapy.settings import Settings

from semaphore_middleware import SettingsError
from semaphore_middleware.scrapy.settings import SemaphoreSettings
from semaphore_middleware.telemetry.prometheus import Metrics
from tests.scrapy.test_exits_loops import each_loop
from tests.support.crawls import ADD_ON, Crawl, asyncio_test, both, scrapy, until, waiting
from tests.support.servers import RedisServer, free_port
from tests.support.site import Site
from tests.telemetry.scrapes import HOST, address, addresses_in, is_free, port_of, scrape


@pytest.fixture(autouse=True)
def lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


# The port ---------------------------------------------------------------------------------------


@each_loop
@asyncio_test
async def test_they_are_served_whatever_loop_a_crawl_runs_on(
    server: RedisServer, site: Site, tmp_path: Path, loop: tuple[str, ...]
) -> None:
    ours = {**ADD_ON, "SEMAPHORE_REDIS_URL": server.url, "SEMAPHORE_METRICS_PORT": 0}
    async with scrapy(tmp_path, Request(site.url("/slow/")), options=loop, **ours) as crawl:
        await site.until(lambda: site.now == 1)
        [url] = addresses_in(crawl.log)
        assert (await scrape(url)).of(HOST) == (1, 0, 1)
        site.let_go()
        assert await crawl.ended() == 0
        assert crawl.errors == []
    assert is_free(url)


@asyncio_test
async def test_two_crawls_in_one_process_share_nothing_but_the_wish_for_a_port(
    server: RedisServer, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    first = Crawl(server, Request(site.url("/slow/1")), SEMAPHORE_METRICS_PORT=port)
    url = await address(caplog)
    assert url == f"http://127.0.0.1:{port}/metrics"
    await site.until(lambda: site.now == 1)
    second = Crawl(server, Request(site.url("/slow/2")), SEMAPHORE_METRICS_PORT=port)
    await until(lambda: waiting(server) == 1)

    assert (await scrape(url)).of(HOST) == (1, 0, 1)
    [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
    told = warning.getMessage()
    assert f"SEMAPHORE_METRICS_PORT = {port}: cannot listen on 127.0.0.1" in told
    assert "The crawl goes on without metrics" in told
    site.let_go()
    await first.finished()
    await second.gave_back(1, site)


@both
@asyncio_test
async def test_the_port_is_free_at_the_end_whoever_is_still_reading(
    server: RedisServer, site: Site, caplog: pytest.LogCaptureFixture, by: Mapping[str, Any]
) -> None:
    crawl = Crawl(server, Request(site.url("/slow/")), by=by, SEMAPHORE_METRICS_PORT=0)
    url = await address(caplog)
    reader, writer = await asyncio.open_connection(HOST, port_of(url))
    writer.write(b"GET /metrics HTTP/1.1\r\n")  # and it never ends
    assert not is_free(url)
    await site.until(lambda: site.now == 1)
    await crawl.gave_back(1, site)

    assert await reader.read() == b""
    writer.close()
    assert is_free(url)


@asyncio_test
async def test_a_crawl_that_cannot_begin_leaves_no_port_open(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    refusing = RedisServer("--requirepass", "secret").start()
    try:
        crawl = Crawl(refusing, Request(site.url("/page/")), SEMAPHORE_METRICS_PORT=0)
        await crawl.finished()
        assert is_free(await address(caplog))
    finally:
        refusing.remove()


@asyncio_test
async def test_a_node_that_cannot_reach_the_server_can_be_asked(
    server: RedisServer, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    server.freeze()
    try:
        crawl = Crawl(server, Request(site.url("/page/")), SEMAPHORE_METRICS_PORT=0)
        assert (await scrape(await address(caplog)))["semaphore_reconnects_total"] == 0
    finally:
        server.thaw()
    await crawl.gave_back(1, site)


# Visitors ---------------------------------------------------------------------------------------


async def status_for(url: str, host: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, headers={"Host": host}) as response,
    ):
        return response.status, await response.text()


@asyncio_test
async def test_a_strange_name_that_leads_here_gets_nothing_and_is_logged_once(
    server: RedisServer, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """See test_own_names.py for the names."""
    here = Crawl(server, Request(site.url("/slow/1")), SEMAPHORE_METRICS_PORT=0)
    url = await address(caplog)
    ports: dict[str, Any] = {"SEMAPHORE_METRICS_PORT": 0, "SEMAPHORE_METRICS_HOST": "0.0.0.0"}
    for_others = Crawl(server, Request(site.url("/slow/2")), **ports)
    url_for_others = (await address(caplog, 1)).replace("0.0.0.0", HOST)
    for name in ("evil.example", "127.0.0.1.evil.example"):
        no_name = f"these metrics are for names of this machine, not for {name!r}\n"
        assert await status_for(url, name) == (403, no_name)
        assert (await status_for(url_for_others, name))[0] == 403
    assert (await status_for(url, "node:9410"))[0] == 403
    assert (await status_for(url_for_others, "node:9410"))[0] == 200
    status, text = await status_for(url, f"localhost:{port_of(url)}")
    assert status == 200
    assert "semaphore_permits_held" in text
    site.let_go()
    await here.finished()
    await for_others.gave_back(1, site)
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warnings) == 2  # one a crawl
    assert "a visitor asked for 'evil.example', which is no name of this machine" in warnings[0]


# Settings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        *(("SEMAPHORE_METRICS_PORT", port, "a port") for port in (-1, "x", 70000, 1.5, True, [1])),
        ("SEMAPHORE_METRICS_HOST", 1, "an address"),
    ],
)
def test_what_is_no_port_or_host_is_refused(name: str, value: object, allowed: str) -> None:
    with pytest.raises(SettingsError, match=rf"{name} = .*: allowed is {allowed}"):
        SemaphoreSettings.read(Settings({name: value}))


@asyncio_test
async def test_without_the_package_the_error_says_what_to_install(
    server: RedisServer, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, Metrics.__module__)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    crawl = Crawl(server, Request(site.url("/page/")), SEMAPHORE_METRICS_PORT=0)
    with pytest.raises(SettingsError, match=r"pip install 'scrapy-semaphore\[metrics\]'"):
        await crawl.finished()
    assert site.arrivals == []
