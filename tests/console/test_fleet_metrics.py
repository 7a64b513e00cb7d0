"""The metrics of all nodes, at the page's server."""

from __future__ import annotations

import asyncio
import math

import pytest

from semaphore_middleware import FairSemaphore, ServerUnreachableError
from semaphore_middleware.console import node_metrics as metrics
from semaphore_middleware.console import poller
from semaphore_middleware.console import server as web
from semaphore_middleware.console.fleet_metrics import ClusterMetrics
from semaphore_middleware.operators.snapshot import Snapshot
from semaphore_middleware.shared_crawl.counts import Counts
from semaphore_middleware.shared_crawl.crawls import Crawls
from tests.console.pages import Served, serving, survey_at_each_visit
from tests.console.scrapes import Scrape, scrape
from tests.support.nodes import eventually
from tests.support.servers import RedisServer
from tests.support.shared_crawl import set_one_aside
from tests.support.times import ENDLESS_S

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def prompt(monkeypatch: Patch) -> None:
    survey_at_each_visit(monkeypatch)


async def seen_at(page: Served) -> Scrape:
    return await scrape(f"{page.url}metrics")


def value(seen: Scrape, name: str, **labels: str) -> float | None:
    return seen.get(f"scrapy_semaphore_{name}", **labels)


async def test_they_tell_of_all_nodes(server: RedisServer) -> None:
    async with (
        serving(server) as page,
        FairSemaphore(server.url, lease=ENDLESS_S, node="news-1") as a,
        FairSemaphore(server.url, lease=ENDLESS_S, node="shop-1", job="shop") as b,
    ):
        permits = [await a.acquire("a", 2), await b.acquire("a", 2), await b.acquire("b", 9)]
        async with a.permit("c", 1) as refusing:
            refusing.refused(retry_after=200)
        await eventually(lambda: server.members().get("c") is None)
        await page.admin.configure("b", {"concurrency": None})
        await page.admin.pause("d")
        waiting = [asyncio.ensure_future(one) for one in (a.acquire("a", 2), b.acquire("d", 1))]
        await eventually(lambda: server.members().keys() >= {"a", "d"})
        await eventually(lambda: server.members()["a"] == (2, 1))
        seen = await seen_at(page)
        assert seen.of("a")[:2] == (2, 1)
        assert value(seen, "limit", scope="a") == 2
        for scope, state in (("a", "full"), ("b", "open"), ("c", "backoff"), ("d", "paused")):
            assert value(seen, "state", scope=scope, state=state) == 1
        assert value(seen, "state", scope="d", state="idle") is None
        assert value(seen, "limit", scope="b") == math.inf
        assert (value(seen, "nodes"), value(seen, "server_up", prefix="semaphore")) == (2, 1)
        assert value(seen, "node_permits_held", node=b.node) == 2
        assert value(seen, "job_permits_held", scope="a", semaphore_job="shop") == 1
        assert 190 < (value(seen, "backoff_seconds", scope="c") or 0.0) <= 200
        for permit in permits:
            permit.release()
        for one in waiting:
            one.cancel()


async def test_a_visit_that_waits_for_crawls_counts_no_older_survey(
    server: RedisServer, monkeypatch: Patch
) -> None:
    noted: list[int] = []
    note, asked, let_go = ClusterMetrics.count_starts, asyncio.Event(), asyncio.Event()

    def note_too(self: ClusterMetrics, snapshot: Snapshot) -> None:
        note(self, snapshot)
        noted.append(sum(row.started for row in snapshot.scopes))

    async def survey(_: Crawls) -> dict[str, Counts]:
        asked.set()
        await let_go.wait()
        return {}

    monkeypatch.setattr(ClusterMetrics, "count_starts", note_too)
    monkeypatch.setattr(Crawls, "survey", survey)
    monkeypatch.setattr(web, "UNSEEN_INTERVAL_S", 0.01)
    async with serving(server) as page, FairSemaphore(server.url, turn=0, lease=3) as node:
        await node.acquire("a", 9)
        await eventually(lambda: 1 in noted)
        visit = asyncio.create_task(seen_at(page))
        await asked.wait()
        known = len(noted)
        await eventually(lambda: len(noted) > known + 1)
        await node.acquire("a", 9)
        await eventually(lambda: 2 in noted)
        let_go.set()
        assert value(await visit, "permits_granted_total", scope="a") == 2


async def test_counts_go_on_when_the_server_has_forgotten_them(
    server: RedisServer, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(metrics, "FIRST_NAMED_SCOPES", 1)
    monkeypatch.setattr(metrics, "BUSY_SCOPE_PERMITS", 9)
    async with serving(server) as page, FairSemaphore(server.url, turn=0, lease=3) as node:
        for granted in (1, 2):
            permit = await node.acquire("a", 2)
            while (of_a := (await seen_at(page)).of("a")) != (1, 0, granted):
                assert of_a == (1, 0, granted - 1), "its beginning is said later"
            permit.release()
            await eventually(lambda: server.members() == {})
            await seen_at(page)
        async with node.permit("b", 2), node.permit("c", 2):
            while (seen := await seen_at(page)).of("(others)")[2] != 2:
                pass
            assert seen.of("(others)") == (2, 0, 2)
            assert seen.scopes("scrapy_semaphore_limit") == set()


async def test_they_tell_of_shared_crawls(server: RedisServer, monkeypatch: Patch) -> None:
    async def fail(_: Crawls) -> dict[str, Counts]:
        raise ServerUnreachableError("no answer")

    await set_one_aside(server, "shop")
    async with serving(server) as page:
        assert value(await seen_at(page), "crawl_set_aside", crawl="shop") == 1
        monkeypatch.setattr(Crawls, "survey", fail)
        seen = await seen_at(page)
        assert value(seen, "server_up", prefix="semaphore") == 1
        assert value(seen, "crawl_set_aside", crawl="shop") is None, "it is old"


async def test_nothing_old_is_told_while_the_server_is_away(
    server: RedisServer, monkeypatch: Patch
) -> None:
    async with serving(server) as page, FairSemaphore(server.url, lease=ENDLESS_S) as node:
        async with node.permit("a", 2):
            assert (await seen_at(page)).of("a")[0] == 1
        monkeypatch.setattr(poller, "LATE_AFTER_S", 0.1)
        monkeypatch.setattr(poller, "LATE_FACTOR", 0.0)
        with server.frozen():
            seen = await seen_at(page)
    assert [(name, up) for (name, _), up in seen.samples.items()] == [
        ("scrapy_semaphore_server_up", 0)
    ]
