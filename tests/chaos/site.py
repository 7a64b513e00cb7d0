"""The judging site: what is open at each of its hosts, and pages that keep the nodes busy.

It is no aiohttp, because it is the judge: it sees an end the moment the kernel tells of it, and
takes little of the processor from the nodes that it judges.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Self, cast

from tests.chaos.history import History

LATENCY = 0.01, 0.03  # seconds that most pages take
SLOW = 0.008  # share of pages that take much longer, so that faults find transfers under way
LINKS = 10  # most new pages that a page links to
END_OF_HEAD = b"\r\n\r\n"


@dataclass(eq=False)
class Host:
    """One host of the site: a scope of the semaphore."""

    address: str
    port: int = 0
    links: dict[str, list[str]] = field(default_factory=dict)  # by path; the same each time asked
    known: int = 0
    served: set[str] = field(default_factory=set)
    open: set[Visit] = field(default_factory=set)
    filled: float = 0.0  # when a start last took the last free place

    @property
    def url(self) -> str:
        return f"http://{self.address}:{self.port}"


@dataclass(eq=False)
class Visit:
    """One request, from its arrival to its end."""

    number: int
    node: str
    host: Host
    path: str


class Site:
    def __init__(
        self, history: History, dice: Random, addresses: Sequence[str], limit: int, lease: float
    ) -> None:
        self.hosts = [Host(address) for address in addresses]
        self.limit = limit
        self.requests = 0
        self.visitors: set[str] = set()  # nodes that have been here
        self.afflicted: set[str] = set()  # nodes whose visits do not count as use of a place
        self.backlog = 40  # pages a host that are known and not yet served; 0 to come to an end
        self.last_end: dict[str, float] = {}  # by node
        self.compute = 0.0  # seconds for which the next visitor's callback shall compute
        self.computes = ""  # the node whose callback that was
        self._slow = 0.5 * lease, 2.0 * lease
        self._dice = dice
        self._history = history
        self._numbers = itertools.count(1)
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._servers = []
        for host in self.hosts:
            make = _visitor_of(self, host)
            server = await loop.create_server(make, host.address, 0)
            host.port = server.sockets[0].getsockname()[1]
            self._servers.append(server)
            self._make_known(host, "/0")
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()

    # What a run waits for -----------------------------------------------------------------------

    async def until(self, seen: Callable[[], bool]) -> None:
        while not seen():
            self._changed.clear()
            await self._changed.wait()

    async def in_full_use(self, since: float) -> float:
        """Wait until at every host a start has taken the last free place; when that was."""
        await self.until(lambda: all(host.filled > since for host in self.hosts))
        return max(host.filled for host in self.hosts)

    # What visitors do ---------------------------------------------------------------------------

    def arrive(self, host: Host, path: str, node: str) -> Visit:
        visit = Visit(next(self._numbers), node, host, path)
        self._history.note("start", node, host.address, str(visit.number), path)
        host.open.add(visit)
        self.requests += 1
        self.visitors.add(node)
        in_use = sum(other.node not in self.afflicted for other in host.open)
        if node not in self.afflicted and in_use >= self.limit:
            host.filled = time.monotonic()
        self._changed.set()
        return visit

    def leave(self, visit: Visit) -> None:
        if visit in visit.host.open:
            visit.host.open.discard(visit)
            self.last_end[visit.node] = time.monotonic()
            self._history.note("end", visit.node, visit.host.address, str(visit.number))
            self._changed.set()

    def latency(self) -> float:
        slow = self.backlog and self._dice.random() < SLOW
        return self._dice.uniform(*(self._slow if slow else LATENCY))

    def page(self, visit: Visit) -> bytes:
        host, path = visit.host, visit.path
        host.served.add(path)
        if path not in host.links:
            wanted = self.backlog - (host.known - len(host.served))
            count = max(0, min(LINKS if path != "/0" else self.backlog, wanted))
            host.links[path] = [f"/{host.known + number}" for number in range(count)]
            for link in host.links[path]:
                self._make_known(host, link)
        compute, self.compute = self.compute, 0.0
        if compute:
            self.computes = visit.node
            self._changed.set()
        return json.dumps({"links": host.links[path], "compute": compute}).encode()

    def _make_known(self, host: Host, path: str) -> None:
        host.known += 1
        self._history.note("known", host=host.address, path=path)


class Visitor(asyncio.Protocol):
    """One connection; its requests come one after the other."""

    def __init__(self, site: Site, host: Host) -> None:
        self._site = site
        self._host = host
        self._visit: Visit | None = None
        self._heard = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._heard += data
        if END_OF_HEAD not in self._heard:
            return
        first, *lines = self._heard.decode("latin-1").split("\r\n")
        self._heard = b""
        headers = dict(line.lower().split(": ", 1) for line in lines if ": " in line)
        self._visit = self._site.arrive(self._host, first.split()[1], headers["user-agent"])
        asyncio.get_running_loop().call_later(self._site.latency(), self._answer, self._visit)

    def _answer(self, visit: Visit) -> None:
        if self._visit is not visit:
            return  # it has gone
        body = self._site.page(visit)
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        self._end()

    def eof_received(self) -> None:
        self._end()

    def connection_lost(self, _: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        if self._visit is not None:
            self._site.leave(self._visit)
            self._visit = None


def _visitor_of(site: Site, host: Host) -> Callable[[], Visitor]:
    return lambda: Visitor(site, host)
