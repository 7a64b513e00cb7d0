"""A site that judges: it knows at any moment which requests each of its hosts has open.

It uses no library: it sees an end as soon as the kernel tells of it, and leaves the processor to
those that it judges. `JudgingSite` counts. Its subclasses say when it answers, and with which page:
the example site here, that of the tests, and that of the benchmarks.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import responses
from typing import Protocol

END_OF_HEAD = b"\r\n\r\n"


class Work(Protocol):
    """An answer in preparation: a timer's handle, or a task."""

    def cancel(self) -> object: ...


@dataclass(eq=False, slots=True)
class Visit:
    """One request, open from its arrival until its answer is written or its visitor has gone."""

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
        """Write the rest of the answer; from now on it is not open."""
        if self.is_open:
            self.status = self.status or int(response[9:12])
            self.transport.write(response)
            self.site.leave(self)

    @property
    def is_open(self) -> bool:
        return self in self.site.hosts[self.host].open


@dataclass
class Host:
    """The count of one host's requests."""

    open: set[Visit] = field(default_factory=set)
    most: int = 0  # open at once

    @property
    def now(self) -> int:
        return len(self.open)


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
        host.open.add(visit)
        host.most = max(host.most, host.now)
        self.visits.append(visit)
        self._changed.set()
        return visit

    def leave(self, visit: Visit) -> None:
        visit.end = time.monotonic()
        self.hosts[visit.host].open.remove(visit)
        self._changed.set()


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
        """A visitor who is gone has no open request."""
        if self._visit is not None and self._visit.is_open:
            if self._visit.work is not None:
                self._visit.work.cancel()
            self._site.leave(self._visit)


def response(
    body: bytes | str = b"", status: int = 200, kind: str = "text/html", **headers: str
) -> bytes:
    """An answer of HTTP. Underscores of headers' names stand for hyphens."""
    if isinstance(body, str):
        body = body.encode()
    lines = [f"HTTP/1.1 {status} {responses.get(status, 'Unknown')}", f"Content-Type: {kind}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    lines += [f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body
