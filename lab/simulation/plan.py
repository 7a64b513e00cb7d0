"""What happens in a run, drawn from a seed: nodes, their requests, faults. Data, to shrink."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

from lab.simulation.sites import (
    BLOCKED_S,  # feature: blocked
    Meter,  # feature: learned_interval
    Quota,  # feature: blocked
    Site,
    Wall,  # feature: blocked
)
from semaphore_middleware.model.limits import Limit

SITES = ("a.com", "b.com", "c.com")
SHARED = ("domain:com", "all")  # scopes that requests of several sites share
LATE_S = 15.0  # when a node comes to a site that others have found to be down
RATE_CHANGES_S = 120.0
PHASES_S = (24.0, 46.0, 68.0)  # of plans with jobs: when one leaves, comes back, and the end


@dataclass(frozen=True)
class Job:
    """One request of a node. Times are in seconds."""

    scopes: tuple[str, ...]
    hold: float
    pause: float  # before it
    timeout: float | None = None
    cancel_after: float | None = None
    priority: int = 0
    outcome: str = "good"  # or: error, refused, failed, closed, closed idle, unused
    page: str = ""  # empty: another one each time
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
    reuse_window: float
    nodes: int
    limits: Mapping[str, Limit]
    workers: tuple[Worker, ...]
    faults: tuple[Fault, ...] = ()
    own_limits: Mapping[int, Mapping[str, Limit]] = field(default_factory=dict)  # of some nodes
    is_evicting: bool = False
    gives_scripts_info: bool = True  # the server
    theme: str = ""
    jobs: Mapping[int, str] = field(default_factory=dict)  # of nodes
    machines: Mapping[int, int] = field(default_factory=dict)  # of nodes that share one
    site: Callable[[], Site] | None = None  # what answers in place of each job's outcome
    closes: bool = False  # the site, in place of refusing
    down_after: Mapping[int, float] = field(default_factory=dict)  # of some nodes
    lingers: bool = False  # nodes stay for a while when they have nothing to do any more

    def limit_of(self, node: int, scope: str) -> Limit:
        """The limit that a node names."""
        return self.own_limits.get(node, {}).get(scope, self.limits[scope])


@dataclass(frozen=True)
class Theme:
    """What the storms of one theme are made of. Times are shares of a lease."""

    faults: tuple[str, ...]
    between: tuple[float, float]  # faults
    seconds: tuple[float, ...]  # that they last
    holds: tuple[float, ...]
    pauses: tuple[float, ...]
    sites: int = 1  # of all requests together
    length: float = 6.0
    harm: tuple[float, ...] = (0.0,)  # share of requests that fail
    loss: tuple[float, ...] = (0.0, 0.02, 0.1)  # odds of a call in bad weather
    is_always_bad: bool = False  # the weather


OF_NETWORK = ("weather", "weather", "cut", "cut", "cut out", "cut back", "break")
OF_NODES = ("freeze", "freeze", "kill", "close", "reopen", "add", "evict the dead", "older version")
OF_LOSS = ("restart", "restart", "flush", "replica")
OF_SERVER = (*OF_LOSS, "server stands", "server away", "jump", "jump", "scripts gone", "full")
MIXED = (0.0, 0.001, 0.01, 0.05, 0.1, 0.3, 1.2, 2.5)
THEMES = {
    "all": Theme(
        OF_NETWORK + OF_NODES + OF_SERVER,
        between=(0.05, 1.0),
        seconds=(0.05, 0.2, 0.5, 0.8, 1.2, 2.5),
        holds=MIXED,
        pauses=(0.0, 0.0, 0.001, 0.02, 0.2),
        sites=3,
        length=8.0,
        harm=(0.0, 0.02, 0.1),
    ),
    "late": Theme(  # entries that open and close, while old calls and messages come again
        ("weather", "break", "reopen", "freeze"),
        between=(0.2, 1.0),
        seconds=(0.1, 0.5, 1.0),
        holds=(0.0, 0.005, 0.02, 0.05, 0.2, 0.9),
        pauses=(0.0, 0.0, 0.02, 0.1, 0.3),
        harm=(0.0, 0.3),
        loss=(0.0, 0.05),
        is_always_bad=True,
    ),
    "deaf": Theme(  # nodes that reach the server, but get no replies
        ("weather", "cut back", "cut out", "cut"),
        between=(0.3, 1.5),
        seconds=(0.5, 0.8, 1.2, 2.0),
        holds=(0.05, 0.3, 1.2, 2.5),
        pauses=(0.0, 0.02, 0.2),
        loss=(0.5, 0.8, 0.95),
    ),
    "losses": Theme(  # of data, which nodes notice late
        (*OF_LOSS, "cut", "cut", "cut back", "weather", "kill", "freeze"),
        between=(0.05, 0.6),
        seconds=(0.05, 0.2, 0.4, 0.7),
        holds=(0.1, 0.3, 1.2, 2.5),
        pauses=(0.0, 0.02, 0.2),
        loss=(0.0, 0.2, 0.5),
    ),
    "evicting": Theme(  # a server that may evict any key, and does
        ("evict", "evict", "break", "weather", "kill"),
        between=(0.1, 0.8),
        seconds=(0.1, 0.5),
        holds=(0.1, 0.3, 1.2, 2.5),
        pauses=(0.0, 0.02, 0.2),
        loss=(0.0, 0.02),
    ),
    "safe": Theme(  # no fault by which a node loses a permit
        ("flush", "scripts gone", "break", "restart", "evict the dead", "full"),
        between=(0.1, 0.8),
        seconds=(0.05, 0.1),
        holds=(0.1, 0.3, 1.2, 2.5),
        pauses=(0.0, 0.02, 0.2),
    ),
    "clocks": Theme(
        ("jump", "jump", "cut", "weather", "server stands", "freeze", "kill"),
        between=(0.1, 0.8),
        seconds=(0.1, 0.3, 0.6, 1.2),
        holds=(0.1, 0.3, 1.2, 2.5),
        pauses=(0.0, 0.02, 0.2),
    ),
}


def plan_for(seed: int) -> Plan:
    """The plan of a seed."""
    random = Random(seed)
    storms = [partial(_storm, theme) for theme in THEMES]
    kinds: list[Callable[[int, Random], Plan]] = [*storms, _calm, _paced, _crowd, _days]
    closed = Random(f"{seed} closed")  # as below
    if closed.random() < 0.02:
        return _closing(seed, closed)
    others = Random(f"{seed} sick")
    if others.random() < 0.02:  # feature: unresponsive
        return _sick(seed, others)
    if others.random() < 0.01:  # feature: blocked
        return _blocked(seed, others)
    if others.random() < 0.01:  # feature: learned_interval
        return _metered(seed, others)
    if others.random() < 0.03:
        return _busy(seed, others)
    rare = Random(f"{seed} rare")
    if rare.random() < 0.03:
        return rare.choice((_mixed, _mixed, _leaving))(seed, rare)
    is_busy = others.random() < 0.3
    (draw,) = random.choices(kinds, (5, 4, 2, 3, 2, 1, 2, 3, 2, 4, 1))
    plan = draw(seed, random)
    if is_busy:
        plan = replace(plan, faults=tuple(map(as_block, plan.faults)))
    plan = replace(plan, lingers=others.random() < 0.2)
    if "all" in plan.limits and rare.random() < 0.2:
        plan = _grouped(rare, plan)
    random = Random(-1 - seed)  # another one, so that plans without jobs are what they were before
    if random.random() < 0.01:
        return _shared(seed, random)
    if plan.kind == "crowd" or random.random() < 0.7:
        return plan
    names = random.choice((("a", "b"), ("a", "b", "c"), ("", "a")))
    return replace(plan, jobs={node: random.choice(names) for node in range(plan.nodes)})


def plan_for_managed(seed: int) -> Plan:
    """The plan of a seed on a managed server: scripts may not use INFO, and a proxy hides a replica
    that takes over.
    """
    plan = plan_for(seed)
    faults = tuple(
        replace(fault, node=1) if fault.kind == "replica" else fault for fault in plan.faults
    )
    return replace(plan, faults=faults, gives_scripts_info=False)


# Kinds of runs ----------------------------------------------------------------------------------


def _storm(name: str, seed: int, random: Random) -> Plan:
    """Much work at few sites, and faults."""
    theme = THEMES[name]
    lease = random.choice((2.0, 3.0, 6.0))
    nodes = random.choice((2, 3, 3, 4))
    limits = _limits(random, theme.sites)
    faults = _faults(random, theme, nodes, lease)
    jumps = any(fault.kind == "jump" for fault in faults)
    return Plan(
        seed,
        "storm",
        lease,
        reuse_window=random.choice((0.0, 0.1, 0.1, 0.5)),
        nodes=nodes,
        limits=limits,
        workers=_workers(random, theme, nodes, lease, 0.0 if jumps else 0.3 * lease),
        faults=faults,
        own_limits=_own_limits(random, nodes) if theme.sites > 1 else {},
        is_evicting=name == "evicting",
        theme=name,
    )


def _busy(seed: int, random: Random) -> Plan:
    """Nodes whose callbacks block their loops, and nothing else: no permit is lost."""
    lease = random.choice((2.0, 6.0))
    nodes = random.choice((2, 3))
    theme = Theme(
        ("block",),
        between=(0.2, 1.5),
        seconds=(0.2, 0.5, 1.0, 1.75, 4.0, 6.0),
        holds=MIXED,
        pauses=(0.0, 0.0, 0.02, 0.2),
        length=12.0,
    )
    return Plan(
        seed,
        "storm",
        lease,
        reuse_window=random.choice((0.0, 0.1, 0.5)),
        nodes=nodes,
        limits={"a.com": random.choice((Limit(1), Limit(2), Limit(2, delay=0.3)))},
        workers=_workers(random, theme, nodes, lease, 0.0),
        faults=_faults(random, theme, nodes, lease),
        theme="safe",
    )


def as_block(fault: Fault) -> Fault:
    """A node whose loop alone stands still."""
    return replace(fault, kind="block") if fault.kind == "freeze" else fault


def _calm(seed: int, random: Random) -> Plan:
    """Mixed work, and no fault: exact bounds are checked here."""
    lease = random.choice((2.0, 6.0, 15.0))
    nodes = random.choice((1, 2, 3))
    theme = replace(THEMES["all"], length=4.0)
    limits = _limits(random, theme.sites)
    return Plan(
        seed,
        "calm",
        lease,
        reuse_window=random.choice((0.0, 0.1, 0.1, 0.5)),
        nodes=nodes,
        limits=limits,
        workers=_workers(random, theme, nodes, lease, 0.0),
        faults=_rules(random, 4 * lease) if random.random() < 0.4 else (),
    )


def _paced(seed: int, random: Random) -> Plan:
    """A site with an interval between starts, and nodes whose requests wait, or give up."""
    lease = random.choice((2.0, 6.0))
    nodes = random.choice((2, 3, 4))
    limits = (Limit(2, delay=0.3), Limit(9, delay=1.0), Limit(9, rate="2/s", burst=4), Limit(1))
    theme = replace(THEMES["all"], sites=1, length=8.0)
    theme = replace(theme, holds=(0.0, 0.01, 0.05), pauses=(0.0, 0.0, 0.2))
    return Plan(
        seed,
        "calm",
        lease,
        reuse_window=random.choice((0.0, 0.1, 0.5)),
        nodes=nodes,
        limits={"a.com": random.choice(limits)},
        workers=_workers(random, theme, nodes, lease, 0.0),
        faults=_breaks(random, nodes, 8 * lease) if random.random() < 0.5 else (),
    )


def _crowd(seed: int, random: Random) -> Plan:
    """Nodes that always want permits of one site, some of them few and some many; the requests of
    some take longer.
    """
    nodes = random.choice((2, 3, 5))
    hold = random.choice((0.02, 0.05, 0.2, 0.2))
    least = min(hold, 0.04)
    holds = [random.choice((least, hold)) for _ in range(nodes)]
    wants = [random.choice((1, 1, 2, 10, 20)) for _ in range(nodes)]
    limit = random.choice((1, 2, 3, 5))
    pauses = [
        random.choice((0.0, 0.0, 0.0, hold)) if want == 1 and own_hold == hold else 0.0
        for want, own_hold in zip(wants, holds, strict=True)
    ]
    return Plan(
        seed,
        "crowd",
        lease=15.0,
        reuse_window=random.choice((0.0, 0.1)),
        nodes=nodes,
        limits={"a.com": Limit(limit)},
        workers=tuple(
            Worker(node, (Job(("a.com",), holds[node], pause),) * 1500)
            for node, (want, pause) in enumerate(zip(wants, pauses, strict=True))
            for _ in range(want)
        ),
    )


def _shared(seed: int, random: Random) -> Plan:
    """Jobs of several nodes that always want many permits of one site, except one that comes and
    goes.
    """
    names = "abcd"[: random.choice((2, 2, 3, 4))]
    many = [name for name in names for _ in range(random.choice((1, 1, 3)))]
    jobs = dict(enumerate(many))
    hold = 0.1
    limit = Limit(random.choice((1, 2, 3, 4, 4)))
    if random.random() < 0.3:
        limit = random.choice((Limit(4, delay=0.1, jitter=0.0), Limit(4, rate="20/s", burst=2)))
        hold = 0.01
    holds = {node: hold * random.choice((1, 1, 2)) for node in jobs}
    last = max(jobs)
    return Plan(
        seed,
        "shared",
        lease=3.0,
        reuse_window=random.choice((0.0, 0.1)),
        nodes=len(jobs),
        limits={"a.com": limit},
        workers=tuple(
            Worker(node, (Job(("a.com",), holds[node], 0.0),) * 1000)
            for node in jobs
            for _ in range(limit.concurrency + 1)  # one always waits
        ),
        faults=(Fault(PHASES_S[0], "close", last, PHASES_S[1] - PHASES_S[0]),),
        jobs=jobs,
    )


def _sick(seed: int, random: Random, outcome: str = "failed") -> Plan:  # feature: unresponsive
    """Nodes whose own network is broken, so that their requests to a healthy site fail in moments;
    and mostly one that is well, and that may come later than they do.
    """
    sick = random.choice((1, 2, 2, 3))
    is_one_machine = random.random() < 0.5
    well = random.choice((0, 1, 1, 1))
    is_late = random.random() < 0.5 and (sick == 1 or is_one_machine)
    limit = random.choice((2, 4, 8))
    workers = [
        Worker(node, (Job(("a.com",), 0.005, 0.05, outcome=outcome),) * 3000)
        for node in range(sick)
        for _ in range(random.choice((1, 3, limit + 1)))
    ]
    page = Job(("a.com",), random.choice((0.1, 0.3)), 0.0)
    first = replace(page, pause=LATE_S if is_late else 0.0)
    workers += [Worker(sick, (first, *(page,) * 1000)) for _ in range(well * (limit + 1))]
    return Plan(
        seed,
        "sick",
        lease=3.0,
        reuse_window=random.choice((0.0, 0.1)),
        nodes=sick + well,
        limits={"a.com": Limit(limit)},
        workers=tuple(workers),
        machines=dict.fromkeys(range(sick), 0) if is_one_machine else {},
        down_after={node: random.choice((0.0, 5.0, 15.0)) for node in range(sick)},
    )


def _blocked(seed: int, random: Random) -> Plan:  # feature: blocked
    """A site that refuses everything for long, or all that is above a quota, and nodes whose pages
    fail at once when it counts as blocked.
    """
    nodes = random.choice((1, 2, 3))
    period = random.choice((10.0, BLOCKED_S / 2, 2 * BLOCKED_S))
    is_named = period > BLOCKED_S or random.random() < 0.5
    site = random.choice((partial(Wall, 2 * BLOCKED_S), partial(Quota, 20, period, is_named)))
    limit = Limit(random.choice((1, 2, 4)))
    pages = (Job(("a.com",), random.choice((0.05, 0.2)), 0.1),) * 5000
    return Plan(
        seed,
        "blocked",
        lease=3.0,
        reuse_window=random.choice((0.0, 0.1)),
        nodes=nodes,
        limits={"a.com": limit},
        workers=tuple(Worker(n, pages) for n in range(nodes) for _ in range(limit.concurrency + 1)),
        site=site,
    )


def _metered(seed: int, random: Random) -> Plan:  # feature: learned_interval
    """A site that meters starts, and nodes that want more than it allows. Its rate changes."""
    nodes = random.choice((1, 2, 4))
    before, after = random.choice(((5.0, 2.0), (2.0, 10.0), (3.5, 5.0)))
    burst = random.choice((3.0, 5.0, 10.0))
    hold = random.choice((0.05, 0.3, 1.0))
    limit = Limit(12 if hold == 1.0 else 8)
    pages = (Job(("a.com",), hold, 0.0),) * 5000
    return Plan(
        seed,
        "metered",
        lease=3.0,
        reuse_window=random.choice((0.0, 0.1)),
        nodes=nodes,
        limits={"a.com": limit},
        workers=tuple(Worker(n, pages) for n in range(nodes) for _ in range(limit.concurrency + 1)),
        site=partial(Meter, ((0.0, before), (RATE_CHANGES_S, after)), burst),
    )


def _closing(seed: int, random: Random) -> Plan:
    """Connections that are closed without a response: by a site that meters starts, or to all; by
    networks of nodes; for one page; or because they were idle.
    """
    worlds: list[Callable[[int, Random], Plan]] = [
        _closing_some,
        lambda *of: replace(_metered(*of), closes=True),  # feature: learned_interval
        partial(_sick, outcome="closed"),  # feature: unresponsive
    ]
    return random.choice(worlds)(seed, random)


def _closing_some(seed: int, random: Random) -> Plan:
    """A site that is well, and closes connections for one page, or after they were idle."""
    nodes = random.choice((1, 2, 3))
    limit = Limit(random.choice((2, 4, 8)))
    page = Job(("a.com",), random.choice((0.05, 0.2)), 0.0)
    closed = random.choice(
        (
            (replace(page, hold=0.02, pause=0.3, outcome="closed", page="the same"),),
            (replace(page, pause=0.3), replace(page, hold=0.02, outcome="closed idle")),
        )
    )
    return Plan(
        seed,
        "closing",
        lease=3.0,
        reuse_window=random.choice((0.0, 0.1)),
        nodes=nodes,
        limits={"a.com": limit},
        workers=(
            *(Worker(node, closed * 1000) for node in range(nodes)),
            *(Worker(n, (page,) * 5000) for n in range(nodes) for _ in range(limit.concurrency)),
        ),
    )


def _mixed(seed: int, random: Random) -> Plan:
    """Nodes that hold a permit of one site all the time, and name limits of different intervals. Of
    each part the strictest counts. They want more all the time, or now and then.
    """
    nodes = random.choice((2, 3))
    intervals = (
        Limit(6),
        Limit(9, delay=0.3),
        Limit(9, delay=1.0),
        Limit(9, delay=0.2, jitter=0.1),
        Limit(9, delay=0.5, jitter=0.9),
        Limit(9, rate="5/s", burst=4),
        Limit(9, rate="2/s", burst=2),
        Limit(6, rate="4/s"),
    )
    page = Job(("a.com",), random.choice((0.01, 0.2, 1.0)), 0.0)
    pauses = random.choice(((0.0,), (0.5, 1.0, 3.0)))
    return Plan(
        seed,
        "mixed",
        lease=3.0,
        reuse_window=random.choice((0.0, 0.1)),
        nodes=nodes,
        limits={"a.com": Limit(9)},
        workers=(
            *(Worker(node, (replace(page, hold=1e3),)) for node in range(nodes)),
            *(
                Worker(
                    node,
                    5 * tuple(replace(page, pause=random.choice(pauses)) for _ in range(200)),
                )
                for node in range(nodes)
                for _ in range(10)
            ),
        ),
        own_limits={node: {"a.com": random.choice(intervals)} for node in range(nodes)},
    )


def _leaving(seed: int, random: Random) -> Plan:
    """A node that closes while it holds fifty permits, at a site of its own or at many; the others
    wait for them.
    """
    sites = random.choice((("a.com",), tuple(f"{number}.com" for number in range(50))))
    page = Job((), 5.0, 0.0)
    workers = [
        Worker(node, (replace(page, scopes=(sites[number % len(sites)],), pause=0.5 * node),) * 2)
        for node in range(2)
        for number in range(50)
    ]
    return Plan(
        seed,
        "calm",
        lease=random.choice((2.0, 6.0)),
        reuse_window=random.choice((0.0, 0.1)),
        nodes=2,
        limits=dict.fromkeys(sites, Limit(50 // len(sites))),
        workers=tuple(workers),
        faults=(Fault(2.0, "close", 0, random.choice((0.5, 3.0))),),
        lingers=True,
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


def _grouped(random: Random, plan: Plan) -> Plan:
    """The plan with two sites in a group of the user."""
    limit = random.choice((Limit(1), Limit(2), Limit(9, delay=0.1)))
    workers = []
    for worker in plan.workers:
        jobs = [
            replace(job, scopes=("group", *job.scopes))
            if "c.com" not in job.scopes and random.random() < 0.7
            else job
            for job in worker.jobs
        ]
        workers.append(replace(worker, jobs=tuple(jobs)))
    return replace(plan, limits={**plan.limits, "group": limit}, workers=tuple(workers))


# What they are made of --------------------------------------------------------------------------


def _limits(random: Random, sites: int) -> dict[str, Limit]:
    """Of one site, or of three and what their requests share."""
    if sites == 1:
        paced = (Limit(2, delay=0.3), Limit(2, rate="3/s", burst=3), Limit(3, adaptive=True))
        return {"a.com": random.choice((Limit(1),) * 4 + (Limit(2),) * 3 + (Limit(3), *paced))}
    return {
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


def _own_limits(random: Random, nodes: int) -> dict[int, dict[str, Limit]]:
    """In some plans a node names stricter or looser limits than the others."""
    if random.random() < 0.75:
        return {}
    return {random.randrange(nodes): {"a.com": Limit(random.choice((1, 2, 4)))}}


def _workers(
    random: Random, theme: Theme, nodes: int, lease: float, slowest_end: float
) -> tuple[Worker, ...]:
    workers = []
    uses_shared = theme.sites > 1 and random.random() < 0.5
    harm = random.choice(theme.harm)
    for node in range(nodes):
        for _ in range(random.choice((1, 2, 3))):
            jobs: list[Job] = []
            left = theme.length * lease
            while left > 0 and len(jobs) < 30:
                job = _job(random, theme, lease, uses_shared, harm, slowest_end)
                jobs.append(job)
                left -= job.pause + job.hold + 0.1
            workers.append(Worker(node, tuple(jobs)))
    return tuple(workers)


def _job(
    random: Random,
    theme: Theme,
    lease: float,
    uses_shared: bool,
    harm: float,
    slowest_end: float,
) -> Job:
    scopes = [random.choice(SITES[: theme.sites])]
    if uses_shared and random.random() < 0.5:
        scopes = [*random.sample(SHARED, random.choice((1, 2))), *scopes]
    outcome = "good"
    if random.random() < harm:
        outcome = random.choice(("error", "refused", "failed", "failed"))
    elif random.random() < 0.04:
        outcome = "unused"
    return Job(
        tuple(scopes),
        hold=lease * random.choice(theme.holds),
        pause=lease * random.choice(theme.pauses),
        timeout=random.choice((None, None, None, None, 0.02, 0.5, 5.0)),
        cancel_after=random.choice((None,) * 6 + (0.0, 0.001, 0.01, 0.3)),
        priority=random.choice((0, 0, 0, 1, 5)),
        outcome=outcome,
        asks_pause=random.choice((0.0, 0.0, 0.5)) if outcome in ("refused", "error") else 0.0,
        slow_end=random.choice((0.0, 0.0, 0.5, 1.0)) * slowest_end,
    )


def _faults(random: Random, theme: Theme, nodes: int, lease: float) -> tuple[Fault, ...]:
    """Faults at random times. Jumps lie apart, as docs/guarantees.md requires."""
    faults = []
    length = theme.length * lease
    if theme.is_always_bad:
        faults.append(Fault(lease, "weather", seconds=length, of=weather(random, lost=theme.loss)))
    at = random.uniform(0.5, 1.5) * lease
    jumped_at = -length
    while at < length:
        kind = random.choice(theme.faults)
        of: Any = None
        if kind == "weather":
            of = weather(random, lost=theme.loss)
        elif kind == "restart":
            of = random.choice(("empty", "with its data", "from a snapshot"))
        elif kind == "replica":
            of = random.choice((0.0, 0.01, 0.3, 1.5)) * lease  # what it lacks
        elif kind == "evict":
            of = random.randrange(100)
        elif kind == "jump":
            of = random.choice((-3600.0, -20.0, -1.0, 0.3, 2.0, 20.0, 3600.0))
            if at - jumped_at < 1.5 * lease:
                kind = "break"
            else:
                jumped_at = at
        seconds = random.choice((0.05, 1.2) if kind == "full" else theme.seconds) * lease
        faults.append(Fault(at, kind, random.randrange(nodes), seconds, of))
        at += random.uniform(*theme.between) * lease
    if theme.sites > 1 and random.random() < 0.3:
        faults += _rules(random, length)
    return tuple(sorted(faults, key=lambda fault: fault.at))


def _breaks(random: Random, nodes: int, length: float) -> tuple[Fault, ...]:
    """Connections that break, and are soon replaced."""
    return tuple(
        Fault(random.uniform(0.0, length), "break", random.randrange(nodes)) for _ in range(5)
    )


WEATHER: dict[str, Any] = {  # what may be drawn for each attribute of `Weather`
    "latency": ((0.0002, 0.004), (0.001, 0.05), (0.01, 0.3)),
    "lost": (0.0, 0.02, 0.1),
    "late": (0.0, 0.03, 0.1),
    "repeated": (0.0, 0.1, 0.3),
    "torn": (0.0, 0.05),
    "message_lost": (0.0, 0.05, 0.5),
    "message_late": (0.0, 0.1, 0.3),
    "message_repeated": (0.0, 0.3),
}


def weather(random: Random, **odds: tuple[float, ...]) -> dict[str, Any]:
    """Arguments of `Weather`; `odds` replace those of `WEATHER`."""
    return {name: random.choice(those) for name, those in (WEATHER | odds).items()}


def _rules(random: Random, length: float) -> tuple[Fault, ...]:
    """What an operator sets."""
    scope = random.choice(("a.com", "b.com"))
    changes = ("pause", "resume", "reset", 1, 2, 4, "delay")
    return tuple(
        Fault(random.uniform(0.0, 0.8) * length, "rule", of=(scope, random.choice(changes)))
        for _ in range(random.choice((1, 2, 4)))
    )
