"""Pages for the tests: served on the reactor's loop, of servers that the tests have started."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ParamSpec

import aiohttp
from twisted.internet.defer import Deferred

from semaphore_middleware import FairSemaphore, Permit
from semaphore_middleware.console.web.answers import Answers
from semaphore_middleware.console.web.auth import Guard
from semaphore_middleware.console.web.server import PageSite
from tests.support.browser import Browser, browsing
from tests.support.nodes import PATIENCE, eventually
from tests.support.servers import RedisServer

TOKEN = "a-token-of-the-tests"
P = ParamSpec("P")


def on_the_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, Deferred[None]]:
    """Run the test as an asyncio task on the reactor's loop."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> Deferred[None]:
        task = asyncio.wait_for(test(*args, **kwargs), 3 * PATIENCE)
        return Deferred.fromFuture(asyncio.ensure_future(task))

    return run


@dataclass
class Served:
    url: str
    semaphore: FairSemaphore
    """The page's own."""
    client: aiohttp.ClientSession

    async def state(self, **query: str) -> dict[str, Any]:
        async with self.client.get(f"{self.url}state.json", params=query) as answer:
            assert answer.status == 200
            told: dict[str, Any] = await answer.json()
            return told

    async def steer(self, token: str = TOKEN, **order: Any) -> tuple[int, str]:
        """The status, and the error if there was one."""
        headers = {"Authorization": f"Bearer {token}"}
        async with self.client.post(f"{self.url}steer", json=order, headers=headers) as answer:
            return answer.status, (await answer.json())["error"] if answer.status >= 400 else ""


@asynccontextmanager
async def serving(server: RedisServer, token: str | None = TOKEN) -> AsyncIterator[Served]:
    """A page, with a semaphore of its own, on a loopback port of its own."""
    from twisted.internet import reactor as installed

    reactor: Any = installed  # mypy sees a module there
    async with FairSemaphore(server.url, node="page") as semaphore:
        site = PageSite(Answers(semaphore.admin, Guard("127.0.0.1", token), "redis://the-server"))
        listening = reactor.listenTCP(0, site, interface="127.0.0.1")
        url = f"http://127.0.0.1:{listening.getHost().port}/"
        try:
            async with aiohttp.ClientSession() as client:
                yield Served(url, semaphore, client)
        finally:
            await asyncio.gather(
                Deferred.asFuture(listening.stopListening(), asyncio.get_event_loop())
            )
            await site.stop()


@asynccontextmanager
async def looking(
    server: RedisServer, token: str | None = TOKEN
) -> AsyncIterator[tuple[Browser, Served]]:
    """A browser that looks at a page, and in the end has had nothing to complain of."""
    async with serving(server, token) as page, browsing() as browser:
        await browser.size(1280, 800)
        await browser.open(page.url)
        yield browser, page
        assert browser.complaints == []


async def fill(semaphore: FairSemaphore, scope: str, held: int, waiting: int = 0) -> list[Permit]:
    """Hold some permits of a scope, of which there are no more, and wait for others."""
    permits = [await semaphore.acquire(scope, held) for _ in range(held)]
    for _ in range(waiting):
        line = asyncio.ensure_future(semaphore.acquire(scope, held))
        line.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def all_there() -> bool:
        return len((await semaphore.admin.inspect(scope)).waiters) == waiting

    await eventually(all_there)
    return permits
