"""Where metrics are served, and that nothing of it is in a crawl's way."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from scrapy import Request

from semaphore_middleware import SettingsError
from semaphore_middleware.scrapy.throttler import throttler_of
from semaphore_middleware.telemetry.prometheus import Metrics
from tests.scrapy.test_exits_loops import each_loop
from tests.support.crawls import ADD_ON, Crawl, asyncio_test, both, scrapy, until, waiting
from tests.support.scrapes import HOST, address, addresses, addresses_in, is_free, port_of, scrape
from tests.support.servers import RedisServer, free_port
from tests.support.site import Site


@pytest.fixture(autouse=True)
def lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


# The port ---------------------------------------------------------------------------------------


@both
@asyncio_test
async def test_without_the_setting_nobody_listens_and_nothing_is_measured(
    server: RedisServer, site: Site, caplog: pytest.LogCaptureFixture, by: Mapping[str, Any]
) -> None:
    crawl = Crawl(server, Request(site.url("/slow/")), by=by)
    await site.until(lambda: site.now == 1)
    observers = throttler_of(crawl.crawler)._semaphore._observers
    assert not any(isinstance(observer, Metrics) for observer in observers)
    assert addresses(caplog) == []
    site.let_go()
    await crawl.gave_back(1, site)


def test_without_the_setting_the_package_is_not_loaded() -> None:
    script = (
        "import sys, semaphore_middleware.scrapy.throttler\n"
        "print('prometheus_client' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


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


@both
@asyncio_test
async def test_a_port_that_is_taken_ends_no_crawl(
    server: RedisServer, site: Site, caplog: pytest.LogCaptureFixture, by: Mapping[str, Any]
) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        crawl = Crawl(server, Request(site.url("/page/")), by=by, SEMAPHORE_METRICS_PORT=port)
        await crawl.gave_back(1, site)
    [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert f"SEMAPHORE_METRICS_PORT = {port}: cannot listen on 127.0.0.1" in warning.getMessage()


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
    assert "The crawl goes on without metrics" in caplog.text
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
    site.let_go()
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


@both
@asyncio_test
async def test_a_strange_name_that_leads_here_gets_nothing_and_is_logged_once(
    server: RedisServer, site: Site, caplog: pytest.LogCaptureFixture, by: Mapping[str, Any]
) -> None:
    crawl = Crawl(server, Request(site.url("/slow/")), by=by, SEMAPHORE_METRICS_PORT=0)
    url = await address(caplog)
    for name in ("evil.example", "127.0.0.1.evil.example"):
        status, text = await status_for(url, name)
        assert (status, text) == (
            403,
            f"these metrics are for names of this machine, not for {name!r}\n",
        )
    status, text = await status_for(url, f"localhost:{port_of(url)}")
    assert status == 200
    assert "semaphore_permits_held" in text
    site.let_go()
    await crawl.gave_back(1, site)
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "a visitor asked for 'evil.example', which is no name of this machine" in warnings[0]


@asyncio_test
async def test_for_other_machines_services_and_addresses_are_right_names(
    server: RedisServer, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    listening: dict[str, Any] = {"SEMAPHORE_METRICS_PORT": 0, "SEMAPHORE_METRICS_HOST": "0.0.0.0"}
    crawl = Crawl(server, Request(site.url("/slow/")), **listening)
    url = (await address(caplog)).replace("0.0.0.0", HOST)
    for name in ("node:9410", "172.18.0.3:9410", "crawler-1.example.internal:9410"):
        assert (await status_for(url, name))[0] == 200
    assert (await status_for(url, "evil.example:9410"))[0] == 403
    site.let_go()
    await crawl.gave_back(1, site)


# Settings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("port", [-1, "x", 70000, 1.5, True, [9410]])
@both
@asyncio_test
async def test_what_is_no_port_stops_the_crawl(
    server: RedisServer, site: Site, by: Mapping[str, Any], port: object
) -> None:
    crawl = Crawl(server, Request(site.url("/page/")), by=by, SEMAPHORE_METRICS_PORT=port)
    with pytest.raises(SettingsError, match=r"SEMAPHORE_METRICS_PORT = .*: allowed is a port"):
        await crawl.finished()
    assert site.arrivals == []


@asyncio_test
async def test_what_is_no_host_stops_the_crawl(server: RedisServer, site: Site) -> None:
    crawl = Crawl(server, Request(site.url("/page/")), SEMAPHORE_METRICS_HOST=1)
    with pytest.raises(SettingsError, match="SEMAPHORE_METRICS_HOST = 1: allowed is an address"):
        await crawl.finished()


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
