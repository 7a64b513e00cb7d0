"""The metrics of a node: their values, their labels, and their address."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request

from semaphore_middleware import FairSemaphore
from semaphore_middleware.console import node_metrics as metrics
from semaphore_middleware.core.observer import ProcessStalled, RoundTrip, UpdateRefused
from semaphore_middleware.scrapy.crawl import crawl_of
from tests.console.scrapes import (
    HOST,
    address,
    addresses,
    is_free,
    port_of,
    scrape,
    visit,
)
from tests.support.crawls import ADD_ON, Crawl, Log, Patch, pages, scrapy, waiting
from tests.support.nodes import Recorder, eventually
from tests.support.servers import RedisServer, free_port
from tests.support.site import Site
from tests.support.times import TIMEOUT_S
from tests.support.visits import Visits


class InTurn(Visits):
    """Makes a request only after as many responses as its `meta["after"]` says."""

    async def start(self) -> AsyncIterator[Request]:
        for request in self.requests:
            assert isinstance(request, Request)
            await eventually(lambda: len(self.responses) >= request.meta.get("after", 0))  # noqa: B023
            yield request


@pytest.fixture(autouse=True)
def lines(caplog: Log) -> None:
    caplog.set_level(logging.INFO)


async def test_what_they_say(server: RedisServer, site: Site, caplog: Log) -> None:
    ours: dict[str, Any] = {"SEMAPHORE_METRICS": 0, "SEMAPHORE_NODE": "here"}
    crawl = Crawl(server, *pages(site, 4, "/slow/"), limit=2, **ours)
    url = await address(caplog)
    await site.until(lambda: site.now == 2)
    await eventually(lambda: waiting(server) == 2)
    seen = await scrape(url)
    [node] = [dict(labels)["node"] for name, labels in seen.samples if name.endswith("_info")]
    assert node.startswith("here-")
    assert seen.waits(HOST) == 2
    assert seen.get("scrapy_semaphore_wait_seconds_bucket", scope=HOST, le="600.0") == 2
    assert seen["scrapy_semaphore_server_round_trip_seconds_count"]
    status, kind, text = await visit(url, Accept="application/openmetrics-text")
    assert (status, kind.split(";")[0]) == (200, "application/openmetrics-text")
    assert text.endswith("# EOF\n")
    status, kind, text = await visit(f"{url}?any")
    assert (status, kind.split(";")[0]) == (200, "text/plain")
    assert "_created" not in text
    assert (await visit(url, method="POST"))[0] == 405
    await crawl.gave_back(4, site)
    stats = crawl.crawler.stats.get_stats()
    ours = {name: stats[name] for name in stats if name.startswith("semaphore/")}
    assert (ours["semaphore/held_max"], ours["semaphore/waited"]) == (2, 2)
    assert 0 < ours["semaphore/wait_seconds_max"] < ours["semaphore/wait_seconds"]
    for name in ("acquired", "waited", "wait_seconds"):
        assert ours[f"semaphore/scope/{HOST}/{name}"] == ours[f"semaphore/{name}"]


async def test_they_agree_with_the_stats(server: RedisServer, site: Site, caplog: Log) -> None:
    last = Request(site.url("/slow/last"), priority=-1)
    crawl = Crawl(server, *pages(site, 30), last, limit=2, SEMAPHORE_METRICS=0)
    await eventually(lambda: site.now == 1 and len(crawl.spider.responses) == 30)
    seen = await scrape(await address(caplog))
    assert seen.waits(HOST) == 31
    await crawl.gave_back(31, site)
    waited = seen.get("scrapy_semaphore_wait_seconds_sum", scope=HOST)
    assert waited is not None
    assert waited >= crawl.stat("semaphore/wait_seconds") > 0
    reused = seen.get("scrapy_semaphore_permits_reused_total", scope=HOST)
    assert reused == crawl.stat("semaphore/reused") > 0


async def test_what_goes_wrong_is_counted(server: RedisServer, site: Site, caplog: Log) -> None:
    site.refusals = 1
    requests = [Request(site.url(f"/slow/{n}"), meta={"max_retry_times": 0}) for n in range(2)]
    requests.append(Request(site.url("/busy/", "localhost")))
    # Long even for a busy machine: only one request must wait for longer.
    brief: dict[str, Any] = {"SEMAPHORE_ACQUIRE_TIMEOUT": 2.0}
    crawl = Crawl(server, *requests, SEMAPHORE_METRICS=0, **brief)
    url = await address(caplog)
    await site.until(lambda: site.arrivals.count("/busy/") == 2 and site.now == 1)
    await eventually(lambda: len(crawl.spider.failures) == 1 and len(crawl.spider.responses) == 1)
    with server.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
    crawl.crawler.engine.crawl(Request(site.url("/page/", "localhost")))  # a call notices it
    await eventually(
        lambda: crawl.stat("semaphore/reconnects") and len(crawl.spider.responses) == 2
    )
    semaphore = crawl_of(crawl.crawler).semaphore
    semaphore.emit(UpdateRefused)
    semaphore.emit(ProcessStalled, 2.5)
    seen = await scrape(url)
    assert seen["scrapy_semaphore_loop_stall_seconds_total"] == 2.5
    once = ("reconnects", "refused_updates", "timeouts", "backoffs")
    for name in (*once, "permits_lost", "store_losses"):
        assert seen[f"scrapy_semaphore_{name}_total"] == (name in once), name
    assert [seen.waits(scope) for scope in (HOST, "localhost")] == [1, 3]
    site.let_go()
    await crawl.finished()
    assert (crawl.stat("semaphore/stalls"), crawl.stat("semaphore/loop_stalls")) == (1, 2.5)
    for name in (*once, "lost", "store_losses"):
        assert crawl.stat(f"semaphore/{name}") == (name in once), name


async def test_further_scopes_are_counted_together_until_they_prove_busy(
    server: RedisServer, site: Site, caplog: Log, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(metrics, "FIRST_NAMED_SCOPES", 2)
    monkeypatch.setattr(metrics, "NAMED_SCOPES_MAX", 3)
    monkeypatch.setattr(metrics, "BUSY_SCOPE_PERMITS", 4)
    requests = [
        Request(site.url(f"/page/{n}"), meta={"semaphore_scope": scope, "after": n})
        for n, scope in enumerate(["a", "b", *"cd" * 5])
    ]
    last = Request(site.url("/slow/"), meta={"semaphore_scope": "last", "after": 12})
    crawl = Crawl(server, *requests, last, spider=InTurn, SEMAPHORE_METRICS=0)
    await site.until(lambda: site.now == 1 and "/slow/" in site.arrivals)
    seen = await scrape(await address(caplog))
    # Three of c came before it was busy, and all of d after the last name was given.
    assert seen.scopes("scrapy_semaphore_wait_seconds_count") == {"a", "b", "c", "(others)"}
    assert [seen.waits(scope) for scope in ("a", "b", "c", "(others)")] == [1, 1, 2, 9]
    await crawl.gave_back(13, site)


async def test_any_scope_has_a_name(server: RedisServer, site: Site, caplog: Log) -> None:
    scopes = ["\ud800", 'a"\\{}', "long" * 100, "(others)", "кино"]
    requests = [
        Request(site.url(f"/slow/{n}"), meta={"semaphore_scope": scope})
        for n, scope in enumerate(scopes)
    ]
    crawl = Crawl(server, *requests, SEMAPHORE_METRICS=0)
    await site.until(lambda: site.now == len(scopes))
    seen = await scrape(await address(caplog))
    names = [metrics.scope_label(scope) for scope in scopes]
    assert [seen.waits(name) for name in names] == [1] * len(scopes)
    assert max(map(len, names)) <= metrics.LABEL_CHARS_MAX + 9
    site.let_go()
    await crawl.finished()


async def test_a_program_can_hear_how_long_the_server_takes(server: RedisServer) -> None:
    recorder = Recorder()
    async with FairSemaphore(server.url, observers=[recorder]) as semaphore:
        await semaphore.acquire("s", 1)
        seconds = [event.seconds for event in recorder.events if isinstance(event, RoundTrip)]
    assert len(seconds) == 1
    assert 0 < seconds[0] < TIMEOUT_S


# Where they are, and that no problem there stops a crawl ------------------------------------------


async def test_without_a_reactor(server: RedisServer, site: Site, tmp_path: Path) -> None:
    ours = {**ADD_ON, "SEMAPHORE_REDIS_URL": server.url, "SEMAPHORE_METRICS": 0}
    options = ("-s", "TWISTED_REACTOR_ENABLED=False")
    async with scrapy(tmp_path, Request(site.url("/slow/")), options=options, **ours) as crawl:
        await site.until(lambda: site.now == 1)
        [url] = addresses(crawl.log)
        assert (await scrape(url)).waits(HOST) == 1
        site.let_go()
        assert await crawl.ended() == 0
        assert crawl.errors == []


async def test_two_crawls_want_one_port(server: RedisServer, site: Site, caplog: Log) -> None:
    port = free_port()
    first = Crawl(server, Request(site.url("/slow/1")), SEMAPHORE_METRICS=port)
    url = await address(caplog)
    assert url == f"http://127.0.0.1:{port}/metrics"
    await site.until(lambda: site.now == 1)
    second = Crawl(server, Request(site.url("/slow/2")), SEMAPHORE_METRICS=port)
    await eventually(lambda: waiting(server) == 1)
    assert (await scrape(url)).waits(HOST) == 1
    [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
    told = warning.getMessage()
    assert f"SEMAPHORE_METRICS = '127.0.0.1:{port}': cannot listen there" in told
    assert "This node goes on without metrics" in told
    site.let_go()
    await first.finished()
    await second.gave_back(1, site)


async def test_the_port_is_free_then(server: RedisServer, site: Site, caplog: Log) -> None:
    crawl = Crawl(server, Request(site.url("/slow/")), SEMAPHORE_METRICS=free_port())
    url = await address(caplog)
    _, writer = await asyncio.open_connection(HOST, port_of(url))
    writer.write(b"GET /metrics HTTP/1.1\r\n")  # and it never ends
    assert not is_free(url)
    await site.until(lambda: site.now == 1)
    await crawl.gave_back(1, site)
    assert is_free(url)
    writer.close()


async def test_a_crawl_that_cannot_begin_leaves_no_port_open(site: Site, caplog: Log) -> None:
    with RedisServer("--requirepass", "secret") as refusing:
        await Crawl(refusing, Request(site.url("/page/")), SEMAPHORE_METRICS=free_port()).finished()
        assert is_free(await address(caplog))


async def test_a_node_without_a_server(server: RedisServer, site: Site, caplog: Log) -> None:
    with server.frozen():
        crawl = Crawl(server, Request(site.url("/page/")), SEMAPHORE_METRICS=0)
        assert (await scrape(await address(caplog)))["scrapy_semaphore_reconnects_total"] == 0
    await crawl.gave_back(1, site)


async def test_without_the_package(
    server: RedisServer, site: Site, monkeypatch: Patch, caplog: Log
) -> None:
    monkeypatch.delitem(sys.modules, metrics.__name__)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    crawl = Crawl(server, Request(site.url("/page/")), SEMAPHORE_METRICS=0)
    await crawl.finished()
    assert "metrics: this needs prometheus_client, which is not installed" in caplog.text
    assert "pip install 'scrapy-semaphore[metrics]'" in caplog.text
    assert site.arrivals == []
