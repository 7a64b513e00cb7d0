"""An example site with a count of requests: `python -m lab.demo.site --port 8000`.

It answers to any host name, with the same pages, and keeps a record for each host. `/_judge`
returns the records as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from yarl import URL

BRANCHES = 8  # first links of each page: their tree reaches every page
FORBIDDEN = "/private/diary"
ROBOTS = f"User-agent: *\nDisallow: {FORBIDDEN}\n"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Record:
    """The requests to one host so far."""

    now: int = 0  # open requests, those for robots.txt included
    most: int = 0  # open at once
    pages: Counter[str] = field(default_factory=Counter)  # path -> requests
    robots: int = 0  # requests for robots.txt
    forbidden: int = 0  # requests that robots.txt forbids
    first: float | None = None  # start of the first request, seconds
    last: float | None = None  # end of the last one

    def enter(self, path: str) -> None:
        """Count the beginning of a request."""
        if self.first is None:
            self.first = time.monotonic()
        self.now += 1
        self.most = max(self.most, self.now)
        if path == "/robots.txt":
            self.robots += 1
        elif path == FORBIDDEN:
            self.forbidden += 1
        else:
            self.pages[path] += 1

    def leave(self) -> None:
        """Count the end of a request."""
        self.now -= 1
        self.last = time.monotonic()


@dataclass
class Judge:
    """The records of all hosts, compared with the existing pages."""

    paths: list[str]  # of all pages
    hosts: dict[str, Record] = field(default_factory=dict)

    def record(self, host: str) -> Record:
        """The record of a host."""
        return self.hosts.setdefault(host, Record())

    def missed(self, host: str) -> list[str]:
        """The pages never requested."""
        return [path for path in self.paths if not self.record(host).pages[path]]

    def twice(self, host: str) -> list[str]:
        """The pages requested more than once."""
        return [path for path, requests in self.record(host).pages.items() if requests > 1]

    def state(self) -> dict[str, Any]:
        """All records, for JSON."""
        return {
            host: {**vars(record), "missed": self.missed(host), "twice": self.twice(host)}
            for host, record in self.hosts.items()
        }


class ExampleSite:
    """Linked pages, served by a web server of its own.

    async with ExampleSite(pages=300, latency=0.1).running() as site:
        ... crawl site.url ...
        assert site.judge.missed("127.0.0.1") == []
    """

    def __init__(
        self, pages: int = 300, latency: float = 0.1, port: int = 0, host: str = "127.0.0.1"
    ) -> None:
        self.pages = pages
        self.latency = latency  # seconds; may be changed at any time
        self.port = port
        self.host = host  # to listen at
        self._numbers = {path_of(number): number for number in range(pages)}
        self.judge = Judge(list(self._numbers))

    @property
    def url(self) -> str:
        """The address of the first page."""
        return f"http://{self.host}:{self.port}/"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ExampleSite]:
        """Serve the site in this context; sets `port` if it was 0."""
        app = web.Application(middlewares=[self._watch])
        app.router.add_get("/_judge", self._state)
        app.router.add_get("/robots.txt", self._robots)
        app.router.add_get("/{path:.*}", self._page)
        # A request ends with its connection, answered or not.
        runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, self.host, self.port).start()
            self.port = runner.addresses[0][1]
            yield self
        finally:
            await runner.cleanup()

    @web.middleware
    async def _watch(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path == "/_judge":
            return await handler(request)
        record = self.judge.record(URL(f"http://{request.host}").host or "")
        record.enter(request.path)
        try:
            response = await handler(request)
            # Sent here and not after the return: a request is open until its response is sent.
            await response.prepare(request)
            await response.write_eof()
            return response
        finally:
            record.leave()

    async def _state(self, _: web.Request) -> web.StreamResponse:
        return web.json_response(self.judge.state())

    async def _robots(self, _: web.Request) -> web.StreamResponse:
        await asyncio.sleep(self.latency)
        return web.Response(text=ROBOTS)

    async def _page(self, request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(self.latency)
        if request.path not in self._numbers:
            return web.Response(status=404, text="No such page.")
        html = page(self._numbers[request.path], self.pages)
        return web.Response(text=html, content_type="text/html")


def path_of(number: int) -> str:
    """The path of a page."""
    return f"/page/{number}" if number else "/"


def page(number: int, pages: int) -> str:
    """The HTML of a page: links down the tree, across it, and back."""
    down = range(BRANCHES * number + 1, BRANCHES * number + BRANCHES + 1)
    across = [(7 * number + 3) % pages, max(number - 1, 0), 0]
    paths = [path_of(target) for target in (*down, *across) if target < pages]
    if number == 0:
        paths.append(FORBIDDEN)
    links = "\n".join(f'<li><a href="{path}">{path}</a></li>' for path in paths)
    return f"<!doctype html>\n<title>Page {number}</title>\n<ul>\n{links}\n</ul>\n"


async def serve(site: ExampleSite) -> None:
    """Serve a site until cancelled."""
    async with site.running():
        line = f"{site.pages} pages at {site.url}, the records at {site.url}_judge"
        print(line, flush=True)  # noqa: T201  (a program of its own)
        await asyncio.Event().wait()


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description="Serve the example site until Ctrl-C.")
    parser.add_argument("--pages", type=int, default=300, help="number of pages (%(default)s)")
    parser.add_argument(
        "--latency", type=float, default=0.1, help="response time in seconds (%(default)s)"
    )
    parser.add_argument("--port", type=int, default=0, help="0 for any free port (%(default)s)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    options = parser.parse_args()
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(ExampleSite(**vars(options))))


if __name__ == "__main__":
    main()
