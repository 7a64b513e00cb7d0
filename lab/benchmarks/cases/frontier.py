"""A crawl that nodes share: compared with scrapy-redis, and with up to ten million URLs seen."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from statistics import median

import redis

from lab.benchmarks import rivals
from lab.benchmarks.harness.crawls import with_add_on
from lab.benchmarks.harness.figures import alternating, median_ratio, percentile, ratios_text
from lab.benchmarks.harness.full_frontier import NAME, FullFrontier, bytes_of, memory
from lab.benchmarks.harness.report import Cell, Goal, Report
from lab.benchmarks.harness.shared_crawl import PAGE_MS, Settings, SharedCrawl
from lab.benchmarks.harness.stillness import watching
from tests.support.server_time import Reading
from tests.support.servers import RedisServer

ROUND_TRIPS_S = (0.0, 0.001, 0.02)  # to the server: on this machine, and further away
LEASE_S = 2.0  # where a node dies: so long its pages wait for the other
ENDLESS = 1_000_000  # pages
SETTINGS = {"CONCURRENT_REQUESTS_PER_DOMAIN": 16, "CRAWL_LEASE": LEASE_S}
MOST_MEMORY = ("--maxmemory", "4gb")  # then the server is full, rather than the machine
MOST_BYTES_SEEN = 20
MOST_TIMES = 2.0  # that an exchange may take at the large end, times the small end's
HOSTS, HOST_NODES, HOST_MS = 300, 3, 100  # a page takes so long

PAGES, SERVER_TIME = "pages a second", "server time a page, us"
SEEN, QUEUED = "bytes a URL seen", "bytes a request queued"
MISSED, TWICE, ITEMS = (f"a node killed: {what}" for what in ("missed", "twice", "items"))


Part = tuple[list[Sequence[Cell]], list[Goal]]


@dataclass(frozen=True, slots=True)
class Frontier:
    """One of the two that are compared."""

    name: str
    settings: Settings
    bytes_of: Callable[[redis.Redis], tuple[float, float]]
    """Of a URL seen, and of a request queued."""


def _their_bytes(client: redis.Redis) -> tuple[float, float]:
    seen, queue = "linked:dupefilter", "linked:requests"
    return memory(client, seen) / client.scard(seen), memory(client, queue) / client.zcard(queue)


SCHEDULER = {"SCHEDULER": "semaphore_middleware.Scheduler"}
OURS = Frontier(
    "ours",
    lambda url: {**SETTINGS, **SCHEDULER, "REDIS_URL": url},
    partial(bytes_of, crawl="linked"),
)
THEIRS = Frontier(
    "scrapy-redis", lambda url: {**SETTINGS, **rivals.scrapy_redis(url)}, _their_bytes
)
WITH_ADD_ON = Frontier(
    "with the add-on", lambda url: {**OURS.settings(url), **with_add_on(url)}, OURS.bytes_of
)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of everything."""

    rounds: int
    seconds: float  # in which pages are counted
    pages: int  # of the site whose crawl loses a node
    sizes: Sequence[tuple[int, int]]  # URLs seen, of which so many are queued
    exchanges: int


QUICK = Plan(1, 4.0, 600, [(10**4, 10**4), (10**5, 10**4)], 200)
SIZES = [*((10**n, 10**n) for n in (4, 5, 6)), (10**7, 2 * 10**6)]
WHOLE = Plan(3, 15.0, 1500, SIZES, 2000)


def measure(quick: bool) -> Report:
    rivals.check_installed(rivals.FRONTIER)
    plan = QUICK if quick else WHOLE
    rows, goals = _beside(plan)
    for part in (_many_hosts(plan), asyncio.run(_range(plan))):
        rows += part[0]
        goals += part[1]
    pair = (
        f"{plan.rounds} rounds of {plan.seconds:g} s, alternating, medians; a server for each "
        f"crawl of two nodes and one site, which answers in {PAGE_MS} ms. A page has 11 links, 8 "
        f"of them new. Death: at a third of {plan.pages:,} pages a node is killed, and started "
        f"again; our leases are {LEASE_S:g} s. {rivals.version_of(rivals.FRONTIER)}, with "
        f"SCHEDULER_PERSIST. Many hosts: {HOST_NODES} nodes, {HOSTS} hosts, pages of {HOST_MS} ms."
    )
    ranges = (
        "Exchange: one call that queues 32 requests, finishes 32 and takes 32, of 1000 sites. "
        "Held up: the longest that a ping to the server waits, at the large end. "
        "Bytes: MEMORY USAGE; of a request queued, all keys but that of URLs seen."
    )
    return Report(
        "frontier: crawls that nodes share",
        ("", OURS.name, THEIRS.name),
        rows,
        goals,
        [pair, ranges],
    )


# Beside scrapy-redis ----------------------------------------------------------------------------


def _beside(plan: Plan) -> Part:
    found: dict[str, dict[Frontier, list[float]]] = defaultdict(lambda: {OURS: [], THEIRS: []})
    of_deaths: dict[Frontier, list[Counter[str]]] = {OURS: [], THEIRS: []}
    for each in alternating(plan.rounds, [OURS, THEIRS]):
        for round_trip_s in ROUND_TRIPS_S:
            for figure, value in _endless(each, plan.seconds, round_trip_s).items():
                found[figure][each].append(value)
        of_deaths[each].append(_after_a_death(each, plan.pages))
    medians = {
        figure: [median(values) for values in of_both.values()] for figure, of_both in found.items()
    }
    goals = []
    for figure, (ours, theirs) in medians.items():
        if figure.startswith(PAGES):
            goals.append(Goal(f"{figure}: ours", ours, at_least=theirs))
    ours, theirs = medians[SERVER_TIME]
    goals.append(Goal(f"{SERVER_TIME}: ours", ours, at_most=theirs))
    missed = max(counts[MISSED] for counts in of_deaths[OURS])
    goals.append(Goal(f"{MISSED} of {plan.pages:,}", missed, at_most=0))
    rows: list[Sequence[Cell]] = [(figure, *values) for figure, values in medians.items()]
    for figure in (MISSED, TWICE, ITEMS):
        of_each = [
            ", ".join(f"{counts[figure]}" for counts in of_deaths[each]) for each in found[PAGES]
        ]
        rows.append((f"{figure}, {plan.pages:,} pages", *of_each))
    return rows, goals


def _many_hosts(plan: Plan) -> Part:
    """Where no limit holds a node back: the scheduler alone, and with the add-on."""
    found: dict[Frontier, list[float]] = {OURS: [], WITH_ADD_ON: [], THEIRS: []}
    for each in alternating(plan.rounds, list(found)):
        figures = _endless(each, plan.seconds, nodes=HOST_NODES, hosts=HOSTS, page_ms=HOST_MS)
        found[each].append(figures[PAGES])
    rows: list[Sequence[Cell]] = [
        (f"{PAGES}, many hosts: {name}", median(found[each]), median(found[THEIRS]))
        for name, each in (("the scheduler alone", OURS), (WITH_ADD_ON.name, WITH_ADD_ON))
    ]
    goals = []
    for other, least in ((THEIRS, 1.15), (OURS, 0.97)):
        both = found[WITH_ADD_ON], found[other]
        name = f"{PAGES}, many hosts: with the add-on / {other.name}, {ratios_text(*both)}"
        goals.append(Goal(name, median_ratio(*both), at_least=least))
    return rows, goals


def _endless(
    frontier: Frontier,
    seconds: float,
    round_trip_s: float = 0.0,
    nodes: int = 2,
    hosts: int = 1,
    page_ms: int = PAGE_MS,
) -> dict[str, float]:
    """Of a crawl that does not end."""
    with ExitStack() as stack:
        crawl = SharedCrawl(
            stack, frontier.settings, ENDLESS, round_trip_s, hosts=hosts, page_ms=page_ms
        )
        crawl.start_nodes(nodes)
        time.sleep(1)  # and until they have come into their swing
        with crawl.server.client() as client:
            before, begin = Reading.now(client), time.monotonic()
            time.sleep(seconds)
            used, end = Reading.now(client) - before, time.monotonic()
            crawl.stop()
            bytes_seen, bytes_queued = frontier.bytes_of(client)
        pages = sum(begin <= moment < end for moment, _ in crawl.had())
    figures = {PAGES: pages / (end - begin), SERVER_TIME: used.seconds * 1e6 / pages}
    if round_trip_s:
        away = f", {1000 * round_trip_s:g} ms from the server"
        return {figure + away: value for figure, value in figures.items()}
    return {**figures, SEEN: bytes_seen, QUEUED: bytes_queued}


def _after_a_death(frontier: Frontier, pages: int) -> Counter[str]:
    with ExitStack() as stack:
        crawl = SharedCrawl(stack, frontier.settings, pages)
        victim = crawl.start_nodes()
        crawl.wait_for(pages // 3)
        victim.kill()
        victim.wait()
        crawl.start_node()
        crawl.wait_for_the_end()
        had = Counter(page for _, page in crawl.had())
    twice = sum(times > 1 for times in had.values())
    return Counter({MISSED: pages - len(had), TWICE: twice, ITEMS: had.total()})


# The range --------------------------------------------------------------------------------------


async def _range(plan: Plan) -> Part:
    rows: list[Sequence[Cell]] = []
    p50 = []
    with (
        RedisServer(*MOST_MEMORY) as server,
        server.client() as client,
        watching(server.url) as stillness,
    ):
        frontier = FullFrontier(server, client)
        await frontier.begin()
        try:
            for seen, queued in plan.sizes:
                await frontier.grow(seen, queued)
                await frontier.exchange(20)  # the first ones take what there is
                seconds = await frontier.exchange(plan.exchanges)
                of_seen, of_queued = bytes_of(client, NAME)
                p50.append(percentile(seconds, 0.5) * 1e3)
                size = f"{seen:,} seen, {queued:,} queued: "
                rows += [
                    (size + SEEN, of_seen, None),
                    (size + QUEUED, of_queued, None),
                    (size + "exchange p50, ms", p50[-1], None),
                    (size + "exchange p99, ms", percentile(seconds, 0.99) * 1e3, None),
                ]
            stillness.take_ms()
            async for upheaval in frontier.upheavals():
                rows.append((f"server held up, ms: {upheaval}", stillness.take_ms(), None))
        finally:
            await frontier.close()
    return rows, [
        Goal("bytes a URL seen, at the large end", of_seen, at_most=MOST_BYTES_SEEN),
        Goal("exchange p50, large end / small end", p50[-1] / p50[0], at_most=MOST_TIMES),
    ]
