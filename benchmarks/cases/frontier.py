"""A crawl that nodes share: beside scrapy-redis, and with up to ten million URLs seen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import redis

from benchmarks.harness.full_frontier import FullFrontier, big_server
from benchmarks.harness.handover import percentile
from benchmarks.harness.meter import Reading
from benchmarks.harness.report import Cell, Goal, Report
from benchmarks.harness.shared_crawls import Settings, Site, shared_crawl
from benchmarks.rivals import scrapy_redis

ROUND_TRIP_S = 0.02  # to the server that is far away
LEASE_S = 2.0  # where a node dies: so long its pages wait for the other
ENDLESS = Site(pages=1_000_000, page_ms=20)
SETTINGS = {"CONCURRENT_REQUESTS_PER_DOMAIN": 16, "CRAWL_LEASE": LEASE_S}
MOST_BYTES_SEEN = 20
MOST_TIMES = 2.0  # that an exchange may take at the large end, times the small end's


@dataclass(frozen=True, slots=True)
class Frontier:
    """One of the two that are compared."""

    name: str
    settings: Settings
    bytes_of: Callable[[redis.Redis], tuple[float, float]]
    """Of a URL seen, and of a request queued."""


def _settings(url: str) -> dict[str, Any]:
    return {"SCHEDULER": "semaphore_middleware.frontier.Scheduler", "REDIS_URL": url, **SETTINGS}


def _bytes(client: redis.Redis) -> tuple[float, float]:
    key = "{{crawl:linked}}:{}".format
    seen = int(client.hget(key("seen"), "count") or 0)
    queued = _memory(client, *map(key, ("requests", "queue", "sites", "taken")))
    return _memory(client, key("seen")) / seen, queued / client.hlen(key("requests"))


def _their_settings(url: str) -> dict[str, Any]:
    return {**scrapy_redis.settings(url), **SETTINGS}


def _their_bytes(client: redis.Redis) -> tuple[float, float]:
    seen, queue = "linked:dupefilter", "linked:requests"
    return _memory(client, seen) / client.scard(seen), _memory(client, queue) / client.zcard(queue)


def _memory(client: redis.Redis, *keys: str) -> int:
    return sum(client.memory_usage(key, samples=0) or 0 for key in keys)


OURS = Frontier("ours", _settings, _bytes)
THEIRS = Frontier("scrapy-redis", _their_settings, _their_bytes)
BOTH = (OURS, THEIRS)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of everything."""

    rounds: int
    seconds: float  # in which pages are counted
    pages: int  # of the site whose crawl loses a node
    sizes: Sequence[tuple[int, int]]  # URLs seen, of which so many are queued
    exchanges: int


QUICK = Plan(1, 4.0, 600, [(10**4, 10**4), (10**5, 10**5)], 200)
WHOLE = Plan(3, 15.0, 1500, [*((10**n, 10**n) for n in (4, 5, 6)), (10**7, 10**6)], 2000)


def measure(quick: bool) -> Report:
    if not scrapy_redis.is_installed():
        raise SystemExit("scrapy-redis is not installed; `make bench` does that")
    plan = QUICK if quick else WHOLE
    rows, goals = _beside(plan)
    more_rows, more_goals = asyncio.run(_range(plan))
    pair = (
        f"{plan.rounds} rounds, both in each of them, medians; a server for each crawl. Two nodes "
        "and one site, which answers in 20 ms; without the add-on. A page has 11 links, 8 of them "
        "new, and is one that a callback has had. Pages a second: in "
        f"{plan.seconds:g} s. Far away: a proxy delays what goes either way by "
        f"{1000 * ROUND_TRIP_S / 2:g} ms."
    )
    death = (
        f"Death: at a third of {plan.pages:,} pages one node is killed (SIGKILL) and started "
        f"again; our leases are {LEASE_S:g} s. {scrapy_redis.version()}, with SCHEDULER_PERSIST."
    )
    ranges = (
        f"Exchange: one call that queues 32 requests, finishes 32 and takes 32, of 1000 sites; "
        f"{plan.exchanges} of them, over a Unix socket. Bytes: MEMORY USAGE; of a request queued, "
        "all keys but that of URLs seen. Requests are JSON, with URLs of 60 characters."
    )
    return Report(
        "frontier: crawls that nodes share",
        ("", *(frontier.name for frontier in BOTH)),
        [*rows, *more_rows],
        [*goals, *more_goals],
        [pair, death, ranges],
    )


# Beside scrapy-redis ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Speed:
    """Of a crawl that does not end."""

    pages: float  # a second
    server_us: float  # of processor time, a page
    bytes_seen: float  # a URL
    bytes_queued: float


def _beside(plan: Plan) -> tuple[list[Sequence[Cell]], list[Goal]]:
    near: dict[str, list[Speed]] = {each.name: [] for each in BOTH}
    far: dict[str, list[Speed]] = {each.name: [] for each in BOTH}
    lost: dict[str, list[int]] = {each.name: [] for each in BOTH}
    for _ in range(plan.rounds):
        for each in BOTH:
            near[each.name].append(_speed(each, plan.seconds, 0.0))
            far[each.name].append(_speed(each, plan.seconds, ROUND_TRIP_S))
            lost[each.name].append(_lost(each, plan.pages))

    def row(what: str, found: dict[str, list[Speed]], of: Callable[[Speed], float]) -> list[Cell]:
        return [what, *(median(map(of, found[each.name])) for each in BOTH)]

    far_ms = 1000 * ROUND_TRIP_S
    rows = [
        row("pages a second", near, lambda speed: speed.pages),
        row(f"pages a second, {far_ms:g} ms from the server", far, lambda speed: speed.pages),
        row("server time a page, us", near, lambda speed: speed.server_us),
        row("bytes a URL seen", near, lambda speed: speed.bytes_seen),
        row("bytes a request queued", near, lambda speed: speed.bytes_queued),
    ]
    of = f"pages lost of {plan.pages:,}, a node killed"
    losses = [of, *(", ".join(map(str, lost[each.name])) for each in BOTH)]
    pages, pages_far, server_us, *_ = rows
    goals = [
        Goal(f"{what}: ours", _number(ours), **{bound: _number(theirs)})
        for (what, ours, theirs), bound in (
            (pages, "at_least"),
            (pages_far, "at_least"),
            (server_us, "at_most"),
        )
    ]
    return [*rows, losses], [*goals, Goal(of, max(lost[OURS.name]), at_most=0)]


def _speed(frontier: Frontier, seconds: float, round_trip_s: float) -> Speed:
    with shared_crawl(frontier.settings, ENDLESS, round_trip_s) as crawl:
        crawl.start_two()
        time.sleep(1)  # and until they have come into their swing
        with crawl.server.client() as client:
            before, begin = Reading.now(client), time.monotonic()
            time.sleep(seconds)
            used, end = Reading.now(client) - before, time.monotonic()
            crawl.stop()
            bytes_seen, bytes_queued = frontier.bytes_of(client)
        pages = sum(begin <= moment < end for moment, _ in crawl.had())
    server_us = used.seconds * 1e6 / pages
    return Speed(pages / (end - begin), server_us, bytes_seen, bytes_queued)


def _lost(frontier: Frontier, pages: int) -> int:
    with shared_crawl(frontier.settings, Site(pages, page_ms=20)) as crawl:
        victim = crawl.start_two()
        crawl.wait_for(pages // 3)
        victim.kill()
        victim.wait()
        crawl.start_node()
        crawl.wait_for_the_end()
        return pages - len({page for _, page in crawl.had()})


# The range --------------------------------------------------------------------------------------


async def _range(plan: Plan) -> tuple[list[Sequence[Cell]], list[Goal]]:
    rows: list[Sequence[Cell]] = []
    p50 = []
    with big_server() as (server, client):
        frontier = FullFrontier(server, client)
        await frontier.begin()
        try:
            for seen, queued in plan.sizes:
                await frontier.grow(seen, queued)
                await frontier.exchange(20)  # the first ones take what there is
                seconds, server_us = await frontier.exchange(plan.exchanges)
                are_seen, are_queued = await frontier.counts()
                of_seen = frontier.bytes_of("seen") / are_seen
                of_queued = frontier.bytes_of("requests", "queue", "sites", "taken") / are_queued
                p50.append(percentile(seconds, 0.5) * 1e3)
                size = f"{seen:,} seen, {queued:,} queued: "
                figures = {
                    "bytes a URL seen": of_seen,
                    "bytes a request queued": of_queued,
                    "exchange p50, ms": p50[-1],
                    "exchange p99, ms": percentile(seconds, 0.99) * 1e3,
                    "exchange, us of the server": server_us,
                }
                rows += [(size + what, figure, None) for what, figure in figures.items()]
        finally:
            await frontier.end()
    return rows, [
        Goal("bytes a URL seen, at the large end", of_seen, at_most=MOST_BYTES_SEEN),
        Goal("exchange p50, large end / small end", p50[-1] / p50[0], at_most=MOST_TIMES),
    ]


def _number(cell: Cell) -> float:
    assert isinstance(cell, float | int)
    return cell
