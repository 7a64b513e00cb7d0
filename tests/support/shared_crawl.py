"""A shared crawl as tests see it: a client whose calls block, and the keys on the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from semaphore_middleware.shared_crawl.client import (
    CrawlClient,
    Demand,
    IdleReply,
    NewRequest,
    Outcome,
    Queued,
    RequestInFlight,
)
from semaphore_middleware.shared_crawl.counts import Counts
from semaphore_middleware.shared_crawl.keys import Places
from semaphore_middleware.shared_crawl.settings import CrawlSettings
from tests.support.blocking import result_of
from tests.support.servers import RedisServer
from tests.support.times import ENDLESS_S

PLACES = Places()
ONE = Demand(requests=1, per_site=1, alone=True)

_clients: list[Node] = []


@contextmanager
def looking_at(server: RedisServer) -> Iterator[redis.Redis]:
    """The test's own connection; at the end those of all blocking clients are closed, too."""
    with server.client() as client:
        try:
            yield client
        finally:
            while _clients:
                result_of(_clients.pop().link.close())


class Node(CrawlClient):
    """A node without Scrapy: each call waits for its reply. `client` is the test's own."""

    def __init__(self, client: redis.Redis, name: str, node: str, **settings: Any) -> None:
        path = client.connection_pool.connection_kwargs["path"]
        options: dict[str, Any] = {"lease": ENDLESS_S, **settings}
        super().__init__(CrawlSettings(f"unix://{path}", name, node, **options))
        self.client = client
        _clients.append(self)

    def joins(
        self, identity: dict[str, str] | None = None, new_run: bool = False, after: bytes = b""
    ) -> None:
        """Join, and have nothing to do yet: unlike an idle node, it leaves the crawl open."""
        result_of(self.join(identity, new_run, after))
        self.client.zrem(self.keys.key("working"), self.node)

    def new(
        self, data: bytes = b"", score: float = 0, fingerprint: str = "", site: str = "a"
    ) -> NewRequest:
        return NewRequest(PLACES.new_place(site, score), data, fingerprint.encode())

    def pushes(self, *requests: NewRequest) -> list[bool]:
        return [queued is Queued.YES for queued in result_of(self.sync(requests)).queued]

    def push(self, data: bytes, score: float = 0, fingerprint: str = "") -> bool:
        (queued,) = self.pushes(self.new(data, score, fingerprint))
        return queued

    def fill(self, **counts: int) -> None:
        for site, count in counts.items():
            self.pushes(*(self.new(site=site) for _ in range(count)))

    def takes(self, demand: Demand, *finished: RequestInFlight) -> list[RequestInFlight]:
        return result_of(self.sync(finished=_pages(finished), demand=demand)).taken

    def take(self, *finished: RequestInFlight) -> RequestInFlight | None:
        return next(iter(self.takes(ONE, *finished)), None)

    def pop(self, *finished: RequestInFlight) -> RequestInFlight:
        taken = self.take(*finished)
        assert taken is not None
        return taken

    def cannot_read(self, taken: RequestInFlight) -> list[bytes]:
        """Give it back as unreadable; the new dead letters."""
        return result_of(self.sync(unreadable=[taken])).dead_letters

    def finishes(self, taken: RequestInFlight, outcome: Outcome) -> None:
        taken.outcome = outcome
        result_of(self.sync(finished=[taken]))

    def works(self, *finished: RequestInFlight) -> None:
        result_of(self.sync(finished=_pages(finished), working=True))

    def idles(self, *finished: RequestInFlight) -> IdleReply:
        return result_of(self.idle(_pages(finished)))

    def leaves(self, *finished: RequestInFlight) -> None:
        result_of(self.leave(_pages(finished)))

    def dies(self) -> None:
        """Let its lease expire."""
        self.client.zadd(self.keys.key("working"), {self.node: 1})

    def drops(self) -> None:
        assert result_of(self.drop())

    @property
    def size(self) -> Counts:
        return result_of(self.counts())

    @property
    def queued(self) -> int:
        return self.client.zcard(self.keys.key("queue"))

    @property
    def taken(self) -> int:
        bounds = (f"[{self.node}\0", f"({self.node}\1")
        return self.client.zlexcount(self.keys.key("taken"), *bounds)


def node(client: redis.Redis, name: str, crawl: str = "books", **settings: Any) -> Node:
    """One that has joined."""
    shared = Node(client, crawl, name, **settings)
    shared.joins({})
    return shared


async def set_one_aside(server: RedisServer, name: str) -> None:
    """A crawl that has ended except for one request with which three nodes have failed."""
    crawl = CrawlClient(CrawlSettings(server.url, name, "node"))
    await crawl.join()
    for site in ("www.example.net", "www.example.org"):
        await crawl.sync([NewRequest(PLACES.new_place(site, 0), b"data", site.encode())])
    (page,) = (await crawl.sync(demand=ONE)).taken
    page.outcome = Outcome.PAGE
    await crawl.sync(finished=[page])
    for _ in range(3):
        (taken,) = (await crawl.sync(demand=ONE)).taken
        await crawl.sync(unreadable=[taken])
    await crawl.idle()
    await crawl.link.close()


def _pages(finished: tuple[RequestInFlight, ...]) -> tuple[RequestInFlight, ...]:
    for taken in finished:
        taken.outcome = Outcome.PAGE
    return finished


def crawl_keys(client: redis.Redis) -> list[bytes]:
    """The keys of all crawls, except stats and those of ended runs, which expire."""
    keys = sorted(client.scan_iter("{crawl:*"))
    ended = {key for key in keys if key.endswith(b":run") and client.hexists(key, "ended")}
    ended |= {key for key in keys if key.removesuffix(b"stats") + b"run" in ended}
    assert all(client.ttl(key) > 0 for key in ended)
    return [key for key in keys if key not in ended and not key.endswith(b":stats")]
