"""The server keeps what nodes did to each site, once, whatever is said twice, late or never."""

from __future__ import annotations

import asyncio
import time

from semaphore_middleware import FairSemaphore, Limit
from semaphore_middleware.core.admin import Admin
from semaphore_middleware.redis.protocol import Batch, Tally
from tests.support.nodes import ENDLESS_S, KEYS, Caller, eventually
from tests.support.servers import RedisServer

DAY_S = 86400.0
BODY = 1000  # bytes


async def test_a_site_s_history_is_what_all_nodes_did(server: RedisServer) -> None:
    limit = Limit(3)
    async with Admin(server.url, name="alice@desk") as admin:
        async with node(server) as a, node(server) as b:
            held = [await one.acquire("s", limit) for one in (a, a, b)]
            for permit, status in zip(held, (200, 301, 429), strict=True):
                permit.received(status, BODY)
            held[-1].refused(retry_after=5.0)
            for permit in held:
                permit.release()
            await admin.configure("s", 2)
        history = await admin.history("s", DAY_S)
    total = history.sum()
    assert (total.requests, total.most, total.limit, total.size) == (3, 3, 3, 3 * BODY)
    assert (total.ok, total.redirected, total.client_errors, total.refused) == (1, 1, 1, 1)
    assert 1 <= total.starts <= 3
    assert history.jobs == {"news": 3}
    (pause,) = history.pauses
    assert (pause.asked, pause.refused, pause.last_start) == (5.0, True, None)
    (change,) = history.changes
    assert change.rule == {"concurrency": 2, "by": "alice@desk"}
    assert history.ended == ()  # both nodes have said the last of what they did


async def test_a_request_that_begins_in_a_pause_is_in_the_history(server: RedisServer) -> None:
    async with node(server) as a, node(server) as b, Admin(server.url) as admin:
        held = await a.acquire("s", 2)
        late = await b.acquire_all([("s", 2)])
        held.refused(retry_after=60.0)
        held.release()
        await eventually(lambda: late.withdrawn)
        late.begin()
        late.release()
        await b.close()
        (pause,) = (await admin.history("s", DAY_S)).pauses
        assert pause.last_start is not None
        assert 0 < pause.last_start < 60


async def test_what_is_said_twice_counts_once(server: RedisServer) -> None:
    a = await Caller.join(server, "a", history=DAY_S)
    now = int(time.time() // 60)
    first, second = (Batch(n, now, [Tally(60 * now, n, scope="s")], n == 2) for n in (1, 2))
    for batch in (first, first, second, first, second):
        await a.store.note(a.connection, batch)
    history = await a.admin.history("s", DAY_S)
    assert [one.requests for one in history.minutes] == [3]


async def test_a_node_that_was_killed_is_named(server: RedisServer) -> None:
    a = await Caller.join(server, "a", history=DAY_S)
    await a.store.note(a.connection, Batch(1, 0, [], False))
    with server.client() as client:
        (spoke_ms,) = (score for _, score in client.zrange(KEYS.nodes, 0, -1, withscores=True))
        client.zadd(KEYS.nodes, {"a": spoke_ms - 300_000})
    assert [name for name, _ in (await a.admin.history("s", DAY_S)).ended] == ["a"]


async def test_without_a_history_nothing_is_kept(server: RedisServer) -> None:
    async with FairSemaphore(server.url, lease=ENDLESS_S, recovery_wait=0.0, history=0.0) as a:
        permit = await a.acquire("s", Limit(2, adaptive=True))
        permit.refused()
        permit.release()
    with server.client() as client:
        assert [key for key in client.scan_iter() if b":history" in key] == []


def node(server: RedisServer) -> FairSemaphore:
    return FairSemaphore(server.url, lease=ENDLESS_S, recovery_wait=0.0, job="news")


async def test_a_crawl_begins_with_the_limit_that_the_last_one_kept(server: RedisServer) -> None:
    site, limit = Crowded(takes=10), Limit(20, adaptive=True)
    async with node(server) as a:
        await asyncio.gather(*(site.visit(a, 20) for _ in range(20)))
    assert site.refused
    with server.client() as client:
        good = float(client.hget(b"%b:limit:s" % KEYS.history, "working"))
        client.delete(*KEYS.of("s"))  # as when ten minutes have passed
    assert 1 < good <= 10
    site.refused = 0
    async with node(server) as a:
        await site.visit(a, 1)
        async with a.permit("s", limit):
            assert a.limit_of("s") == max(1, int(0.8 * good))
        await asyncio.gather(*(site.visit(a, 20) for _ in range(20)))
    assert site.refused <= 2


class Crowded:
    """A site that refuses what is open beyond a number of requests."""

    def __init__(self, takes: int) -> None:
        self._takes = takes
        self._open = 0
        self.refused = 0

    async def visit(self, semaphore: FairSemaphore, times: int) -> None:
        for _ in range(times):
            async with semaphore.permit("s", Limit(20, adaptive=True)) as permit:
                self._open += 1
                if self._open > self._takes:
                    self.refused += 1
                    permit.refused(retry_after=0.01)
                else:
                    await asyncio.sleep(0.005)
                    permit.answered(0.005)
                self._open -= 1
