"""Takes the picture of docs/page.md: three nodes at some sites, as headless Chromium shows them.

`make pictures` runs it. All states are the server's own.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from semaphore_middleware import FairSemaphore, HostDownError, LimitDict, Permit
from tests.console.pages import serving
from tests.support.browser import Browser, Chromium, browsing
from tests.support.servers import RedisServer

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "page.png"
NODES = ("books-a", "news-b", "shop-c")
SECONDS = 65  # a line of the table has a point for each of the last 60 seconds
SIZE = (1280, 752)
QUOTA = 5  # requests a second, which a site answers

End = Callable[[Permit], None]


def answer(permit: Permit) -> None:
    permit.answered(0.2)


class Meter:
    """A site that answers `QUOTA` requests a second, and refuses the others."""

    def __init__(self) -> None:
        self._allowed = float(QUOTA)
        self._seen = time.monotonic()

    def __call__(self, permit: Permit) -> None:
        now = time.monotonic()
        self._allowed = min(QUOTA, self._allowed + QUOTA * (now - self._seen))
        self._seen = now
        if self._allowed < 1:
            permit.refused(status=429)
        else:
            self._allowed -= 1
            permit.answered(0.2)


# For each site: its limit, the requests of each node at once, seconds a page, and its answers.
SITES: dict[str, tuple[LimitDict, int, float, End]] = {
    "www.example.com": ({"concurrency": 4}, 5, 0.3, answer),
    "shop.example.org": ({"concurrency": 2, "delay": 0.8}, 3, 0.2, answer),
    "api.example.net": ({"concurrency": 3, "rate": "30/m", "burst": 5}, 2, 0.2, answer),
    "metered.example.com": ({"concurrency": 8}, 2, 0.1, Meter()),
    "cdn.example.com": ({"concurrency": 16, "adaptive": True}, 2, 0.2, answer),
    "old.example.net": ({"concurrency": 4}, 1, 0.2, Permit.failed),
    "blog.example.org": ({"concurrency": 2}, 2, 0.5, answer),
    "xn--bcher-kva.example": ({"concurrency": 8}, 2, 0.4, answer),
}


async def visit(node: FairSemaphore, scope: str, limit: LimitDict, page_s: float, end: End) -> None:
    """One page after another."""
    while True:
        try:
            permit = await node.acquire(scope, limit)
        except HostDownError:
            await asyncio.sleep(1)
            continue
        await asyncio.sleep(page_s)
        end(permit)
        permit.release()


async def take_picture(server: RedisServer, browser: Browser) -> bytes:
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        started = []
        for name in NODES:
            node = await stack.enter_async_context(FairSemaphore(server.url, node=name))
            for scope, (limit, requests, page_s, end) in SITES.items():
                work = partial(visit, node, scope, limit, page_s, end)
                started += [tasks.create_task(work()) for _ in range(requests)]
        page = await stack.enter_async_context(serving(server))
        await page.admin.configure("*.example.org", {"delay": 0.5})
        await browser.open(f"{page.url}?nodes=1")
        await asyncio.sleep(SECONDS - 10)
        await page.admin.pause("blog.example.org")
        await asyncio.sleep(10)
        shot = await browser.do("Page.captureScreenshot")
        for task in started:
            task.cancel()
    return base64.b64decode(shot["data"])


async def main() -> None:
    chromium = Chromium().start()
    try:
        with RedisServer() as server:
            async with browsing(chromium) as browser:
                await browser.size(*SIZE)
                PICTURE.write_bytes(await take_picture(server, browser))
    finally:
        chromium.remove()


if __name__ == "__main__":
    asyncio.run(main())
