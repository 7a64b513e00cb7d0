"""No call holds the server for long, however many nodes there are at its sites."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Self

import pytest

from semaphore_middleware.core.protocol import Reply
from semaphore_middleware.core.records import OF_KEYS
from semaphore_middleware.link.scripts import run_scripts
from semaphore_middleware.link.text import encoded
from semaphore_middleware.model.feedback import FeedbackSummary
from semaphore_middleware.operators.scripts import EVICT, INSPECT
from tests.support.nodes import KEYS, Caller, Outside
from tests.support.server_time import Reading
from tests.support.servers import RedisServer

NODES, SITES = 1000, 100
MOST_S = 0.05  # of the server's processor time, for a call
CALLS = 5  # of the same kind: what a call leaves, the next ones do
ROOM = 10**6  # permits

COPY = """
local NODES, JOBS = tonumber(ARGV[1]), tonumber(ARGV[2])
local at = cjson.decode(ARGV[3])
for i = 1, #KEYS, 2 do
  local key, queue = KEYS[i], KEYS[i + 1]
  local state, entry = unpack(redis.call('HMGET', key, 'state', 'node:a'))
  state, entry = { cmsgpack.unpack(state) }, { cmsgpack.unpack(entry) }
  local waits = redis.call('EXISTS', queue) == 1
  for number = 1, NODES - 1 do
    entry[#entry] = JOBS > 1 and 'job' .. number % JOBS or entry[#entry]
    redis.call('HSET', key, 'node:' .. number, cmsgpack.pack(unpack(entry)))
    if waits then redis.call('ZADD', queue, number, number .. '\\0' .. entry[#entry]) end
  end
  for _, place in ipairs(at) do
    state[place] = state[place] * NODES
  end
  if JOBS > 1 then state[#state] = false end
  redis.call('HSET', key, 'state', cmsgpack.pack(unpack(state)))
end
"""
"""Gives other nodes the entries that the node "a" has, and adds them to the totals."""


class Fleet:
    """One node that calls, among many others at its sites."""

    def __init__(self, server: RedisServer, caller: Caller, sites: int) -> None:
        self.client: Any = server.client()
        self.caller = caller
        self.sites = [f"{number}.test" for number in range(sites)]

    @classmethod
    async def at(cls, server: RedisServer, sites: int = SITES) -> Self:
        return cls(server, await Caller.join(server, "a"), sites)

    def grow(self, jobs: int = 1) -> None:
        """Let the other nodes have at each site what the one has."""
        names = OF_KEYS["state"].names
        totals = [names.index(name) + 1 for name in ("held", "waiting", "suspended", "unstarted")]
        keys = [key for site in self.sites for key in KEYS.of(site)]
        self.client.eval(COPY, len(keys), *keys, NODES, jobs, str(totals))

    async def send(
        self,
        take: int = 0,
        give: int = 0,
        limit: int = ROOM,
        feedback: FeedbackSummary | None = None,
    ) -> list[Reply]:
        """One call with an update for each site."""
        updates = []
        for site in self.sites:
            book = self.caller.book(site)
            book.requested += take
            book.returned += give
            updates.append(self.caller.next_update(site, limit, feedback=feedback))
        replies = await self.caller.send(*updates)
        assert replies is not None
        self.caller.apply(*replies)
        return replies

    def end_leases(self) -> None:
        """Let them be over, except that of the node that calls."""
        self.client.hset(KEYS.epoch, "clock", 2**52)

    async def operate(self, *calls: Any) -> None:
        async with self.caller.admin.connected() as connection:
            await run_scripts(connection, calls)

    async def seconds(self, call: Callable[[], Awaitable[object]]) -> float:
        """Of the server's processor time for a call: the mean of some, one after the other."""
        before = Reading.now(self.client)
        for _ in range(CALLS):
            await call()
        return (Reading.now(self.client) - before).seconds / CALLS


FAILED = FeedbackSummary(failed=1)
ANSWERS = {
    "ordinary": None,
    "failed": FAILED,
    "refused": FeedbackSummary(refused=1, status=403),
    "metered": FeedbackSummary(refused=1, metered=1, status=429),
}


@pytest.mark.parametrize("answer", ANSWERS)
async def test_of_answers(server: RedisServer, answer: str) -> None:
    fleet = await Fleet.at(server)
    await fleet.send(take=CALLS + 1)
    fleet.grow()
    feedback = ANSWERS[answer]
    assert await fleet.seconds(lambda: fleet.send(give=1, feedback=feedback)) < MOST_S


async def test_of_jobs(server: RedisServer) -> None:
    """Each node has a job of its own."""
    fleet = await Fleet.at(server)
    await fleet.send(take=1)
    fleet.grow(jobs=NODES)
    assert await fleet.seconds(fleet.send) < MOST_S


async def test_of_leases_that_are_over(server: RedisServer) -> None:
    fleet = await Fleet.at(server)
    await fleet.send(take=1)
    fleet.grow()
    fleet.end_leases()
    assert await fleet.seconds(fleet.send) < MOST_S


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("are_queues_lost", [False, True])
async def test_of_grants(server: RedisServer, jobs: int, are_queues_lost: bool) -> None:
    fleet = await Fleet.at(server)
    await fleet.send(take=2, limit=1)
    fleet.grow(jobs)
    if are_queues_lost:
        fleet.client.delete(*(KEYS.of(site)[1] for site in fleet.sites))
    await fleet.caller.admin.configure("*.test", ROOM)
    assert await fleet.seconds(lambda: fleet.send(limit=1)) < MOST_S


@pytest.mark.parametrize("script", [INSPECT, EVICT], ids=lambda script: str(script.name))
async def test_of_operators(server: RedisServer, script: Any) -> None:
    fleet = await Fleet.at(server)
    await fleet.send(take=2, limit=1)
    fleet.grow()
    node = b"" if script is INSPECT else encoded("1")
    call = fleet.caller.admin._pack(script, fleet.sites, node)
    assert await fleet.seconds(lambda: fleet.operate(call)) < MOST_S


# What a call leaves to the next ones -----------------------------------------------------------


async def test_entries_are_closed_at_one_site_after_the_other(server: RedisServer) -> None:
    fleet = await Fleet.at(server, sites=3)
    await fleet.send(take=1)
    fleet.grow()
    fleet.end_leases()
    held = [[reply.held for reply in await fleet.send()] for _ in range(3)]
    assert held == [[1, NODES, NODES], [1, 1, NODES], [1, 1, 1]]


async def test_the_first_is_notified_of_what_is_left(server: RedisServer, outside: Outside) -> None:
    """Of permits that are free, and of leases that are over."""
    fleet = await Fleet.at(server, sites=2)
    await fleet.send(take=2, limit=1)
    fleet.grow()
    await fleet.caller.admin.configure("*.test", ROOM)
    outside.notified()
    await fleet.send(limit=1)
    assert [text for _, text in outside.notified() if text.startswith("retry")] == [
        f"retry 0 {site}" for site in fleet.sites
    ]
