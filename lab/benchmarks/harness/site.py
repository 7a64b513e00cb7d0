"""A site as a process of its own, so that its work is not counted as the crawl's.

`/<host's name>/<milliseconds>/<visitor>/<number>` is a small page that takes that long to answer;
with two times, as in 150-250, pages take times between, spread evenly over their numbers. With a
rate and a burst, as in 100@5+10, it allows 5 starts a second, and 10 at once; it closes the
connections of the others if an exclamation mark follows. With a share, as in 100@30%, it always
refuses so many of the pages. The site records which requests are open, and when; `/record` returns
that. It is as simple as a server can be: on a machine with few cores it must leave them to those
who are measured.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.request import urlopen

from lab.benchmarks.harness.load import next_line, running, write
from lab.demo.judging import JudgingSite, Work, response
from lab.demo.judging import Visit as Request
from lab.simulation.sites import Meter

BODY = b"<!doctype html>\n<title>A page</title>\n" + 12 * b"<p>Some words, to be a page.</p>\n"
PAGE = response(BODY)
REFUSAL = response(b"", 429)
SETTLE_S = 2.0  # until those who came first are no longer ahead


@dataclass(frozen=True, slots=True)
class Visit:
    """A request, from when the site has read it until it has answered, or been asked for this."""

    host: str
    visitor: str
    begin: float  # seconds on the machine's monotonic clock, the same for all processes
    end: float
    status: int  # 200 while it is open


class MeasuringSite(JudgingSite):
    """Answers as the path says, and writes down whose requests were open, and when."""

    def __init__(self) -> None:
        super().__init__()
        self._over: list[tuple[str, str, float, float, int]] = []
        self._meters: dict[str, Meter] = {}

    def begin(self, visit: Request) -> Work | None:
        if visit.path == "/record":
            visit.answer(response(json.dumps(self._record()), kind="application/json"))
            return None
        _, host, manner, _, number = visit.path.split("/")
        manner, _, allowed = manner.partition("@")
        if allowed and self._refuses(host, int(number), allowed.rstrip("!")):
            if allowed.endswith("!"):
                visit.transport.close()
            else:
                visit.answer(REFUSAL)
            return None
        wait = _wait(manner, _place(int(number))) / 1000
        return asyncio.get_running_loop().call_later(wait, visit.answer, PAGE)

    def _refuses(self, host: str, number: int, allowed: str) -> bool:
        if allowed.endswith("%"):
            return 100 * _place(number) < float(allowed.rstrip("%"))
        meter = self._meters.get(host)
        if meter is None:
            rate, burst = map(float, allowed.split("+"))
            meter = self._meters[host] = Meter(((0.0, rate),), burst)
        return meter.refuses(time.monotonic()) is not None

    def leave(self, visit: Request) -> None:
        super().leave(visit)
        self.visits.clear()  # it has a record of its own
        if visit.path != "/record":
            self._over.append((*_who(visit), time.monotonic(), visit.status))

    def _record(self) -> list[tuple[str, str, float, float, int]]:
        now = time.monotonic()
        open = [visit for host in self.hosts.values() for visit in host.open]
        return [*self._over, *((*_who(at), now, 200) for at in open if at.path != "/record")]


def _who(visit: Request) -> tuple[str, str, float]:
    _, host, _, visitor, _ = visit.path.split("/")
    return host, visitor, visit.begin


def _place(number: int) -> float:
    """Of a page, between 0 and 1: of neighbours, no two are near each other."""
    return number * 0.618 % 1


def _wait(milliseconds: str, place: float) -> float:
    least, _, most = milliseconds.partition("-")
    return float(least) + (float(most) - float(least)) * place if most else float(least)


async def serve() -> None:
    write(f"{await MeasuringSite().listen()}\n")
    await asyncio.Event().wait()


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
        """Those that are over in the order of their ends, then the open ones."""
        with urlopen(f"http://127.0.0.1:{self._port}/record") as reply:
            return [Visit(*visit) for visit in json.load(reply)]

    def wait_until_busy(self, number: int) -> None:
        """Until so many visitors have come, each counted once a host, and have found their
        interval.
        """
        while len({(visit.host, visit.visitor) for visit in self.visits()}) < number:
            time.sleep(0.2)
        time.sleep(SETTLE_S)


@contextmanager
def site() -> Iterator[Site]:
    with running([sys.executable, "-m", "lab.benchmarks.harness.site"]) as process:
        yield Site(int(next_line(process)))


if __name__ == "__main__":
    asyncio.run(serve())
