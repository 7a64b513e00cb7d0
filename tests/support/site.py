"""A site that judges its visitors, and whose slow pages wait for the test instead of the clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn

from aiohttp import web
from yarl import URL

from crawler.example_site import Record

PAGE = "<!doctype html>\n<title>A page</title>\n"
MOVED = '<meta http-equiv="refresh" content="0; url={}">'
FIRST_PART = b"the first part of a body"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Site:
    """Answers to any host name on a loopback port of its own. Each path behaves in its own way:

    /page/...           answers at once
    /slow/...           answers once the test has called `let_go()`
    /half/...           sends headers and a part of the body at once, the rest after `let_go()`
    /never              does not answer
    /large              a body of 10 kB
    /redirect/...       to the path that follows, by status 302; /refresh/... by the page's own word
    /status/503         that status, each time; /status-once/503 the first time, then a page
    /busy/...           answers "not now" `refusals` times, or always if that is None, else at
                        once; /busy/slow... after `let_go()`
    /drop               breaks the connection before the headers; /drop-midway within the body
    /truncated          ends the connection properly, but before the end of the body
    /robots.txt         `robots`; after `let_go()` if `robots_is_slow`
    """

    def __init__(self) -> None:
        self.port = 0
        self.records: dict[str, Record] = {}  # by host name
        self.arrivals: list[str] = []  # paths and queries, in the order of their requests
        self.times: list[float] = []  # of the arrivals, on the loop's clock
        self.refusals: int | None = 0
        self.refusal_headers: dict[str, str] = {}
        self.refused_at: list[float] = []
        self.robots = "User-agent: *\nDisallow: /forbidden\n"
        self.robots_is_slow = False
        self._may_answer = asyncio.Event()
        self._changed = asyncio.Event()

    # What a test asks and says ------------------------------------------------------------------

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def let_go(self) -> None:
        """Answer all slow requests, those in hand and those to come."""
        self._may_answer.set()

    @property
    def now(self) -> int:
        """Requests in hand."""
        return sum(record.now for record in self.records.values())

    @property
    def most(self) -> int:
        """Requests that any one host has had in hand at once."""
        return max((record.most for record in self.records.values()), default=0)

    async def until(self, seen: Callable[[], bool]) -> None:
        """Wait until the site has seen what `seen` asks for."""
        while not seen():
            self._changed.clear()
            await self._changed.wait()

    # The server ---------------------------------------------------------------------------------

    async def start(self) -> None:
        app = web.Application(middlewares=[self._watch])
        for path, handler in {
            "/page/{name:.*}": self._page,
            "/slow/{name:.*}": self._slow,
            "/half/{name:.*}": self._half,
            "/never": self._never,
            "/large": self._large,
            "/redirect{to:/.*}": self._redirect,
            "/refresh{to:/.*}": self._refresh,
            "/status/{status}": self._status,
            "/status-once/{status}": self._status_once,
            "/busy/{name:.*}": self._busy,
            "/drop": self._drop,
            "/drop-midway": self._drop_midway,
            "/truncated": self._truncated,
            "/robots.txt": self._robots,
        }.items():
            app.router.add_get(path, handler)
        # Cancelled with its connection: a visitor who is gone has nothing in hand.
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        await self._runner.cleanup()

    @web.middleware
    async def _watch(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        host = URL(f"http://{request.host}").host or ""
        record = self.records.setdefault(host, Record())
        record.enter(request.path)
        self.arrivals.append(request.path_qs)
        self.times.append(asyncio.get_running_loop().time())
        self._changed.set()
        try:
            response = await handler(request)
            # Written here and not after the return: until then the request is in hand.
            await response.prepare(request)
            await response.write_eof()
            return response
        finally:
            record.leave()
            self._changed.set()

    # Its pages ----------------------------------------------------------------------------------

    async def _page(self, _: web.Request) -> web.StreamResponse:
        return web.Response(text=PAGE, content_type="text/html")

    async def _slow(self, request: web.Request) -> web.StreamResponse:
        await self._may_answer.wait()
        return await self._page(request)

    async def _half(self, request: web.Request) -> web.StreamResponse:
        response = await _send_first_part(request)
        await self._may_answer.wait()
        await response.write(bytes(len(FIRST_PART)))
        return response

    async def _never(self, _: web.Request) -> web.StreamResponse:
        await _until_the_visitor_is_gone()

    async def _large(self, _: web.Request) -> web.StreamResponse:
        return web.Response(body=bytes(10_000))

    async def _redirect(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": _target(request)})

    async def _refresh(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text=MOVED.format(_target(request)), content_type="text/html")

    async def _status(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=int(request.match_info["status"]), text=PAGE)

    async def _status_once(self, request: web.Request) -> web.StreamResponse:
        first = self.arrivals.count(request.path_qs) == 1
        return await (self._status(request) if first else self._page(request))

    async def _busy(self, request: web.Request) -> web.StreamResponse:
        if request.match_info["name"].startswith("slow"):
            await self._may_answer.wait()
        if self.refusals == 0:
            return await self._page(request)
        if self.refusals is not None:
            self.refusals -= 1
        self.refused_at.append(asyncio.get_running_loop().time())
        return web.Response(status=429, headers=self.refusal_headers)

    async def _drop(self, request: web.Request) -> web.StreamResponse:
        _transport(request).abort()
        await _until_the_visitor_is_gone()

    async def _drop_midway(self, request: web.Request) -> web.StreamResponse:
        await _send_first_part(request)
        return await self._drop(request)

    async def _truncated(self, request: web.Request) -> web.StreamResponse:
        await _send_first_part(request)
        _transport(request).close()
        await _until_the_visitor_is_gone()

    async def _robots(self, _: web.Request) -> web.StreamResponse:
        if self.robots_is_slow:
            await self._may_answer.wait()
        return web.Response(text=self.robots)


def _target(request: web.Request) -> str:
    return f"{request.match_info['to']}?{request.query_string}"


async def _send_first_part(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    response.content_length = 2 * len(FIRST_PART)
    await response.prepare(request)
    await response.write(FIRST_PART)
    return response


async def _until_the_visitor_is_gone() -> NoReturn:
    await asyncio.Event().wait()
    raise AssertionError("aiohttp cancels a handler whose connection is gone")


def _transport(request: web.Request) -> asyncio.Transport:
    assert isinstance(request.transport, asyncio.Transport)
    return request.transport
