"""Where metrics are served, and that nothing of it is in a crawl's way."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

import pytest
from scrapy import Request

from semaphore_middleware import SettingsError
from semaphore_middleware.telemetry.prometheus import Metrics
from tests.support.crawls import ADD_ON, By, Crawl, Log, Patch, both, scrapy, waiting
from tests.support.nodes import eventually
from tests.support.servers import RedisServer, free_port
from tests.support.site import Site
from tests.telemetry.scrapes import HOST, address, addresses_in, is_free, port_of, scrape


@pytest.fixture(autouse=True)
def lines(caplog: Log) -> None:
    caplog.set_level(logging.INFO)


async def test_without_a_reactor(server: RedisServer, site: Site, tmp_path: Path) -> None:
    ours = {**ADD_ON, "SEMAPHORE_REDIS_URL": server.url, "SEMAPHORE_METRICS_PORT": 0}
    options = ("-s", "TWISTED_REACTOR_ENABLED=False")
    async with scrapy(tmp_path, Request(site.url("/slow/")), options=options, **ours) as crawl:
        await site.until(lambda: site.now == 1)
        [url] = addresses_in(crawl.log)
        assert (await scrape(url)).of(HOST) == (1, 0, 1)
        site.let_go()
        assert await crawl.ended() == 0
        assert crawl.errors == []
    assert is_free(url)


async def test_two_crawls_want_one_port(server: RedisServer, site: Site, caplog: Log) -> None:
    port = free_port()
    first = Crawl(server, Request(site.url("/slow/1")), SEMAPHORE_METRICS_PORT=port)
    url = await address(caplog)
    assert url == f"http://127.0.0.1:{port}/metrics"
    await site.until(lambda: site.now == 1)
    second = Crawl(server, Request(site.url("/slow/2")), SEMAPHORE_METRICS_PORT=port)
    await eventually(lambda: waiting(server) == 1)
    assert (await scrape(url)).of(HOST) == (1, 0, 1)
    [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
    told = warning.getMessage()
    assert f"SEMAPHORE_METRICS_PORT = {port}: cannot listen on 127.0.0.1" in told
    assert "The crawl goes on without metrics" in told
    site.let_go()
    await first.finished()
    await second.gave_back(1, site)


@both
async def test_the_port_is_free_then(server: RedisServer, site: Site, caplog: Log, by: By) -> None:
    crawl = Crawl(server, Request(site.url("/slow/")), by=by, SEMAPHORE_METRICS_PORT=0)
    url = await address(caplog)
    _, writer = await asyncio.open_connection(HOST, port_of(url))
    writer.write(b"GET /metrics HTTP/1.1\r\n")  # and it never ends
    assert not is_free(url)
    await site.until(lambda: site.now == 1)
    await crawl.gave_back(1, site)
    assert is_free(url)
    writer.close()


async def test_a_crawl_that_cannot_begin_leaves_no_port_open(site: Site, caplog: Log) -> None:
    refusing = RedisServer("--requirepass", "secret").start()
    try:
        crawl = Crawl(refusing, Request(site.url("/page/")), SEMAPHORE_METRICS_PORT=0)
        await crawl.finished()
        assert is_free(await address(caplog))
    finally:
        refusing.remove()


async def test_a_node_without_a_server(server: RedisServer, site: Site, caplog: Log) -> None:
    server.freeze()
    try:
        crawl = Crawl(server, Request(site.url("/page/")), SEMAPHORE_METRICS_PORT=0)
        assert (await scrape(await address(caplog)))["scrapy_semaphore_reconnects_total"] == 0
    finally:
        server.thaw()
    await crawl.gave_back(1, site)


async def test_without_the_package(server: RedisServer, site: Site, monkeypatch: Patch) -> None:
    monkeypatch.delitem(sys.modules, Metrics.__module__)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    crawl = Crawl(server, Request(site.url("/page/")), SEMAPHORE_METRICS_PORT=0)
    with pytest.raises(SettingsError, match=r"pip install 'scrapy-semaphore\[metrics\]'"):
        await crawl.finished()
    assert site.arrivals == []
