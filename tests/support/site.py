"""The site of the tests: each path behaves in its own way."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterable
from typing import Any

from lab.demo.judging import JudgingSite, Visit, Work, response

PAGE = "<!doctype html>\n<title>A page</title>\n"
MOVED = '<meta http-equiv="refresh" content="0; url={}">'
LARGE = bytes(20_000)
FIRST_PART = b"the first part of a body"


class Site(JudgingSite):
    """Answers to any host name on a loopback port; slow pages wait for the test, not for the clock.

    Each path behaves in its own way:

    /page/...           answers at once, with `headers_of` that path
    /slow/...           answers once the test has called `let_go()`
    /take/0.3/...       answers after so many seconds
    /half/...           sends headers and a part of the body at once, the rest after `let_go()`
    /never              does not answer
    /large              `LARGE`, with `headers_of` that path, as /redirect/... has if there are any
    /redirect/...       to the path that follows, by status 302; /refresh/... by the page's own
                        word; /redirect//host:port/... to another host
    /status/503         that status, each time, with `headers_of` that path; /status-once/503 the
                        first time, then a page
    /busy/...           answers with 429 `refusals` times, or always if that is None, else at
                        once; /busy/slow... after `let_go()`
    /drop               breaks the connection before the headers; /drop-midway within the body
    /truncated          ends the connection properly, but before the end of the body
    /robots.txt         `robots`; after `let_go()` if `robots_is_slow`; of a host in `robots_as` as
                        the path that is named there
    /rules              `robots`, for a /robots.txt that redirects
    """

    def __init__(self) -> None:
        super().__init__()
        self.port = 0
        self.refusals: int | None = 0
        self.refusal_headers: dict[str, str] = {}
        self.refused_at: list[float] = []
        self.headers_of: dict[str, dict[str, Any]] = {}
        self.robots = "User-agent: *\nDisallow: /forbidden\n"
        self.robots_is_slow = False
        self.robots_as: dict[str, str] = {}
        self._may_answer = asyncio.Event()

    async def start(self) -> None:
        self.port = await self.listen()

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def let_go(self) -> None:
        self._may_answer.set()

    @property
    def arrivals(self) -> list[str]:
        return [visit.path for visit in self.visits]

    @property
    def times(self) -> list[float]:
        return [visit.begin for visit in self.visits]

    def begin(self, visit: Visit) -> Work | None:
        path, _, query = visit.path.partition("?")
        if path == "/robots.txt":
            path = self.robots_as.get(visit.host, path)
        _, kind, *rest = path.split("/", 2)
        return asyncio.ensure_future(self._respond(visit, kind, "".join(rest), query))

    async def _respond(self, visit: Visit, kind: str, rest: str, query: str) -> None:
        slow = kind in ("slow", "half") or (kind == "busy" and rest.startswith("slow"))
        cut = kind in ("half", "drop-midway", "truncated")
        if cut:
            whole = response(FIRST_PART + bytes(len(FIRST_PART)))
            visit.transport.write(whole[: -len(FIRST_PART)])
            visit.status = 200
        if slow or (visit.path == "/robots.txt" and self.robots_is_slow):
            await self._may_answer.wait()
        match kind:
            case "never":
                pass
            case "take":
                await asyncio.sleep(float(rest.partition("/")[0]))
                visit.answer(response(PAGE))
            case "drop" | "drop-midway":
                visit.transport.abort()
            case "truncated":
                visit.transport.close()
            case "half":
                visit.answer(bytes(len(FIRST_PART)))
            case _:
                visit.answer(self._response(visit, kind, rest, query))

    def _response(self, visit: Visit, kind: str, rest: str, query: str) -> bytes:
        headers = self.headers_of.get(visit.path, {})
        page = response(PAGE, **headers)
        match kind:
            case "page" | "slow":
                return page
            case "large":
                return response(LARGE, kind="application/octet-stream", **headers)
            case "redirect":
                body = LARGE if headers else b""
                return response(body, 302, Location=f"/{rest}?{query}", **headers)
            case "refresh":
                return response(MOVED.format(f"/{rest}?{query}"))
            case "status":
                return response(PAGE, int(rest.partition("/")[0]), "text/plain", **headers)
            case "status-once" if self.arrivals.count(visit.path) == 1:
                return response(PAGE, int(rest), "text/plain")
            case "status-once":
                return page
            case "busy" if self.refusals == 0:
                return page
            case "busy":
                if self.refusals is not None:
                    self.refusals -= 1
                self.refused_at.append(time.monotonic())
                return response(status=429, **self.refusal_headers)
            case "robots.txt" | "rules":
                return response(self.robots, kind="text/plain")
            case _:
                return response(status=404)


def most_at_once(visits: Iterable[Visit]) -> int:
    """How many of these were open at once, whatever hosts they were for."""
    changes = [change for visit in visits for change in ((visit.begin, 1), (visit.end, -1))]
    return max(itertools.accumulate(change for _, change in sorted(changes)), default=0)
