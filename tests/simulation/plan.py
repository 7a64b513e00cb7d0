"""What happens in a run, drawn from a seed: nodes, their requests, faults. Data, so that it can shrink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from semaphore_middleware.model.hosts import order_of
from semaphore_middleware.model.limits import Limit

SITES = ("a.com", "b.com", "c.com")
SHARED = ("domain:com", "all")  # scopes that requests of several sites share


@dataclass(frozen=True)
class Job:
    """One request of a node. Times are in seconds."""

    scopes: tuple[str, ...]
    hold: float
    pause: float  # before it
    timeout: float | None = None
    cancel_after: float | None = None
    priority: int = 0
    outcome: str = "good"  # or: error, refused, failed, unused
    asks_pause: float = 0.0  # as in Retry-After
    slow_end: float = 0.0  # from its permit's loss to the transfer's end


@dataclass(frozen=True)
class Worker:
    """Requests of a node that follow each other."""

    node: int
    jobs: tuple[Job, ...]


@dataclass(frozen=True)
class Fault:
    """Something that strikes. `seconds`: for how long; `of`: what else its kind needs."""

    at: float
    kind: str
    node: int = 0
    seconds: float = 0.0
    of: Any = None


@dataclass(frozen=True)
class Plan:
    """A run. Times are in seconds from its beginning."""

    seed: int
    kind: str
    lease: float
    turn: float
    nodes: int
    limits: Mapping[str, Limit]
    workers: tuple[Worker, ...]
    faults: tuple[Fault, ...] = ()
    own_limits: Mapping[int, Mapping[str, Limit]] = field(default_factory=dict)  # of some nodes
    is_evicting: bool = False

    def limit_of(self, node: int, scope: str) -> Limit:
        """The limit that a node names."""
        return self.own_limits.get(node, {}).get(scope, self.limits[scope])


def plan_for(seed: int) -> Plan:
    """The plan of a seed."""
    random = Random(seed)
    draw = random.choices((_storm, _calm, _crowd, _days), (10, 5, 3, 1))[0]
    return draw(seed, random)


# Kinds of runs ----------------------------------------------------------------------------------


def _storm(seed: int, random: Random) -> Plan:
    """Mixed work, and every fault."""
    lease = random.choice((2.0, 3.0, 6.0))
    length = random.choice((4, 8, 12)) * lease
    nodes = random.choice((2, 3, 3, 4))
    limits = _limits(random)
    faults = _faults(random, nodes, lease, length)
    is_evicting = random.random() < 0.05
    if is_evicting:
        faults += _evictions(random, length)
    jumps = any(fault.kind == "jump" for fault in faults)
    return Plan(
        seed,
        "storm",
        lease,
        turn=random.choice((0.0, 0.1, 0.1, 0.5)),
        nodes=nodes,
        limits=limits,
        workers=_workers(random, limits, nodes, lease, length, 0.0 if jumps else 0.3 * lease),
        faults=faults,
        own_limits=_own_limits(random, limits, nodes),
        is_evicting=is_evicting,
    )


def _calm(seed: int, random: Random) -> Plan:
    """Mixed work, and no fault: what can be said exactly is judged here."""
    lease = random.choice((2.0, 6.0, 15.0))
    nodes = random.choice((1, 2, 3))
    limits = _limits(random)
    return Plan(
        seed,
        "calm",
        lease,
        turn=random.choice((0.0, 0.1, 0.1, 0.5)),
        nodes=nodes,
        limits=limits,
        workers=_workers(random, limits, nodes, lease, 4 * lease, 0.0),
        faults=_rules(random, limits, 4 * lease),
    )


def _crowd(seed: int, random: Random) -> Plan:
    """Nodes that want one site all the time, some of them a little and some of them much."""
    nodes = random.choice((2, 3, 5))
    hold = random.choice((0.02, 0.05, 0.2))
    wants = [random.choice((1, 1, 2, 10, 20)) for _ in range(nodes)]
    limit = random.choice((1, 2, 3, 5))
    job = Job(("a.com",), hold, 0.0)
    count = 300
    return Plan(
        seed,
        "crowd",
        lease=15.0,
        turn=random.choice((0.0, 0.1)),
        nodes=nodes,
        limits={"a.com": Limit(limit)},
        workers=tuple(
            Worker(node, (job,) * count) for node, want in enumerate(wants) for _ in range(want)
        ),
    )


def _days(seed: int, random: Random) -> Plan:
    """Leases of hours, so that keys come near their expiry, and some faults."""
    lease = random.choice((3600.0, 14400.0))
    length = 12 * lease
    limits = {site: Limit(random.choice((1, 2))) for site in SITES[:2]}
    limits["c.com"] = Limit(2, delay=600.0)
    workers = []
    for node in range(2):
        for _ in range(2):
            jobs = [
                Job((random.choice(SITES),), random.choice((60.0, 2.5 * lease, 6 * lease)), lease)
                for _ in range(4)
            ]
            workers.append(Worker(node, tuple(jobs)))
    kinds = ("freeze", "cut", "restart", "break")
    faults = tuple(
        Fault(
            random.uniform(0, length),
            random.choice(kinds),
            random.randrange(2),
            random.uniform(0.05, 0.25) * lease,
            "with its data",
        )
        for _ in range(random.choice((0, 3)))
    )
    return Plan(seed, "days", lease, 0.1, 2, limits, tuple(workers), faults)


# What they are made of --------------------------------------------------------------------------


def _limits(random: Random) -> dict[str, Limit]:
    limits = {
        "a.com": Limit(random.choice((1, 1, 2, 3))),
        "b.com": Limit(random.choice((1, 2)), delay=random.choice((0.05, 0.3, 1.0))),
        "c.com": random.choice(
            (
                Limit(4, rate="5/s", burst=1),
                Limit(4, rate="3/s", burst=3),
                Limit(3, adaptive=True),
                Limit(2, delay=0.2, jitter=0.5),
                Limit(5),
            )
        ),
        "domain:com": random.choice((Limit(2), Limit(3), Limit(9, delay=0.1))),
        "all": random.choice((Limit(2), Limit(4), Limit(9, rate="10/s", burst=2))),
    }
    return limits


def _own_limits(
    random: Random, limits: Mapping[str, Limit], nodes: int
) -> dict[int, dict[str, Limit]]:
    """Sometimes a node names stricter or looser limits than the others."""
    if random.random() < 0.75:
        return {}
    return {random.randrange(nodes): {"a.com": Limit(random.choice((1, 2, 4)))}}


def _workers(
    random: Random,
    limits: Mapping[str, Limit],
    nodes: int,
    lease: float,
    length: float,
    slowest_end: float,
) -> tuple[Worker, ...]:
    workers = []
    uses_shared = random.random() < 0.5
    harm = random.choice((0.0, 0.0, 0.02, 0.1))  # share of requests that fail
    for node in range(nodes):
        for _ in range(random.choice((1, 2, 3))):
            jobs, left = [], length
            while left > 0 and len(jobs) < 40:
                job = _job(random, lease, uses_shared, harm, slowest_end)
                jobs.append(job)
                left -= job.pause + job.hold + 0.1
            workers.append(Worker(node, tuple(jobs)))
    return tuple(workers)


def _job(
    random: Random, lease: float, uses_shared: bool, harm: float, slowest_end: float
) -> Job:
    scopes = [random.choice(SITES)]
    if uses_shared and random.random() < 0.5:
        scopes = [*random.sample(SITES, 1), *random.sample(SHARED, random.choice((1, 2)))]
    outcome = "good"
    if random.random() < harm:
        outcome = random.choice(("error", "refused", "failed", "failed"))
    elif random.random() < 0.04:
        outcome = "unused"
    return Job(
        tuple(sorted(scopes, key=order_of)),
        hold=lease * random.choice((0.0, 0.001, 0.01, 0.05, 0.1, 0.3, 1.2, 2.5)),
        pause=lease * random.choice((0.0, 0.0, 0.001, 0.02, 0.2)),
        timeout=random.choice((None, None, None, None, 0.02, 0.5, 5.0)),
        cancel_after=random.choice((None,) * 6 + (0.0, 0.001, 0.01, 0.3)),
        priority=random.choice((0, 0, 0, 1, 5)),
        outcome=outcome,
        asks_pause=random.choice((0.0, 0.0, 0.5)) if outcome in ("refused", "error") else 0.0,
        slow_end=random.choice((0.0, 0.0, 0.5, 1.0)) * slowest_end,
    )


OF_NETWORK = ("weather", "weather", "cut", "cut", "cut out", "cut back", "break")
OF_NODES = ("freeze", "freeze", "kill", "close", "reopen", "add", "evict the dead", "older version")
OF_SERVER = (
    *("server stands", "server away", "restart", "restart", "flush", "replica", "jump", "jump"),
    *("scripts gone", "full"),
)


def _faults(random: Random, nodes: int, lease: float, length: float) -> tuple[Fault, ...]:
    """Of some kinds, at random moments. Jumps ahead lie apart, as docs/guarantees.md wants them."""
    kinds = random.choice((OF_NETWORK, OF_NETWORK + OF_NODES, OF_NETWORK + OF_NODES + OF_SERVER))
    faults = []
    at = random.uniform(0.5, 2.0) * lease
    jumped_at = -length
    while at < length:
        kind = random.choice(kinds)
        of: Any = None
        seconds = random.choice((0.05, 0.2, 0.5, 0.8, 1.2, 2.5)) * lease
        if kind == "weather":
            of = _weather(random)
        elif kind == "restart":
            of = random.choice(("empty", "with its data", "from a snapshot"))
        elif kind == "replica":
            of = random.choice((0.0, 0.01, 0.3, 1.5)) * lease  # what it lacks
        elif kind == "jump":
            of = random.choice((-3600.0, -20.0, -1.0, 0.3, 2.0, 20.0, 3600.0))
            if at - jumped_at < 1.5 * lease:
                kind = "break"
            jumped_at = at
        elif kind == "add":
            of = random.choice((0, 1))
        faults.append(Fault(at, kind, random.randrange(nodes), seconds, of))
        at += random.uniform(0.05, 1.5) * lease
    if random.random() < 0.3:
        faults += _rules(random, {"a.com": Limit(1), "b.com": Limit(1)}, length)
    return tuple(sorted(faults, key=lambda fault: fault.at))


def _evictions(random: Random, length: float) -> tuple[Fault, ...]:
    return tuple(
        Fault(random.uniform(0, length), "evict", of=random.randrange(100)) for _ in range(4)
    )


def _weather(random: Random) -> dict[str, Any]:
    """Arguments of `Weather`."""
    return {
        "latency": random.choice(((0.0002, 0.004), (0.001, 0.05), (0.01, 0.3))),
        "lost": random.choice((0.0, 0.02, 0.1)),
        "late": random.choice((0.0, 0.03, 0.1)),
        "repeated": random.choice((0.0, 0.1, 0.3)),
        "torn": random.choice((0.0, 0.05)),
        "message_lost": random.choice((0.0, 0.05, 0.5)),
        "message_late": random.choice((0.0, 0.1, 0.3)),
        "message_repeated": random.choice((0.0, 0.3)),
    }


def _rules(random: Random, limits: Mapping[str, Limit], length: float) -> tuple[Fault, ...]:
    """What an operator sets, and takes back in the end."""
    if random.random() < 0.6:
        return ()
    scope = random.choice([name for name in ("a.com", "b.com") if name in limits])
    rules = [
        Fault(
            random.uniform(0.0, 0.8) * length,
            "rule",
            of=(scope, random.choice(("pause", "resume", "reset", 1, 2, 4, {"delay": 0.5}))),
        )
        for _ in range(random.choice((1, 2, 4)))
    ]
    return (*rules, Fault(0.9 * length, "rule", of=(scope, "resume")))
