"""A shared crawl as tests use it from outside: each call waits for its answer."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import redis
from redis.asyncio import Redis

from semaphore_middleware.frontier.client import Counts, Entry, Rest, SharedCrawl, Taken, Wish

PATIENCE = 60.0  # seconds: after that a test has failed, it never shows that one has passed
Result = TypeVar("Result")

_clients: list[Redis] = []


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """A loop in a thread of its own: the test's thread may have one that runs."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


def wait_for(call: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run_coroutine_threadsafe(call, _loop()).result(PATIENCE)


@contextmanager
def clients_closed() -> Iterator[None]:
    try:
        yield
    finally:
        while _clients:
            wait_for(_clients.pop().aclose())


class OutsideCrawl(SharedCrawl):
    """`client` is the test's own look at the server."""

    def __init__(
        self,
        client: redis.Redis,
        name: str,
        node: str,
        lease: float = 15.0,
        max_pages: int = 0,
    ) -> None:
        path = client.connection_pool.connection_kwargs["path"]
        _clients.append(Redis(unix_socket_path=path))
        super().__init__(_clients[-1], name, node, lease, max_pages)
        self.client = client

    def joins(self) -> None:
        wait_for(self.join())

    def pushes(self, *entries: Entry) -> list[bool]:
        return wait_for(self.exchange(entries)).queued

    def takes(self, wish: Wish, *done: Taken, works: bool = False) -> list[Taken]:
        ids = [one.id for one in done]
        return wait_for(self.exchange(done=ids, wish=wish, works=works)).taken

    def works(self, *done: Taken) -> None:
        wait_for(self.exchange(done=[one.id for one in done], works=True))

    def rests(self, *done: Taken) -> Rest:
        return wait_for(self.rest([one.id for one in done]))

    def leaves(self, *done: Taken) -> None:
        wait_for(self.leave([one.id for one in done]))

    def ends(self) -> None:
        wait_for(self.end())

    @property
    def now(self) -> Counts:
        return wait_for(self.counts())

    @property
    def queued(self) -> int:
        sites = cast("list[bytes]", self.client.zrange(self.key("sites"), 0, -1))
        return sum(self.client.zcard(self.key("queue:") + site) for site in sites)
