"""Requests taken ahead: how many, of which sites, in how many calls."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace

import pytest
from redis import Redis

from semaphore_middleware.shared_crawl import prefetch
from semaphore_middleware.shared_crawl.prefetch import PREFETCH_TARGET, SITE_BATCH, SITE_ENOUGH
from tests.shared_crawl.node import SitesQueue, joined, urls, watch_calls
from tests.support.nodes import eventually

Patch = pytest.MonkeyPatch


async def test_many_are_taken_in_one_call(client: Redis, monkeypatch: Patch) -> None:
    calls = watch_calls(monkeypatch)
    async with joined(client) as node:
        for site in "abcdefgh":
            node.enqueue(*urls(site, 8))
        for _ in range(PREFETCH_TARGET // 2):
            await node.start()
            await asyncio.sleep(0)
        assert len(calls) == 1


async def test_prefetched_requests_do_not_grow_with_the_queue(client: Redis) -> None:
    async with joined(client) as node:
        node.enqueue(*(url for number in range(100) for url in urls(f"site-{number}", 10)))
        ahead = []
        for _ in range(200):
            await node.start()
            ahead.append(node.ready)
        assert PREFETCH_TARGET // 2 < max(ahead) <= PREFETCH_TARGET
        assert node.unfinished == 1000


async def test_of_a_site_only_a_few_are_prefetched_and_sites_alternate(client: Redis) -> None:
    async with joined(client) as node:
        node.enqueue(*urls("a", 300))
        for _ in range(60):
            await node.start()
            assert node.ready < SITE_BATCH + SITE_ENOUGH
        for site in "bcd":
            node.enqueue(*urls(site, 100))
        begun = [await node.start() for _ in range(80)]
        counts = Counter(request.url[7] for request in begun)
        assert max(counts.values()) - min(counts.values()) <= SITE_BATCH + SITE_ENOUGH


async def test_requests_of_a_full_site_stay(client: Redis, monkeypatch: Patch) -> None:
    calls = watch_calls(monkeypatch)
    async with joined(client) as node:
        node.enqueue(*urls("full", 50))
        await node.start()
        SitesQueue.full.add("full")
        node.enqueue(*urls("free", 50))
        begun = [(await node.start()).url for _ in range(50)]
        assert sorted(begun) == sorted(urls("free", 50))
        assert node.ready < SITE_BATCH
        while not calls[-1].demand.skipped_sites:
            assert node.start_now() is None
            await node.woken()
        before = len(calls)
        for _ in range(10):
            assert node.start_now() is None
            await asyncio.sleep(0)
        assert len(calls) <= before + 1  # one for the notification of its own requests
        assert node.scheduler.has_pending_requests()
        SitesQueue.full.clear()
        for _ in range(49):
            await node.start()


@pytest.mark.parametrize("queue", ["DownloaderAwarePriorityQueue", "ScrapyPriorityQueue"])
async def test_without_the_add_on_a_site_is_full_when_its_slot_is(
    client: Redis, queue: str
) -> None:
    sites = [f"full-{number}" for number in range(10)]
    async with joined(client, SCHEDULER_PRIORITY_QUEUE=f"scrapy.pqueues.{queue}") as node:
        downloader = node.engine.downloader
        downloader.active = range(9)
        for slot in (*sites, "of many sites"):
            downloader.slots[slot] = SimpleNamespace(active=[1, 2], concurrency=2)
        node.enqueue(*(url for site in sites for url in urls(site, 12)))
        node.enqueue(*urls("free", 50), meta={"download_slot": "of many sites"})
        await node.has_unfinished(170)
        begun: set[str] = set()
        while len(begun) < 50:
            request = await node.start()
            begun |= {request.url} & set(urls("free", 50))
        in_progress = len(node.engine._slot.inprogress)
        skips = queue == "DownloaderAwarePriorityQueue"
        assert in_progress == 50 if skips else in_progress < 170
        downloader.active = range(8)  # it has room for requests that wait
        for _ in range(170 - in_progress):
            await node.start()


async def test_of_full_sites_only_some_are_taken(client: Redis, monkeypatch: Patch) -> None:
    monkeypatch.setattr(prefetch, "MAX_READY", 60)
    sites = [f"site-{number}" for number in range(20)]
    async with joined(client) as node:
        node.enqueue(*(url for site in sites for url in urls(site, 8)))
        SitesQueue.full.update(sites)
        await eventually(lambda: node.start_now() or node.ready >= 60)
        assert node.ready == 60
