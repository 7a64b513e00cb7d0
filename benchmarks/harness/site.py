"""A site as a process of its own, so that its work is not counted as the crawl's.

`/<host's name>/<milliseconds>/<visitor>/<number>` is a small page that takes that long to answer;
with two times, as in 150-250, pages take times between, spread evenly over their numbers. With a
capacity, as in 100@10, what comes while more than that is in hand takes twice as long, and while
half as much again is, gets a 503. With a quota, as in 100!50-2, the 50th request, and what comes in
the two seconds after it, gets a 429 with that Retry-After. The site writes down who has what in
hand, and when; `/record` tells it. It is as simple as a server can be: on a machine with few cores
it must leave them to those who are measured.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from urllib.request import urlopen

BODY = b"<!doctype html>\n<title>A page</title>\n" + 12 * b"<p>Some words, to be a page.</p>\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n"
PAGE = HEAD % (b"text/html", len(BODY)) + BODY
TOO_MANY = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: %d\r\nContent-Length: 0\r\n\r\n"
UNAVAILABLE = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
REFUSING = 1.5  # times its capacity, above which a site refuses


@dataclass(frozen=True, slots=True)
class Visit:
    """A request, from when the site has read it until it has answered, or been asked for this."""

    host: str
    visitor: str
    begin: float  # seconds on the machine's monotonic clock, the same for all processes
    end: float
    status: int = 200


class Record:
    def __init__(self) -> None:
        self.over: list[tuple[str, str, float, float, int]] = []
        self.in_hand: set[Visitor] = set()
        self.requests = 0
        self.refusing_until = 0.0

    def told(self) -> bytes:
        now = monotonic()
        return json.dumps([*self.over, *((*at.visit, now) for at in self.in_hand)]).encode()

    def answer(self, manner: str, number: int) -> tuple[float, bytes]:
        """Milliseconds, and what to answer then."""
        self.requests += 1
        time, _, quota = manner.partition("!")
        if quota:
            last, _, seconds = quota.partition("-")
            if self.requests == int(last):
                self.refusing_until = monotonic() + float(seconds)
            if monotonic() < self.refusing_until:
                return 0, TOO_MANY % int(seconds)
        time, _, capacity = time.partition("@")
        wait = _wait(time, number)
        if capacity and len(self.in_hand) > int(capacity):
            if len(self.in_hand) > REFUSING * int(capacity):
                return 0, UNAVAILABLE
            wait *= 2
        return wait, PAGE


class Visitor(asyncio.Protocol):
    """A connection, which has one request in hand at most."""

    visit: tuple[str, str, float]

    def __init__(self, record: Record) -> None:
        self._record = record
        self._heard = b""
        self._answer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._heard += data
        head, end, rest = self._heard.partition(b"\r\n\r\n")
        if not end:
            return
        self._heard = rest  # nobody sends the next request before the answer
        path = head.split(b" ", 2)[1].decode()
        if path == "/record":
            told = self._record.told()
            self._transport.write(HEAD % (b"application/json", len(told)) + told)
            return
        host, manner, who, number = path[1:].split("/")
        self.visit = host, who, monotonic()
        self._record.in_hand.add(self)
        wait, answer = self._record.answer(manner, int(number))
        if wait:
            self._answer = asyncio.get_running_loop().call_later(wait / 1000, self._leave, answer)
        else:
            self._leave(answer)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if self._answer is not None:  # a visitor who is gone has nothing in hand
            self._answer.cancel()
            self._leave(b"")

    def _leave(self, answer: bytes) -> None:
        self._answer = None
        self._transport.write(answer)
        self._record.in_hand.remove(self)
        status = int(answer.split(b" ", 2)[1]) if answer else 0
        self._record.over.append((*self.visit, monotonic(), status))


def _wait(milliseconds: str, number: int) -> float:
    least, _, most = milliseconds.partition("-")
    share = number * 0.618 % 1  # of neighbours, no two are near each other
    return float(least) + (float(most) - float(least)) * share if most else float(least)


async def serve() -> None:
    record = Record()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Visitor(record), "127.0.0.1", 0, backlog=1000)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


class Site:
    """The process, as its starter sees it."""

    def __init__(self, port: int) -> None:
        self._port = port

    def pages(
        self, milliseconds: float | str, visitor: str = "one", host: str = "site.test"
    ) -> str:
        """The address of pages, to which a number is to be added."""
        return f"http://{host}:{self._port}/{host}/{milliseconds}/{visitor}/"

    def visits(self) -> list[Visit]:
        """Those that are over in the order of their ends, then those in hand."""
        with urlopen(f"http://127.0.0.1:{self._port}/record") as reply:
            return [Visit(*visit) for visit in json.load(reply)]


@contextmanager
def site() -> Iterator[Site]:
    command = [sys.executable, "-m", "benchmarks.harness.site"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Site(int(process.stdout.readline()))
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(serve())
