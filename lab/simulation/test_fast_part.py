"""The fast part of `sync` replies, writes and sends what the rest of it would, for drawn states."""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from lab.simulation.power import Rule, switched_off
from lab.simulation.server import COMPARED, EPOCH_MS, Server
from semaphore_middleware.redis.keys import Keys
from semaphore_middleware.redis.protocol import FEEDBACK, STATEMENT, pack_head
from semaphore_middleware.redis.records import OF_KEYS
from semaphore_middleware.redis.scripts import SYNC, sha1_of

KEYS = Keys("semaphore")
SCOPE, QUEUE = KEYS.of("s")
LEASE_MS, DAY_MS = 6000.0, 86_400_000.0
NOW = 5_000_000.0  # by the epoch's clock, which is not the wall clock
STATES = 1000
MISTAKES = {
    "@said_(rest)": "said_adaptive",
    ", @said_(rest)": ", said_interval",
    "(said_resting, ": "(",
    "job ~= JOB or ": "",
    " or idle_since > 0": "",
    "waiting + resting > 0": "resting > 0",
    " + resting > 0": " > 0",
    "own_failures > 0 or ": "",
    "own_ended_at = NOW": "own_ended_at = own_ended_at",
    " or told ~= ''": "",
    " or NOW >= due": "",
    "said_concurrency < concurrency or ": "",
    "@(rest)": "adaptive",
    "math.max(@(rest))": "interval",
    "said_delay ~= delay or ": "",
    " or said_jitter ~= jitter": "",
    "wanted + pending > 1 or ": "",
    "wanted + pending > 1": "wanted > 1",
    " or NOW < earliest": "",
    "(1 + jitter * chance)": "1",
    "delay * (1 + jitter) - NOW": "delay - NOW",
    "kept = kept + math.min(kept, HOUR)": "",
    "listed < WALL + kept": "false",
    "last_start - NOW, next_at_rate - NOW": "last_start, next_at_rate - NOW",
    "= last_start - NOW, next_at_rate - NOW": "= last_start - NOW, next_at_rate",
    "NOW + QUIET, 0, 0, math.huge, 0": "NOW, 0, 0, math.huge, 0",
    "QUIET, 0, 0, math.huge, 0": "QUIET, tick, 0, math.huge, 0",
    ", 0, 0, math.huge, 0": ", 0, started, math.huge, 0",
    "0, math.huge, 0": "0, due, 0",
    ", math.huge, 0": ", math.huge, expires",
    "redis.call('PEXPIRE', key, math.ceil(kept))": "",
    "reply_gap, reply_is_counted = delay * (1 - jitter), 1": "reply_gap = delay * (1 - jitter)",
    "delay * (1 - jitter), 1": "delay, 1",
    " @(limit) = @said_(limit)": " concurrency = said_concurrency",
    " or said_term ~= own_term": "",
    "said_seq < own_seq or ": "",
    " or said_believed > own_granted": "",
    "elseif said_believed > said_returned then": "elseif said_believed < 0 then",
    "own_granted, own_returned, own_started, own_pending = said_believed, said_believed":
        "own_granted, own_returned, own_started, own_pending = said_believed, 0",
    "own_served = tick + 1\n": "own_served = tick\n",
    "math.max(own_returned, said_returned)": "said_returned",
    "math.max(0, said_asked - own_granted)": "said_asked - own_granted",
    "wanted > 0 and held > concurrency": "held > concurrency + wanted",
    "own_started, started = own_started + begun": "own_started, started = own_started",
    "last_start, chance": "chance, last_start",
    "math.max(next_at_rate, begun_at)": "begun_at",
    "- 1000 * said_start_age": "",
    "math.max(NOW - 1000 * said_start_age, granted_at)": "NOW - 1000 * said_start_age",
    "math.max(last_start, begun_at)": "begun_at",
    ", granted_at = own_granted + wanted, tick, NOW": " = own_granted + wanted, tick",
    "pending = pending - own_pending\n": "\n",
    "said_pending + own_granted - said_believed": "said_pending",
    "math.min(own_granted - own_returned, said_pending": "(said_pending",
    "(own and 2 or 1)": "2",
    "own_granted, own_served, granted_at = own_granted + wanted, tick, NOW":
        "own_granted, granted_at = own_granted + wanted, NOW",
    "math.min(due, own_lease_end, ": "math.min(own_lease_end, ",
    "is_closed and NOW + LOOSENING or math.huge": "math.huge",
    "own_lease_end = NOW + LEASE\n": "own_lease_end = NOW\n",
    "expires < WALL + KEPT / 2": "expires < WALL",
    "listed < WALL + LISTED / 2": "listed < WALL",
    "if state then redis.call('DEL', key) end": "",
    "if own then redis.call('HDEL', key, OWN) end": "",
    "said_term, said_seq, said_asked, 0\n": "said_term, own_seq, said_asked, 0\n",
    "own_job, own_weight = JOB, WEIGHT": "",
    "@own_(limit) = @said_(limit)": "",
    "reply_held = said_term, own_granted, concurrency, held": "reply_held = 1, 1, 1, 1",
    "reply_is_stricter = concurrency - held": "reply_is_stricter = 0",
    "said_concurrency > concurrency and 1 or 0": "0",
}  # fmt: skip
"""What `serve_plain` says, and what it might say by mistake."""


@pytest.mark.parametrize("seed", range(2))
def test_drawn_states_are_served_alike(seed: int) -> None:
    assert [number for number, notes in compared(seed, STATES) if notes] == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_drawn_states_are_served_alike(seed: int) -> None:
    assert [number for number, notes in compared(seed, STATES) if notes] == []


@pytest.mark.slow
@pytest.mark.parametrize("says", MISTAKES)
def test_a_mistake_in_the_fast_part_is_seen(says: str) -> None:
    mistake = Rule("shared/serve_plain.lua", says, MISTAKES[says])
    with switched_off(mistake):
        assert any(COMPARED in notes for _, notes in compared(0, 5 * STATES))


def compared(seed: int, states: int) -> Iterator[tuple[int, list[str]]]:
    """Of each drawn state its number, and what was found when it was served both ways."""
    random, notes, epoch = Random(seed), list[str](), b"epoch"
    server = Server(lambda *_: None, notes.append, lambda *_: None)
    server.compare_every = 1
    source = SYNC.source.encode()
    server.execute((b"SCRIPT", b"LOAD", source), 0.0)
    call = (
        b"EVALSHA",
        sha1_of(source.decode()).encode(),
        b"5",
        *KEYS.of_all,
        SCOPE,
        QUEUE,
    )
    for number in range(states):
        server.flush()
        drawn = Draw(random)
        drawn.put(server)
        head = pack_head(LEASE_MS / 1000, random.random(), random.choice((math.inf, 0.1, 60.0)))
        reply = server.execute((*call, head, b"a", epoch, b"job", b"2", drawn.statement()), 0.0)
        assert len(reply) == 2, reply
        yield number, list(notes)
        notes.clear()


class Draw:
    """A scope's keys, mostly such as the fast part serves, and what node "a" says of them."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.strictest = random.randint(2, 5)
        paces: tuple[tuple[int, float], ...] = ((0, 0), (0, 0), (200, 0), (200, 0.5))
        self.delay, self.jitter = random.choice(paces)
        names = random.choice(((), (b"a",), (b"a", b"b"), (b"b",), (b"a", b"b", b"c")))
        other_job = self.by_chance(b"job", b"another")
        self.accounts = {
            name: self.account(b"job" if name == b"a" else other_job) for name in names
        }

    def by_chance(self, usual: Any, *rare: Any) -> Any:
        return self.random.choice(rare) if self.random.random() < 0.06 else usual

    def limit(self) -> dict[str, float]:
        return {
            "concurrency": self.strictest + self.random.choice((0, 0, 1, 1, 3)),
            "delay": self.by_chance(self.delay, 0, 100, 200),
            "jitter": self.by_chance(self.jitter, 0, 0.5),
            "adaptive": self.by_chance(0, 1),
            "interval": self.by_chance(0, 300),
            "burst": self.random.choice((1, 2)),
        }

    def account(self, job: bytes) -> dict[str, Any]:
        random = self.random
        returned, held, waiting = random.randrange(3), random.randrange(3), self.by_chance(0, 1)
        granted = returned + max(held, 1 - waiting)
        return {
            "term": random.randint(2, 3),
            "seq": random.randint(2, 4),
            "asked": granted + (waiting or self.by_chance(0, -1)),
            "granted": granted,
            "returned": returned,
            "started": random.randint(1, 3),
            "pending": random.randint(0, granted - returned),
            "lease_end": NOW + random.choice((LEASE_MS, 2000.0, self.by_chance(1.0, 0.0, -1.0))),
            "served": random.randint(1, 9),
            "held_since": NOW - 700,
            "waiting_since": NOW - 90,
            "resting": self.by_chance(0, 2),
            "failures": self.by_chance(0, 1),
            "ended_at": NOW - 70,
            **self.limit(),
            "job": job,
            "weight": b"2",
        }

    def state(self) -> dict[str, Any]:
        accounts, by_chance = self.accounts.values(), self.by_chance
        jobs = {each["job"] for each in accounts} or {b"job"}
        due = min((each["lease_end"] for each in accounts), default=math.inf)
        return self.limit() | {
            "held": sum(each["granted"] - each["returned"] for each in accounts),
            "waiting": sum(max(0, each["asked"] - each["granted"]) for each in accounts),
            "resting": sum(each["resting"] for each in accounts),
            "pending": sum(each["pending"] for each in accounts),
            "tick": 10,
            "due": min(due, NOW + by_chance(LEASE_MS, 1, 0, -1)),
            "granted_at": NOW - self.random.choice((10, 60, 300, 1000)),
            "last_start": NOW - self.random.choice((50, 210, 280, 900)),
            "chance": 0.25,
            "next_at_rate": NOW + by_chance(-50, 20),
            "started": 7,
            "told": by_chance(b"", b"b"),
            "expires": EPOCH_MS + self.random.choice((1.0, 0.9, 0.45, 0.1)) * DAY_MS,
            "listed": EPOCH_MS + self.random.choice((0.0, 0.1, 0.9, 2.0)) * 5 * 60_000,
            "idle_since": 0 if accounts else 100.0,
            "job": jobs.pop() if len(jobs) == 1 else False,
        }

    def put(self, server: Server) -> None:
        accounts = self.accounts
        fields = {b"node:" + name: list(each.values()) for name, each in accounts.items()}
        if accounts or self.random.random() < 0.3:
            state = self.state()
            fields[b"state"] = [state[name] for name in OF_KEYS["state"].names]
            if self.by_chance(False, True):
                fields[b"learned"] = [self.by_chance(0, 1) for _ in OF_KEYS["learned"].names]
            server.put(SCOPE, fields, state["expires"])
        for name, each in accounts.items():
            if each["asked"] > each["granted"]:
                member = name + b"\0" + each["job"]
                server.execute((b"ZADD", QUEUE, b"%d" % each["served"], member), 0.0)
        if rules := self.by_chance(0, 1):
            server.put(KEYS.rules, {b"s": b'{"concurrency": 2}'})
        clock = {"wall": EPOCH_MS - 10, "clock": NOW - 10, "quiet": 500}
        epoch = {"id": "epoch", "from": NOW + self.by_chance(0, 1), "rules": rules, "evicted": -1}
        packed = {name.encode(): str(value).encode() for name, value in (epoch | clock).items()}
        server.put(KEYS.epoch, packed)

    def statement(self) -> bytes:
        random, by_chance, nothing = self.random, self.by_chance, self.random.randrange(2)
        known = self.accounts.get(b"a") or dict.fromkeys(OF_KEYS["account"].names, nothing)
        believed = max(0, known["granted"] + by_chance(0, -1, -2, 1))
        returned = min(believed, random.choice((known["returned"], believed, by_chance(0, 1))))
        said = {
            "term": max(1, known["term"] + by_chance(0, -1, 1)),
            "seq": max(1, known["seq"] + random.choice((0, 1, by_chance(1, -1)))),
            "asked": believed + random.choice((0, 0, 1, 1, 2)),
            "returned": returned,
            "believed": believed,
            "started": max(0, known["started"] + random.choice((0, 1, by_chance(2, -1)))),
            "start_age": random.choice((0.0, 0.02, 0.2)),
            "pending": random.randint(0, believed - returned),
            "resting": by_chance(0, 1),
            "held_age": random.choice((0.0, 0.25)),
            "wait_age": random.choice((0.0, 0.5)),
            **self.limit(),
        }
        feedback: bytes = by_chance(b"", bytes(FEEDBACK.size))
        return STATEMENT.pack(*(said[name] for name in STATEMENT.names)) + feedback
