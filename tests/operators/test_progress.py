"""The log says each minute how many permits are held, and at its end what a crawl waited for."""

import asyncio
import logging
import re
from typing import Any

import pytest

from semaphore_middleware import FairSemaphore, Limit
from semaphore_middleware.operators import progress
from semaphore_middleware.operators.progress import Progress
from semaphore_middleware.politeness import ALL_REASONS
from tests.support.crawls import Crawl, Log, Patch, pages, waiting
from tests.support.nodes import eventually
from tests.support.servers import RedisServer
from tests.support.simulated import SimulatedServer, in_simulated_time
from tests.support.site import Site

FULL = "All permits are held."


@pytest.fixture(autouse=True)
def informed(caplog: Log) -> None:
    caplog.set_level(logging.INFO)


def logged(caplog: Log) -> list[str]:
    return [line.getMessage() for line in caplog.records if line.name == progress.__name__]


def followed(server: SimulatedServer, interval: float = 0.0) -> Any:
    """A node whose waits are logged."""
    return server.node(observers=[Progress(lambda: interval, lambda: 60)])


async def use(node: FairSemaphore, scope: str, limit: Limit, seconds: float) -> None:
    async with node.permit(scope, limit):
        await asyncio.sleep(seconds)


@in_simulated_time
async def test_the_longest_waits_are_named_at_the_end(caplog: Log) -> None:
    slow, full = Limit(8, delay=1.5), Limit(1)
    async with followed(SimulatedServer(lease=15.0)) as node:
        await asyncio.gather(
            *(use(node, "b.example", slow, 0.1) for _ in range(21)),
            *(use(node, "c.example", full, 5.0) for _ in range(3)),
            use(node, "free.example", full, 1.0),
        )
    (line,) = logged(caplog)
    waits = "30 s for b.example (delay 1.5 s), 10 s for c.example (limit 1)"
    assert line == f"60 pages in 30 s; requests waited {waits}."


@in_simulated_time
async def test_a_wait_that_is_given_up_counts_until_then(caplog: Log) -> None:
    async with followed(SimulatedServer(lease=15.0)) as node:
        for _ in range(2):
            held = await node.acquire("s", 1)
            waiters = [asyncio.create_task(node.acquire("s", 1)) for _ in range(3)]
            await asyncio.sleep(20.1)  # the last look is at 20 s
            for waiter in waiters:
                waiter.cancel()
            await asyncio.sleep(30)
            held.release()
    (line,) = logged(caplog)
    assert line == "60 pages in 100 s; requests waited 40 s for s (limit 1)."


@in_simulated_time
async def test_requests_that_begin_to_wait_take_nothing_from_a_longer_wait(caplog: Log) -> None:
    async with followed(SimulatedServer(lease=15.0)) as node:
        held = await node.acquire("s", 1)
        waiters = []
        for _ in range(67):
            waiters.append(asyncio.create_task(node.acquire("s", 1)))
            await asyncio.sleep(0.3)
        held.release()
        for waiter in waiters:
            (await waiter).release()
    (line,) = logged(caplog)
    assert line == "60 pages in 20 s; requests waited 20 s for s (limit 1)."


@in_simulated_time
async def test_requests_that_are_served_first_take_nothing_from_a_longer_wait(caplog: Log) -> None:
    async with followed(SimulatedServer(lease=15.0)) as node:
        held = await node.acquire("s", 1)
        waiter = asyncio.create_task(node.acquire("s", 1))
        for _ in range(67):
            await asyncio.sleep(0.25)
            urgent = asyncio.create_task(node.acquire("s", 1, priority=1))
            await asyncio.sleep(0.05)
            held.release()
            held = await urgent
        held.release()
        (await waiter).release()
    (line,) = logged(caplog)
    assert line == "60 pages in 20 s; requests waited 20 s for s (limit 1)."


@in_simulated_time
async def test_only_the_longest_of_many_waits_are_kept(caplog: Log, monkeypatch: Patch) -> None:
    monkeypatch.setattr(progress, "SCOPES_MAX", 20)
    server = SimulatedServer(lease=15.0)
    many = 30
    async with followed(server) as node:
        log = node._observers._observers[0]
        held = [await node.acquire(f"s{n}", 1) for n in range(many)]
        waiters = [asyncio.create_task(node.acquire(f"s{n}", 1)) for n in range(many)]
        await asyncio.sleep(10)
        for permit in held[5:]:
            permit.release()
        await asyncio.sleep(10)
        assert len(log._waits) <= 20
        for permit in held[:5]:
            permit.release()
        for waiter in waiters:
            (await waiter).release()
    (line,) = logged(caplog)
    assert re.search(
        r"waited 20 s for s\d .*, 20 s for s\d .*, 20 s for s\d .*, and for others", line
    )


@in_simulated_time
async def test_a_crawl_that_never_waited(caplog: Log) -> None:
    async with followed(SimulatedServer(lease=15.0)) as node:
        await use(node, "s", Limit(1), 2.0)
    assert logged(caplog) == ["60 pages in 2.0 s; no request had to wait for a permit."]


@in_simulated_time
async def test_each_minute_the_log_says_what_is_waited_for(caplog: Log) -> None:
    async with followed(SimulatedServer(lease=15.0), interval=60.0) as node:
        await asyncio.sleep(61)
        held = await node.acquire("s", 1)
        waiters = [asyncio.create_task(node.acquire("s", 1)) for _ in range(2)]
        await asyncio.sleep(60)
        waiters.pop().cancel()
        await asyncio.sleep(60)
        held.release()
        (await waiters.pop()).release()
    assert logged(caplog)[:-1] == [
        "0 permits held, 0 requests wait for one.",
        f"1 permit held, 2 requests wait for one, the longest for 59 s, at s. {FULL}",
        f"1 permit held, 1 request waits for one, the longest for 119 s, at s. {FULL}",
    ]


async def test_a_line_while_the_server_is_away(server: RedisServer) -> None:
    log = Progress(lambda: 0.0, lambda: 0)
    async with FairSemaphore(server.url, lease=1.0, observers=[log], explain_waits=0) as node:
        held = await node.acquire("s", 1)
        waiter = asyncio.create_task(node.acquire("s", 1))
        await eventually(lambda: node.held_back_by("s"))
        server.kill()
        await eventually(lambda: node.problem)
        assert f"at s. The server cannot be used: {node.problem}." in log.line()
        waiter.cancel()
        held.release()


@pytest.mark.parametrize(
    ("own", "rule", "word"),
    [
        (Limit(1), None, "limit 1"),
        (Limit(4, delay=600), None, "delay 600 s"),
        (Limit(4, delay=600, jitter=0.5), None, "delay 600 s"),
        (Limit(4, rate="1/h"), None, "rate 1/h"),
        (Limit(4, delay=600), {"delay": 700}, "delay"),
        (Limit(4, rate="1/h"), {"rate": "1/d"}, "rate"),
        (Limit(4), {"concurrency": 1}, "limit 1"),
    ],
)
async def test_the_part_of_the_limit_that_is_waited_for(
    server: RedisServer, own: Limit, rule: Any, word: str
) -> None:
    async with FairSemaphore(server.url) as node:
        if rule:
            await node.admin.configure("s", rule)
        permits = await node.acquire_all([("s", own)])
        permits.begin()
        waiter = asyncio.create_task(node.acquire("s", own))
        await eventually(lambda: node.held_back_by("s"))
        assert node.held_back_by("s") == word
        reason, _ = node.reason_at("s")
        assert reason in ALL_REASONS
        waiter.cancel()
        permits.release()


@pytest.mark.parametrize("interval", [0.05, 0])
async def test_a_crawl_logs_beside_scrapys_log_stats(
    server: RedisServer, site: Site, caplog: Log, interval: float, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(progress, "LOOK_INTERVAL_S", 0.01)
    crawl = Crawl(server, *pages(site, 3, "/slow/"), limit=1, LOGSTATS_INTERVAL=interval)
    await eventually(lambda: waiting(server) == 1)
    if interval:
        await eventually(lambda: any("the longest for" in line for line in logged(caplog)))
    await crawl.finished(site)
    *lines, last = logged(caplog)
    assert bool(lines) == bool(interval)
    assert re.fullmatch(r"3 pages in .*s; requests waited .* for 127\.0\.0\.1 \(limit 1\)\.", last)
