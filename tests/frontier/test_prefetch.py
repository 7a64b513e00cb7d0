"""What a node takes ahead: how much, of which sites, and in how many calls."""

from __future__ import annotations

import asyncio
from collections import Counter

from redis import Redis

from semaphore_middleware.frontier.prefetch import AHEAD, ENOUGH, OF_A_SITE
from tests.frontier.node import Call, SitesQueue, joined, urls
from tests.support.crawls import asyncio_test


@asyncio_test
async def test_many_are_taken_in_one_call(client: Redis, calls: list[Call]) -> None:
    async with joined(client) as node:
        for site in "abcdefgh":
            node.produce(*urls(site, 4))
        for _ in range(AHEAD // 2):
            await node.begin()
        assert len(calls) == 1


@asyncio_test
async def test_what_is_taken_ahead_does_not_grow_with_the_queue(client: Redis) -> None:
    async with joined(client) as node:
        node.produce(*(url for number in range(100) for url in urls(f"site-{number}", 10)))
        ahead = []
        for _ in range(200):
            await node.begin()
            ahead.append(node.ahead)
        assert AHEAD // 2 < max(ahead) <= AHEAD
        assert node.unfinished == 1000


@asyncio_test
async def test_of_one_site_only_a_few_are_taken_ahead(client: Redis) -> None:
    async with joined(client) as node:
        node.produce(*urls("a", 1000))
        for _ in range(100):
            await node.begin()
            assert node.ahead < OF_A_SITE + ENOUGH


@asyncio_test
async def test_sites_take_turns_in_what_is_taken(client: Redis) -> None:
    async with joined(client) as node:
        for site in "abcd":
            node.produce(*urls(site, 100))
        begun = [await node.begin() for _ in range(80)]
        counts = Counter(request.url[7] for request in begun)
        assert max(counts.values()) - min(counts.values()) <= OF_A_SITE


@asyncio_test
async def test_a_full_site_s_requests_stay_on_the_server(client: Redis) -> None:
    async with joined(client) as node:
        node.produce(*urls("full", 50))
        await node.begin()
        SitesQueue.full.add("full")
        node.produce(*urls("free", 50))
        begun = [(await node.begin()).url for _ in range(50)]
        assert sorted(begun) == sorted(urls("free", 50))
        assert node.begin_now() is None
        assert node.ahead < OF_A_SITE
        assert node.scheduler.has_pending_requests()


@asyncio_test
async def test_a_site_that_is_full_no_more_is_asked_for(client: Redis, calls: list[Call]) -> None:
    async with joined(client) as node:
        node.produce(*urls("a", 30))
        for _ in range(OF_A_SITE):
            await node.begin()
        SitesQueue.full.add("a")
        while not calls[-1].wish.passed_over:
            node.begin_all()
            await node.woken()
        before = len(calls)
        for _ in range(10):
            assert node.begin_now() is None
            await asyncio.sleep(0)
        assert len(calls) <= before + 1  # one for the news of its own links
        SitesQueue.full.clear()
        for _ in range(30 - OF_A_SITE):
            await node.begin()
