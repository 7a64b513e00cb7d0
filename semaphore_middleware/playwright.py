"""Pages in a browser, by scrapy-playwright: their own requests run under their permits, too."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from inspect import isawaitable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from scrapy.utils.misc import load_object
from scrapy_playwright.handler import ScrapyPlaywrightDownloadHandler

if TYPE_CHECKING:
    from playwright.async_api import Page
    from playwright.async_api import Request as PageRequest
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response

ON_NEW_PAGE = "playwright_page_init_callback"
"""In a request's meta: scrapy-playwright's callback for a new page, before it is opened."""


def only_the_page(request: PageRequest) -> bool:
    """Load nothing but the page, for `PLAYWRIGHT_ABORT_REQUEST`: no scripts, pictures or frames."""
    return request.resource_type != "document" or request.frame.parent_frame is not None


class DownloadHandler(ScrapyPlaywrightDownloadHandler):
    """Downloads pages in a browser, as scrapy-playwright does, within their permits.

    A page's own requests go one after another, and a page whose permit is lost is closed.
    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        given = crawler.settings["PLAYWRIGHT_ABORT_REQUEST"]
        self._is_unwanted = load_object(given) if given else None
        self.abort_request = self._wait_for_turn
        self._turns: WeakKeyDictionary[Page, asyncio.Lock] = WeakKeyDictionary()
        self._tasks: set[asyncio.Task[None]] = set()

    async def _wait_for_turn(self, request: PageRequest) -> bool:
        """Wait until a page's earlier requests are over. Returns True to abort this one."""
        if self._is_unwanted is not None:
            unwanted = self._is_unwanted(request)
            if await unwanted if isawaitable(unwanted) else unwanted:
                return True
        turn = self._turns.setdefault(request.frame.page, asyncio.Lock())
        await turn.acquire()
        self._tasks.add(task := asyncio.create_task(_end(request, turn)))
        task.add_done_callback(self._tasks.discard)
        return False

    async def download_request(self, request: Request) -> Response:
        """Download the page. A cancelled download closes it."""
        if not request.meta.get("playwright"):
            return await super().download_request(request)
        given = request.meta.get(ON_NEW_PAGE)
        opened = []

        async def on_new_page(page: Page, request: Request) -> None:
            opened.append((page, asyncio.get_running_loop()))
            if given is not None:
                await load_object(given)(page, request)

        request.meta[ON_NEW_PAGE] = on_new_page
        try:
            return await super().download_request(request)
        except asyncio.CancelledError:
            for page, loop in opened:  # the loop may run in a thread of its own
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(page.close(), loop))
            raise
        finally:
            request.meta[ON_NEW_PAGE] = given
            if given is None:
                del request.meta[ON_NEW_PAGE]


async def _end(request: PageRequest, turn: asyncio.Lock) -> None:
    """End the turn with the request."""
    with suppress(Exception):  # the page is closed before that
        if response := await request.response():
            await response.finished()
    turn.release()
