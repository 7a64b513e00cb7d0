"""A shared crawl of any size on a server, and one node's exchanges with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

import redis
from scrapy import Request

from semaphore_middleware.link.scripts import assembled_file
from semaphore_middleware.shared_crawl.client import (
    SCRIPTS,
    CrawlClient,
    Demand,
    NewRequest,
    Outcome,
    Queued,
    RequestInFlight,
)
from semaphore_middleware.shared_crawl.codec import stored
from semaphore_middleware.shared_crawl.keys import Places
from semaphore_middleware.shared_crawl.prefetch import MAX_READY, PREFETCH_TARGET, SITE_BATCH
from semaphore_middleware.shared_crawl.serializer import Serializer
from semaphore_middleware.shared_crawl.settings import CrawlSettings
from tests.support.servers import RedisServer

PACKAGE = SCRIPTS["sync"].package
NAME = "range"
SITE_NAMES = [f"www.site-{number}.example" for number in range(1000)]
QUEUED_A_CALL = 500
MANY_NODES = 300
FAILED = 9600  # requests, of those that are queued
SHORT_LEASE_S = 0.2  # of a node that dies
SEEN_A_CALL = 10_000
CALLS_AT_ONCE = 10  # in a pipeline
FIRST_PAGE = Demand(PREFETCH_TARGET, SITE_BATCH)

SEE_ALL = (
    assembled_file(PACKAGE, "shared/common")
    + assembled_file(PACKAGE, "shared/seen")
    + "local all = next_argument()\n"
    + "for at = 1, #all, LENGTH do see(string.sub(all, at, at + LENGTH - 1)) end"
)
"""Marks all fingerprints in its argument as seen, as `sync` does it."""


def memory(client: redis.Redis, *keys: str) -> int:
    """Bytes that some keys take."""
    return sum(client.memory_usage(key, samples=0) or 0 for key in keys)


def bytes_of(client: redis.Redis, crawl: str) -> tuple[float, float]:
    """Of the server's memory, for a URL seen and for a request queued."""
    key = f"{{crawl:{crawl}}}:"
    seen = int(client.hget(f"{key}seen", "count") or 0)
    queued = memory(client, *(key + part for part in ("requests", "queue", "sites", "taken")))
    return memory(client, f"{key}seen") / seen, queued / client.hlen(f"{key}requests")


class FullFrontier:
    """A crawl with so many URLs seen, some of them queued, and the node that measures."""

    def __init__(self, server: RedisServer, client: redis.Redis) -> None:
        self._server, self._client = server, client
        self._crawl = CrawlClient(CrawlSettings(server.url, NAME, "node", lease=3600))
        self._places = Places()
        self._dumps = Serializer(()).dumps
        self._random = Random(1)
        self._pages = 0
        self._in_flight: list[RequestInFlight] = []

    async def begin(self) -> None:
        await self._crawl.join({})

    async def close(self) -> None:
        await self._crawl.link.close()

    async def upheavals(self) -> AsyncIterator[str]:
        """Do what may hold up the server's others; each is named when it is over."""
        await self._crawl.sync(self._new(QUEUED_A_CALL))
        yield f"{QUEUED_A_CALL} requests queued in a call"
        async with self._another(lease=SHORT_LEASE_S) as dying:
            for _ in range(MAX_READY // PREFETCH_TARGET):
                await dying.sync(demand=FIRST_PAGE)
        await asyncio.sleep(2 * SHORT_LEASE_S)
        await self._crawl.sync(demand=FIRST_PAGE)
        yield f"a node with {MAX_READY} requests dies"
        async with AsyncExitStack() as stack:
            nodes = [await stack.enter_async_context(self._another()) for _ in range(MANY_NODES)]
            yield f"{MANY_NODES} nodes join"
            await asyncio.gather(*(node.sync(demand=Demand(1, 1)) for node in nodes))
            yield f"{MANY_NODES} nodes take a request at once"
            await asyncio.gather(*(node.leave() for node in nodes))
            yield f"{MANY_NODES} nodes leave"
        for _ in range(FAILED // PREFETCH_TARGET):
            taken = (await self._crawl.sync(demand=FIRST_PAGE, working=True)).taken
            for one in taken:
                one.outcome = Outcome.FAILED
            await self._crawl.sync(finished=taken, working=True)
        yield f"{FAILED:,} requests fail"
        await self._crawl.end(at_once=True)
        yield "the crawl ends"
        await self._crawl.retry()
        yield f"{FAILED:,} requests are put back"
        await self._crawl.drop()
        yield "the crawl is dropped"

    @asynccontextmanager
    async def _another(self, lease: float = 3600.0) -> AsyncIterator[CrawlClient]:
        node = CrawlClient(CrawlSettings(self._server.url, NAME, "another", lease=lease))
        await node.join()
        try:
            yield node
        finally:
            await node.link.close()

    async def grow(self, seen: int, queued: int) -> None:
        """Queue requests and mark fingerprints as seen until there are so many."""
        counts = await self._crawl.counts()
        for _ in range(counts.queued, queued, QUEUED_A_CALL):
            await self._crawl.sync(self._new(QUEUED_A_CALL))
        see_all = self._client.register_script(SEE_ALL)
        left = seen - (await self._crawl.counts()).seen
        while left > 0:
            with self._client.pipeline(transaction=False) as pipeline:
                for _ in range(CALLS_AT_ONCE):
                    some = max(0, min(SEEN_A_CALL, left))
                    arguments = ("", "", "", "", 1, 0, self._random.randbytes(8 * some))
                    see_all(self._crawl.keys.all, arguments, pipeline)
                    left -= some
                pipeline.execute()

    async def exchange(self, times: int) -> list[float]:
        """Queue as many requests as are finished and taken, in one call; seconds of each call."""
        seconds = []
        for _ in range(times):
            new = self._new(PREFETCH_TARGET)
            for one in self._in_flight:
                one.outcome = Outcome.PAGE
            begin = time.perf_counter()
            reply = await self._crawl.sync(new, self._in_flight, FIRST_PAGE, working=True)
            seconds.append(time.perf_counter() - begin)
            assert all(one is Queued.YES for one in reply.queued)
            assert len(reply.taken) == PREFETCH_TARGET
            self._in_flight = reply.taken
        return seconds

    def _new(self, number: int) -> list[NewRequest]:
        requests = []
        for page in range(self._pages, self._pages + number):
            site = SITE_NAMES[page % len(SITE_NAMES)]
            request = Request(f"https://{site}/articles/2026/11/{page:09}.html")
            place = self._places.new_place(site, 0)
            data = self._dumps(stored(request.to_dict()))
            requests.append(NewRequest(place, data, b"fingerprint-%d" % page))
        self._pages += number
        return requests
