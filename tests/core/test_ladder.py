"""The semaphores of the literature, each with the races that the next step repairs.

They are those of Josiah L. Carlson, Redis in Action (Manning, 2013): chapter 6.3, in its order, and
11.2 for the one in Lua. This project's is the last step. The test sets the clients' time, and what
happens between two calls of a client: no step of a race is left to chance.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from redis.exceptions import LockError

from tests.support.nodes import Caller, Loop
from tests.support.servers import RedisServer

LIMIT, LEASE_S = 1, 10.0
NOW = 1000.0  # by a clock that is right


def nothing() -> None:
    """Between two calls."""


class Timestamps:
    """6.3.1: a sorted set of holders by their own clocks; the first `LIMIT` of them may go in."""

    def __init__(self, redis: Any, loop: Loop, scope: str, name: str, ahead_s: float = 0.0) -> None:
        self.redis, self.loop = redis, loop
        self.scope, self.name, self.ahead_s = scope, name, ahead_s

    def enter(self, now: float, meanwhile: Callable[[], object] = nothing) -> bool:
        """Try once; `meanwhile` happens before the last call. Returns whether it may go in."""
        now += self.ahead_s
        meanwhile()
        with self.redis.pipeline() as pipe:
            pipe.zremrangebyscore(self.scope, "-inf", now - LEASE_S)
            pipe.zadd(self.scope, {self.name: now})
            pipe.zrank(self.scope, self.name)
            *_, rank = pipe.execute()
        if rank >= LIMIT:
            self.leave()
        return bool(rank < LIMIT)

    def refresh(self, now: float) -> None:
        """Renew the lease, if there is a way to."""

    def leave(self) -> None:
        self.redis.zrem(self.scope, self.name)


class Counter(Timestamps):
    """6.3.2: a counter on the server decides who came first; the clocks only end leases."""

    def enter(self, now: float, meanwhile: Callable[[], object] = nothing) -> bool:
        now += self.ahead_s
        owners = f"{self.scope}:owner"
        with self.redis.pipeline() as pipe:
            pipe.zremrangebyscore(self.scope, "-inf", now - LEASE_S)
            pipe.zinterstore(owners, {owners: 1, self.scope: 0})
            pipe.incr(f"{self.scope}:counter")
            *_, count = pipe.execute()
        meanwhile()
        with self.redis.pipeline() as pipe:
            pipe.zadd(self.scope, {self.name: now})
            pipe.zadd(owners, {self.name: count})
            pipe.zrank(owners, self.name)
            *_, rank = pipe.execute()
        if rank >= LIMIT:
            self.leave()
        return bool(rank < LIMIT)

    def leave(self) -> None:
        super().leave()
        self.redis.zrem(f"{self.scope}:owner", self.name)


class Refreshed(Counter):
    """6.3.3: a client that works for longer renews its lease."""

    def refresh(self, now: float) -> None:
        self.redis.zadd(self.scope, {self.name: now + self.ahead_s}, xx=True)


class Locked(Refreshed):
    """6.3.4: a lock around each try, with a lease of its own; a client that does not get it tries
    later.
    """

    def enter(self, now: float, meanwhile: Callable[[], object] = nothing) -> bool:
        lock = self.redis.lock(lock_of(self.scope), timeout=LEASE_S)
        if not lock.acquire(blocking=False):
            return False
        try:
            return super().enter(now, meanwhile)
        finally:
            with suppress(LockError):  # its lease has ended
                lock.release()


class InLua(Refreshed):
    """11.2: the server counts the holders and adds one in one step."""

    # KEYS: the holders. ARGV: the limit, when leases began that end now, the time, the newcomer.
    ENTER = """
    redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[2])
    if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[1]) then return 0 end
    return redis.call('ZADD', KEYS[1], ARGV[3], ARGV[4])
    """

    def enter(self, now: float, meanwhile: Callable[[], object] = nothing) -> bool:
        now += self.ahead_s
        meanwhile()
        return bool(
            self.redis.eval(self.ENTER, 1, self.scope, LIMIT, now - LEASE_S, now, self.name)
        )


class Ours(Timestamps):
    """A script, the server's clock, and a queue on the server."""

    def __init__(self, redis: Any, loop: Loop, scope: str, name: str, ahead_s: float = 0.0) -> None:
        super().__init__(redis, loop, scope, name, ahead_s)
        self.node = Caller(f"unix://{redis.connection_pool.connection_kwargs['path']}", name)
        loop.run(self.node.connect())

    def enter(self, now: float, meanwhile: Callable[[], object] = nothing) -> bool:  # noqa: ARG002
        meanwhile()
        self.loop.run(self.node.take(self.scope, limit=LIMIT))
        return self.node.held(self.scope) > 0

    def refresh(self, now: float) -> None:  # noqa: ARG002
        self.loop.run(self.node.renew(self.scope))

    def leave(self) -> None:
        self.loop.run(self.node.give_back(self.scope))


def lock_of(scope: str) -> str:
    return f"lock:{scope}"


# What may go wrong: each returns whether it does ------------------------------------------------

Join = Callable[..., Timestamps]
"""A client: its name, and how many seconds its clock is ahead."""
Trouble = Callable[[Join], bool]


def a_clock_behind(join: Join) -> bool:
    """A later client, with a clock that is behind, precedes those that are in already."""
    assert join("first").enter(NOW)
    return join("second", ahead_s=-1.0).enter(NOW + 0.5)


def a_clock_a_lease_ahead(join: Join) -> bool:
    """It ends the leases of those who are in."""
    assert join("first").enter(NOW)
    return join("second", ahead_s=LEASE_S).enter(NOW + 0.5)


def a_long_work(join: Join) -> bool:
    """Another client goes in while one works for longer than a lease, and reports that in time."""
    worker = join("worker")
    assert worker.enter(NOW)
    for third in range(1, 5):
        worker.refresh(NOW + third * LEASE_S / 3)
    return join("newcomer").enter(NOW + 1.5 * LEASE_S)


def a_try_within_a_try(join: Join, between: Callable[[], object] = nothing) -> bool:
    """The client that has counted first is added last: both go in."""
    quick_is_in = []

    def meanwhile() -> None:
        between()
        quick_is_in.append(join("quick").enter(NOW))

    return join("slow").enter(NOW, meanwhile) and quick_is_in == [True]


def a_stop_for_longer_than_the_lock(join: Join) -> bool:
    """Both go in, as the first one's lock ends while it is stopped."""
    redis, scope = (client := join("look")).redis, client.scope
    return a_try_within_a_try(join, between=lambda: redis.delete(lock_of(scope)))


def a_newcomer(join: Join) -> bool:
    """A refused client is forgotten: one that comes later is served before it."""
    first, second = join("first"), join("second")
    assert first.enter(NOW)
    assert not second.enter(NOW + 1)
    first.leave()
    return join("third").enter(NOW + 2)


ORDER, CLOCK = {a_newcomer}, {a_clock_a_lease_ahead}
TRIES = {a_try_within_a_try, a_stop_for_longer_than_the_lock}
TROUBLES: set[Trouble] = {*ORDER, *CLOCK, *TRIES, a_clock_behind, a_long_work}
LADDER: dict[type[Timestamps], set[Trouble]] = {
    Timestamps: {*ORDER, *CLOCK, a_long_work, a_clock_behind},
    Counter: {*ORDER, *CLOCK, a_long_work, *TRIES},
    Refreshed: {*ORDER, *CLOCK, *TRIES},
    Locked: {*ORDER, *CLOCK, a_stop_for_longer_than_the_lock},
    InLua: {*ORDER, *CLOCK},
    Ours: set(),
}
"""The steps, and what goes wrong with each."""


@pytest.mark.parametrize("step", LADDER)
def test_each_step_repairs_a_race_of_the_one_before(
    step: type[Timestamps], server: RedisServer
) -> None:
    with Loop() as loop, server.client() as client:
        found = {
            trouble
            for trouble in TROUBLES
            if trouble(partial(step, client, loop, trouble.__name__))
        }
        client.flushall()
    assert found == LADDER[step]
