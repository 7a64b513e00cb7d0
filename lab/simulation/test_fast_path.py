"""The fast path of `sync` replies, writes and sends what the slow path would, for drawn states."""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from lab.mutants.generate import mutants_of
from lab.simulation.power import script_file
from lab.simulation.server import EPOCH_MS, FAST_PATH, Server
from semaphore_middleware.core.keys import Keys
from semaphore_middleware.core.protocol import FEEDBACK, UPDATE, pack_head
from semaphore_middleware.core.records import OF_KEYS
from semaphore_middleware.core.scripts import SYNC
from semaphore_middleware.link.scripts import sha1_of
from tests.support.paths import REPOSITORY

KEYS = Keys("semaphore")
SCOPE, QUEUE = KEYS.of("s")
LEASE_MS, DAY_MS = 6000.0, 86_400_000.0
NOW = 5_000_000.0  # by the epoch's clock, which is not the wall clock
STATES = 1000
FILE = f"{SYNC.package.replace('.', '/')}/lua/{FAST_PATH}.lua"
MISTAKES, UNSEEN = 100, 15  # some change nothing, or leave more to the slow path


@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))]
)
def test_drawn_states_are_served_alike(seed: int) -> None:
    assert [number for number, notes in compared(seed, STATES) if notes] == []


@pytest.mark.slow
def test_mistakes_in_the_fast_path_are_seen() -> None:
    source = (REPOSITORY / FILE).read_text("utf-8")
    mistakes = Random(0).sample(list(mutants_of(FILE, source)), MISTAKES)
    unseen = [one.name for one in mistakes if not is_seen(one.apply(source))]
    assert len(unseen) <= UNSEEN, unseen


def is_seen(mistaken: str) -> bool:
    with script_file(FILE, mistaken):
        return any(notes for _, notes in compared(0, STATES))


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
        reply = server.execute((*call, head, b"a", epoch, b"job", drawn.update()), 0.0)
        assert notes or len(reply) == 2, reply
        yield number, list(notes)
        notes.clear()


class Draw:
    """A scope's keys, mostly such as the fast path serves, and what node "a" says of them."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.strictest = random.randint(2, 5)
        intervals: tuple[tuple[int, float], ...] = ((0, 0), (0, 0), (200, 0), (200, 0.5))
        self.delay, self.jitter = random.choice(intervals)
        names = random.choice(((), (b"a",), (b"a", b"b"), (b"b",), (b"a", b"b", b"c")))
        other_job = self.by_chance(b"job", b"another")
        self.entries = {name: self.entry(b"job" if name == b"a" else other_job) for name in names}

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

    def entry(self, job: bytes) -> dict[str, Any]:
        random = self.random
        returned, held, waiting = random.randrange(3), random.randrange(3), self.by_chance(0, 1)
        granted = returned + max(held, 1 - waiting)
        return {
            "lease_id": random.randint(2, 3),
            "seq": random.randint(2, 4),
            "requested": granted + (waiting or self.by_chance(0, -1)),
            "granted": granted,
            "returned": returned,
            "started": random.randint(1, 3),
            "unstarted": random.randint(0, granted - returned),
            "lease_end": NOW + random.choice((LEASE_MS, 2000.0, self.by_chance(1.0, 0.0, -1.0))),
            "served": random.randint(1, 9),
            "held_since": NOW - 700,
            "waiting_since": NOW - 90,
            "suspended": self.by_chance(0, 2),
            "failures": self.by_chance(0, 1),
            "ended_at": NOW - 70,
            **self.limit(),
            "job": job,
        }

    def state(self) -> dict[str, Any]:
        entries, by_chance = self.entries.values(), self.by_chance
        jobs = {each["job"] for each in entries} or {b"job"}
        due = min((each["lease_end"] for each in entries), default=math.inf)
        return self.limit() | {
            "held": sum(each["granted"] - each["returned"] for each in entries),
            "waiting": sum(max(0, each["requested"] - each["granted"]) for each in entries),
            "suspended": sum(each["suspended"] for each in entries),
            "unstarted": sum(each["unstarted"] for each in entries),
            "tick": 10,
            "due": min(due, NOW + by_chance(LEASE_MS, 1, 0, -1)),
            "granted_at": NOW - self.random.choice((10, 60, 300, 1000)),
            "last_start": NOW - self.random.choice((50, 210, 280, 900)),
            "chance": 0.25,
            "next_at_rate": NOW + by_chance(-50, 20),
            "started": 7,
            "notified": by_chance(b"", b"b"),
            "expires": EPOCH_MS + self.random.choice((1.0, 0.9, 0.45, 0.1)) * DAY_MS,
            "listed": EPOCH_MS + self.random.choice((0.0, 0.1, 0.9, 2.0)) * 5 * 60_000,
            "idle_since": 0 if entries else 100.0,
            "job": jobs.pop() if len(jobs) == 1 else False,
        }

    def put(self, server: Server) -> None:
        entries = self.entries
        fields = {b"node:" + name: list(each.values()) for name, each in entries.items()}
        if entries or self.random.random() < 0.3:
            state = self.state()
            fields[b"state"] = [state[name] for name in OF_KEYS["state"].names]
            if self.by_chance(False, True):
                fields[b"learned"] = [self.by_chance(0, 1) for _ in OF_KEYS["learned"].names]
            server.put(SCOPE, fields, state["expires"])
        for name, each in entries.items():
            if each["requested"] > each["granted"]:
                member = name + b"\0" + each["job"]
                server.execute((b"ZADD", QUEUE, b"%d" % each["served"], member), 0.0)
        if rules := self.by_chance(0, 1):
            server.put(KEYS.rules, {b"s": b'{"concurrency": 2}'})
        clock = {"wall": EPOCH_MS - 10, "clock": NOW - 10, "quiet": 500}
        epoch = {"id": "epoch", "from": NOW + self.by_chance(0, 1), "rules": rules, "evicted": -1}
        packed = {name.encode(): str(value).encode() for name, value in (epoch | clock).items()}
        server.put(KEYS.epoch, packed)

    def update(self) -> bytes:
        random, by_chance, nothing = self.random, self.by_chance, self.random.randrange(2)
        known = self.entries.get(b"a") or dict.fromkeys(OF_KEYS["entry"].names, nothing)
        granted_ack = max(0, known["granted"] + by_chance(0, -1, -2, 1))
        returned = min(
            granted_ack, random.choice((known["returned"], granted_ack, by_chance(0, 1)))
        )
        totals = {
            "lease_id": max(1, known["lease_id"] + by_chance(0, -1, 1)),
            "seq": max(1, known["seq"] + random.choice((0, 1, by_chance(1, -1)))),
            "requested": granted_ack + random.choice((0, 0, 1, 1, 2)),
            "returned": returned,
            "granted_ack": granted_ack,
            "started": max(0, known["started"] + random.choice((0, 1, by_chance(2, -1)))),
            "start_age": random.choice((0.0, 0.02, 0.2)),
            "unstarted": random.randint(0, granted_ack - returned),
            "suspended": by_chance(0, 1),
            "held_age": random.choice((0.0, 0.25)),
            "wait_age": random.choice((0.0, 0.5)),
            **self.limit(),
        }
        feedback: bytes = by_chance(b"", bytes(FEEDBACK.size))
        return UPDATE.pack(*(totals[name] for name in UPDATE.names)) + feedback
