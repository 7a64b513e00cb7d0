"""Pages for the tests: served on the test's loop, for servers that the tests have started."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from aiohttp.web import TCPSite
from scrapy.settings import Settings

from semaphore_middleware import FairSemaphore, Permit
from semaphore_middleware.console import poller
from semaphore_middleware.console import server as server_of_pages
from semaphore_middleware.console.auth import Auth
from semaphore_middleware.console.sections import load_sections
from semaphore_middleware.console.server import make_runner
from semaphore_middleware.operators.admin import Admin
from tests.support.browser import Browser, Chromium, browsing
from tests.support.nodes import until_waiting
from tests.support.servers import RedisServer
from tests.support.times import TIMEOUT_S

TOKEN = "a-token-of-the-tests"
CONTROLS = {
    *("button", "textbox", "searchbox", "spinbutton", "checkbox", "combobox", "link"),
    *("table", "dialog", "region", "form", "image"),
}

STRANGE = [
    "<img src=x onerror=alert(1)>",
    "</table><script>alert(1)</script>",
    '" onmouseover="alert(1)',
    "javascript:alert(1)",
    "\u202eelpmaxe.reversed",
    "a" * 3000,
    "__proto__",
]
MARKUP = "document.querySelectorAll('main img, main script, main b, [onmouseover]').length"
"""The number of elements that exist only if a name has become markup."""


@dataclass
class Served:
    """A page that is served, and an HTTP client."""

    url: str
    admin: Admin
    """The page's own Admin."""
    client: aiohttp.ClientSession

    async def state(self, **query: str) -> dict[str, Any]:
        """The state that the page gets."""
        async with self.client.get(f"{self.url}state.json", params=query) as answer:
            assert answer.status == 200
            state: dict[str, Any] = await answer.json()
            return state

    async def act(self, token: str = TOKEN, **action: Any) -> tuple[int, dict[str, Any]]:
        """Ask for a change. Returns the status, and the error."""
        headers = {"Authorization": f"Bearer {token}"}
        async with self.client.post(f"{self.url}actions", json=action, headers=headers) as answer:
            return answer.status, {} if answer.status == 204 else await answer.json()


def survey_at_each_visit(patch: pytest.MonkeyPatch) -> None:
    """Give each visit a survey of its own, which is never late."""
    patch.setattr(server_of_pages, "INTERVAL_S", 0.0)
    patch.setattr(poller, "MAX_SHARE", 1.0)
    patch.setattr(poller, "LATE_AFTER_S", TIMEOUT_S)


@asynccontextmanager
async def serving(
    server: RedisServer, token: str | None = TOKEN, url: str = ""
) -> AsyncIterator[Served]:
    """Serve a page, with its own admin, on a free loopback port; `url` names the server's user."""
    url = url or server.url
    sections = load_sections(Settings({"SEMAPHORE_REDIS_URL": url}))
    async with Admin(url, name="page") as admin:
        runner = make_runner(admin, sections, Auth("127.0.0.1", token))
        await runner.setup()
        try:
            await TCPSite(runner, "127.0.0.1", 0).start()
            address = f"http://127.0.0.1:{runner.addresses[0][1]}/"
            async with aiohttp.ClientSession() as client:
                yield Served(address, admin, client)
        finally:
            await runner.cleanup()


@asynccontextmanager
async def looking(
    server: RedisServer, chromium: Chromium, url: str = ""
) -> AsyncIterator[tuple[Browser, Served]]:
    """A browser that shows a page. At the end, its console must have no complaint."""
    async with serving(server, url=url) as page, browsing(chromium) as browser:
        await browser.size(1280, 800)
        await browser.open(page.url)
        yield browser, page
        assert browser.complaints == []


async def check(browser: Browser) -> None:
    """Check that each control has a name for screen readers, and that the page and the lists of
    nodes fit the screen.
    """
    found = [node for node in await browser.tree() if node["role"]["value"] in CONTROLS]
    assert [node for node in found if not node.get("name", {}).get("value")] == []
    wide = (
        "[document.documentElement, ...document.querySelectorAll('.nodes')]"
        ".map((box) => box.scrollWidth - box.clientWidth)"
    )
    assert not any(await browser.see(wide))


def rows(section: str) -> str:
    """An expression for the texts of a list's cells."""
    return (
        f"[...document.querySelectorAll('{section} tbody tr')]"
        ".map((tr) => [...tr.cells].map((cell) => cell.textContent))"
    )


async def fill(semaphore: FairSemaphore, scope: str, held: int, waiting: int = 0) -> list[Permit]:
    """Hold all permits of a scope, and wait for some more."""
    permits = [await semaphore.acquire(scope, held) for _ in range(held)]
    for _ in range(waiting):
        line = asyncio.ensure_future(semaphore.acquire(scope, held))
        line.add_done_callback(lambda done: done.cancelled() or done.exception())
    await until_waiting(semaphore, waiting, scope)
    return permits
