"""The metrics of all nodes, at the page's server."""

from __future__ import annotations

import asyncio
import math

import pytest

from semaphore_middleware import FairSemaphore
from semaphore_middleware.console import node_metrics as metrics
from semaphore_middleware.console import poller
from tests.console.pages import Served, serving, survey_at_each_visit
from tests.console.scrapes import Scrape, scrape
from tests.support.nodes import eventually
from tests.support.servers import RedisServer

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
        FairSemaphore(server.url, node="news-1") as a,
        FairSemaphore(server.url, node="shop-1", job="shop") as b,
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


async def test_counts_go_on_when_the_server_has_forgotten_them(
    server: RedisServer, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(metrics, "FIRST_NAMED_SCOPES", 1)
    monkeypatch.setattr(metrics, "BUSY_SCOPE_PERMITS", 9)
    async with serving(server) as page, FairSemaphore(server.url, reuse_window=0, lease=3) as node:
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


async def test_nothing_old_is_told_while_the_server_is_away(
    server: RedisServer, monkeypatch: Patch
) -> None:
    async with serving(server) as page, FairSemaphore(server.url) as node:
        async with node.permit("a", 2):
            assert (await seen_at(page)).of("a")[0] == 1
        monkeypatch.setattr(poller, "LATE_AFTER_S", 0.1)
        monkeypatch.setattr(poller, "LATE_FACTOR", 0.0)
        with server.frozen():
            seen = await seen_at(page)
    assert [(name, up) for (name, _), up in seen.samples.items()] == [
        ("scrapy_semaphore_server_up", 0)
    ]
