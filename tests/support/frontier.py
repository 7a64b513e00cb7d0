"""A shared crawl as tests see it: a client whose calls block, and the keys on the server."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import redis
from redis.asyncio import Redis

from semaphore_middleware.frontier.client import (
    Counts,
    CrawlClient,
    Demand,
    IdleReply,
    NewRequest,
    TakenRequest,
)
from tests.support.servers import RedisServer

TIMEOUT_S = 60.0  # after that a test has failed; it never shows that one has passed
Result = TypeVar("Result")

_connections: list[Redis] = []


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """A loop in a thread of its own: the test's thread may have one that runs."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


def result_of(call: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run_coroutine_threadsafe(call, _loop()).result(TIMEOUT_S)


def wait_until(happened: Callable[[], object]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not happened():
        assert time.monotonic() < end, "what the test waits for never happened"
        time.sleep(0.01)


@contextmanager
def looking_at(server: RedisServer) -> Iterator[redis.Redis]:
    """The test's own connection; at the end those of all blocking clients are closed, too."""
    with server.client() as client:
        try:
            yield client
        finally:
            while _connections:
                result_of(_connections.pop().aclose())


class BlockingClient(CrawlClient):
    """A node without Scrapy: each call waits for its reply. `client` is the test's own."""

    def __init__(
        self,
        client: redis.Redis,
        name: str,
        node: str,
        lease: float = 15.0,
        max_pages: int = 0,
    ) -> None:
        path = client.connection_pool.connection_kwargs["path"]
        _connections.append(Redis(unix_socket_path=path))
        super().__init__(_connections[-1], name, node, lease, max_pages)
        self.client = client

    def joins(self) -> None:
        result_of(self.join())

    def pushes(self, *requests: NewRequest) -> list[bool]:
        return result_of(self.sync(requests)).queued

    def takes(
        self, demand: Demand, *finished: TakenRequest, working: bool = False
    ) -> list[TakenRequest]:
        ids = [one.id for one in finished]
        return result_of(self.sync(finished=ids, demand=demand, working=working)).taken

    def works(self, *finished: TakenRequest) -> None:
        result_of(self.sync(finished=[one.id for one in finished], working=True))

    def idles(self, *finished: TakenRequest) -> IdleReply:
        return result_of(self.idle([one.id for one in finished]))

    def leaves(self, *finished: TakenRequest) -> None:
        result_of(self.leave([one.id for one in finished]))

    def ends(self) -> None:
        result_of(self.end())

    @property
    def size(self) -> Counts:
        return result_of(self.counts())

    @property
    def queued(self) -> int:
        sites = cast("list[bytes]", self.client.zrange(self.key("sites"), 0, -1))
        return sum(self.client.zcard(self.key("queue:") + site) for site in sites)


def crawl_keys(client: redis.Redis) -> list[bytes]:
    """The keys of all crawls, but for those that tell of ended runs, which expire."""
    keys = sorted(client.scan_iter("crawl:*"))
    ended = {key for key in keys if b":ended:" in key}
    assert all(client.ttl(key) > 0 for key in ended)
    return [key for key in keys if key not in ended]
