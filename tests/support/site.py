"""The judging site: it knows at any moment which requests each of its hosts has in hand.

It uses no library, because it judges: it sees an end as soon as the kernel tells of it, and leaves
the processor to those that it judges. `JudgingSite` counts. Its subclasses say when it answers, and
with which page: `Site` here, for tests, and that of the benchmarks.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Protocol

END_OF_HEAD = b"\r\n\r\n"


class Work(Protocol):
    """An answer in preparation: a timer's handle, or a task."""

    def cancel(self) -> object: ...


@dataclass(eq=False, slots=True)
class Visit:
    """One request, in hand from its arrival until its answer is written or its visitor has gone."""

    number: int
    host: str
    path: str  # with the query
    head: bytes
    begin: float  # seconds on the machine's monotonic clock, the same for all processes
    site: JudgingSite
    transport: asyncio.Transport
    work: Work | None = None
    status: int = 0  # as far as it was answered
    end: float = math.inf  # on the same clock

    def header(self, name: str) -> str:
        """Its value, or nothing. Lower case, as the nodes' names are."""
        _, found, rest = self.head.lower().partition(b"\r\n%b:" % name.lower().encode())
        return rest.partition(b"\r\n")[0].strip().decode("latin-1") if found else ""

    def answer(self, response: bytes) -> None:
        """Write the rest of the answer; from now on it is in hand no more."""
        if self.in_hand:
            self.status = self.status or int(response[9:12])
            self.transport.write(response)
            self.site.leave(self)

    @property
    def in_hand(self) -> bool:
        return self in self.site.hosts[self.host].in_hand


@dataclass
class Host:
    """The count of one host's requests."""

    in_hand: set[Visit] = field(default_factory=set)
    most: int = 0  # in hand at once

    @property
    def now(self) -> int:
        return len(self.in_hand)


class JudgingSite:
    """Counts requests by host, whatever address they come to."""

    def __init__(self) -> None:
        self.visits: list[Visit] = []  # in the order of their arrivals
        self.hosts: defaultdict[str, Host] = defaultdict(Host)
        self._numbers = itertools.count(1)
        self._changed = asyncio.Event()
        self._servers: list[asyncio.Server] = []
        self._transports: set[asyncio.Transport] = set()

    def begin(self, visit: Visit) -> Work | None:
        """Begin to answer; what is returned is cancelled if the visitor goes before the end."""
        raise NotImplementedError

    # What its users ask -------------------------------------------------------------------------

    @property
    def now(self) -> int:
        return sum(host.now for host in self.hosts.values())

    @property
    def most(self) -> int:
        return max((host.most for host in self.hosts.values()), default=0)

    async def until(self, seen: Callable[[], bool]) -> None:
        while not seen():
            self._changed.clear()
            await self._changed.wait()

    # The server ---------------------------------------------------------------------------------

    async def listen(self, address: str = "127.0.0.1", port: int = 0) -> int:
        """Be there, on a port that is returned: if it is 0, on any."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Visitor(self), address, port, backlog=1000)
        self._servers.append(server)
        taken: int = server.sockets[0].getsockname()[1]
        return taken

    async def stop(self) -> None:
        for server in self._servers:
            server.close()
        for transport in self._transports:
            transport.abort()

    def connect(self, transport: asyncio.Transport, there: bool) -> None:
        (self._transports.add if there else self._transports.discard)(transport)

    def arrive(self, head: bytes, transport: asyncio.Transport) -> Visit:
        visit = Visit(next(self._numbers), "", "", head, time.monotonic(), self, transport)
        visit.path = head.split(b" ", 2)[1].decode("latin-1")
        if visit.path.startswith("http://"):  # as proxies are asked
            visit.path = "/" + visit.path.split("/", 3)[3]
        visit.host = visit.header("Host").partition(":")[0]
        host = self.hosts[visit.host]
        host.in_hand.add(visit)
        host.most = max(host.most, host.now)
        self.visits.append(visit)
        self._changed.set()
        return visit

    def leave(self, visit: Visit) -> None:
        visit.end = time.monotonic()
        self.hosts[visit.host].in_hand.remove(visit)
        self._changed.set()


def most_at_once(visits: Iterable[Visit]) -> int:
    """How many of these were in hand at once, whatever hosts they were for."""
    changes = [change for visit in visits for change in ((visit.begin, 1), (visit.end, -1))]
    return max(itertools.accumulate(change for _, change in sorted(changes)), default=0)


class Visitor(asyncio.Protocol):
    """One connection; its requests come one after the other."""

    def __init__(self, site: JudgingSite) -> None:
        self._site = site
        self._visit: Visit | None = None
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._site.connect(transport, there=True)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._received[:1].isalpha():  # no method: whoever sends this speaks no HTTP
            self._transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            self._transport.close()
            return
        head, end, rest = self._received.partition(END_OF_HEAD)
        if end:
            self._received = rest  # nobody sends the next request before the answer
            self._visit = self._site.arrive(head, self._transport)
            self._visit.work = self._site.begin(self._visit)

    def eof_received(self) -> None:
        self._gone()

    def connection_lost(self, _: Exception | None) -> None:
        self._site.connect(self._transport, there=False)
        self._gone()

    def _gone(self) -> None:
        """A visitor who is gone has nothing in hand."""
        if self._visit is not None and self._visit.in_hand:
            if self._visit.work is not None:
                self._visit.work.cancel()
            self._site.leave(self._visit)


def response(
    body: bytes | str = b"", status: int = 200, kind: str = "text/html", **headers: str
) -> bytes:
    """An answer of HTTP. Underscores of headers' names stand for hyphens."""
    if isinstance(body, str):
        body = body.encode()
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", f"Content-Type: {kind}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    lines += [f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


# For tests --------------------------------------------------------------------------------------

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
    /status/503         that status, each time; /status-once/503 the first time, then a page
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
        if slow or (kind == "robots.txt" and self.robots_is_slow):
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
                return response(PAGE, int(rest), "text/plain")
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
