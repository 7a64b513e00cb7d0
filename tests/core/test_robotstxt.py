"""Sharing of robots.txt: one node asks the site, the others wait, and none waits for a dead one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from itertools import count
from typing import Any

import pytest

from semaphore_middleware import ClosedError, FairSemaphore
from semaphore_middleware.core import robotstxt
from semaphore_middleware.core.observer import RobotsTxtNotified
from semaphore_middleware.core.robotstxt import (
    MAX_SHARED_BYTES,
    Fetched,
    RobotsTxt,
    SharedRobotsTxt,
)
from semaphore_middleware.redis.location import Server
from tests.support.nodes import ENDLESS_S, KEYS, TIMEOUT_S, eventually
from tests.support.servers import RedisServer

SITE = "https://example.com"
DAY_S = 86400.0


def fetched(text: bytes = b"Disallow: /x", valid: float = DAY_S, shared: bool = True) -> Fetched:
    return Fetched(RobotsTxt(text, 200), valid, shared)


async def in_time(reading: asyncio.Task[Fetched]) -> Fetched:
    """What is read; in these tests nothing but news, or a short lease, ends a wait."""
    await asyncio.wait([reading], timeout=TIMEOUT_S)
    assert reading.done(), "nobody has woken it"
    return reading.result()


class Node:
    """A node that reads robots.txt; the test answers for the site."""

    def __init__(self, server: RedisServer, lease: float) -> None:
        self.shared = SharedRobotsTxt(Server(server.url, 5.0), KEYS, lease)
        self.semaphore = FairSemaphore(
            server.url, lease=lease, recovery_wait=0.0, observers=[self.shared]
        )
        self.asked: list[RobotsTxt | None] = []
        """What was known before, for each time that it asks the site."""
        self.answer: asyncio.Future[Fetched] = asyncio.get_running_loop().create_future()
        self.waits = 0
        """How many of its calls wait for another node."""

    def read(self, origin: str = SITE) -> asyncio.Task[Fetched]:
        return asyncio.create_task(self.shared.get(origin, self._fetch, self._waiting))

    async def _fetch(self, before: RobotsTxt | None) -> Fetched:
        self.asked.append(before)
        return await asyncio.shield(self.answer)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self.waits += 1
        try:
            yield
        finally:
            self.waits -= 1

    async def reading(self) -> asyncio.Task[Fetched]:
        """It asks the site, and is not answered yet; or it waits for another node."""
        reading = self.read()
        await eventually(lambda: self.asked or self.waits)
        return reading


@asynccontextmanager
async def nodes(
    server: RedisServer, many: int = 2, lease: float = ENDLESS_S
) -> AsyncIterator[list[Node]]:
    async with AsyncExitStack() as stack:
        opened = [Node(server, lease) for _ in range(many)]
        for node in opened:
            await stack.enter_async_context(node.semaphore)
        yield opened


async def test_one_node_asks_the_site_and_wakes_the_others(server: RedisServer) -> None:
    async with nodes(server, 3) as (a, b, c):
        first = await a.reading()
        others = [await b.reading(), await c.reading()]
        a.answer.set_result(fetched())
        assert not (await first).by_another
        for other in others:  # the lease is endless: nothing but the news wakes them
            known = await in_time(other)
            assert known.by_another
            assert known.robotstxt == fetched().robotstxt
            assert DAY_S - 60 < known.valid <= DAY_S
        assert (await a.read()).by_another
        assert (a.asked, b.asked, c.asked) == ([None], [], [])


@pytest.mark.parametrize("how", ["failed", "cancelled"])
async def test_if_the_fetch_fails_another_node_asks(server: RedisServer, how: str) -> None:
    async with nodes(server) as (a, b):
        first, other = await a.reading(), await b.reading()
        b.answer.set_result(fetched())
        if how == "failed":
            a.answer.set_exception(RuntimeError("our own"))
            with pytest.raises(RuntimeError, match="our own"):
                await first
        else:
            first.cancel()
        assert not (await in_time(other)).by_another
        assert len(b.asked) == 1


async def test_a_node_is_waited_for_as_long_as_it_lives_and_one_lease_more(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes(server, lease=0.3) as (a, b):
        reach, has_lived, is_over = a.shared._call, asyncio.Event(), asyncio.Event()
        calls: list[str] = []

        async def call_until_it_dies(script: str, *more: Any) -> Any:
            calls.append(script)
            if len(calls) > 7:  # it has renewed for two leases
                has_lived.set()
                await is_over.wait()
            return await reach(script, *more)

        monkeypatch.setattr(a.shared, "_call", call_until_it_dies)
        first, other = await a.reading(), await b.reading()
        b.answer.set_result(fetched())
        await has_lived.wait()
        assert set(calls) == {"ask_robotstxt"}
        assert not (await in_time(other)).by_another
        is_over.set()
        first.cancel()


async def test_what_is_too_old_or_from_a_cache_is_asked_for_again(server: RedisServer) -> None:
    async with nodes(server, 3) as (a, b, c):
        c.answer.set_result(fetched(b"old", shared=False))
        assert (await c.read()).robotstxt.text == b"old"
        a.answer.set_result(fetched(valid=0.02))
        assert not (await a.read()).by_another
        b.answer.set_result(fetched(b"new"))

        async def is_new() -> bool:
            return (await b.read()).robotstxt.text == b"new"

        await eventually(is_new)
        assert b.asked == [fetched().robotstxt]
        assert (await a.read()).robotstxt.text == b"new"


async def test_a_file_that_is_too_large_is_fetched_by_each(server: RedisServer) -> None:
    async with nodes(server) as (a, b):
        for node in (a, b):
            node.answer.set_result(fetched(random.Random(7).randbytes(MAX_SHARED_BYTES)))
            assert not (await node.read()).by_another


async def test_what_the_server_learns_late_is_valid_for_no_longer(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes(server) as (a, b):
        reading = await a.reading()
        days = count(step=DAY_S)
        monkeypatch.setattr(robotstxt, "_now", lambda: next(days))  # each look a day later
        a.answer.set_result(fetched(valid=DAY_S))
        await reading
        b.answer.set_result(fetched(b"new"))
        assert (await in_time(b.read())).robotstxt.text == b"new"


async def test_whoever_is_subscribed_anew_asks_again(server: RedisServer) -> None:
    async with nodes(server) as (a, b):
        first, other = await a.reading(), await b.reading()
        hear = b.shared.on_event
        b.shared.on_event = lambda event: (  # type: ignore[method-assign]  # the news is lost
            None if isinstance(event, RobotsTxtNotified) else hear(event)
        )
        a.answer.set_result(fetched())
        await first
        with server.client() as client:
            client.client_kill_filter(_type="pubsub")
        assert (await in_time(other)).by_another


async def test_while_the_server_is_away_nobody_asks_the_site_and_what_was_asked_counts(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with nodes(server, 1) as (a,):
        server.kill()
        reading = a.read()
        await eventually(lambda: caplog.records or a.asked)
        await asyncio.sleep(0)
        assert a.asked == []
        assert "whose robots.txt this node does not know wait" in caplog.text
        server.restart()
        reading.cancel()
        reading = await a.reading()
        server.kill()
        a.answer.set_result(fetched())
        assert (await reading).robotstxt == fetched().robotstxt
        server.restart()


async def test_nobody_waits_for_others_past_the_end(server: RedisServer) -> None:
    async with nodes(server) as (a, b):
        first, other = await a.reading(), await b.reading()
        b.shared.drain()
        with pytest.raises(ClosedError):
            await in_time(other)
        with pytest.raises(ClosedError):
            await b.read("http://another.example")
        first.cancel()
        await asyncio.wait([first])
        await a.semaphore.close()
        async with nodes(server, 1) as (c,):  # which is not kept waiting: the lease is endless
            c.answer.set_result(fetched())
            assert not (await c.read()).by_another
            server.freeze()
            reading = c.read("http://yet.another.example")
            for _ in range(10):  # a spider may begin to close more than once
                await asyncio.sleep(0)
                c.shared.drain()
            with pytest.raises(ClosedError):
                await reading
            server.thaw()
