"""The judging site of the chaos runs: its pages keep nodes busy, as long as a run wants them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Self

from tests.support.site import JudgingSite, Visit, Work, response

LATENCY_S = 0.01, 0.03  # that most pages take
SLOW = 0.008  # share of pages that take much longer, so that faults find transfers under way
LINKS = 10  # most new pages that a page links to


def node_of(visit: Visit) -> str:
    return visit.header("User-Agent")


@dataclass(eq=False)
class Pages:
    """The pages of one host: a scope of the semaphore."""

    port: int
    links: dict[str, list[str]] = field(default_factory=dict)  # by path; the same each time asked
    known: int = 1  # /0, /1 ...: these must arrive
    filled: float = 0.0  # when a start last took the last free place


class Site(JudgingSite):
    """Hosts at addresses of their own, with new pages until `backlog` is set to 0."""

    def __init__(self, dice: Random, addresses: Sequence[str], limit: int, lease: float) -> None:
        super().__init__()
        self.pages: dict[str, Pages] = {}
        self.visitors: set[str] = set()  # nodes that have been here
        self.afflicted: set[str] = set()  # nodes whose visits do not count as use of a place
        self.backlog = 40  # pages a host that are known and not yet served
        self.compute = 0.0  # seconds for which the next visitor's callback shall compute
        self.computes = ""  # the node whose callback that is
        self._addresses = addresses
        self._limit = limit
        self._slow = 0.5 * lease, 2.0 * lease
        self._ends: dict[Visit, float] = {}  # of the visits in hand: when they will be answered
        self._dice = dice

    async def __aenter__(self) -> Self:
        for address in self._addresses:
            self.pages[address] = Pages(await self.listen(address))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def start_urls(self) -> list[str]:
        return [f"http://{address}:{pages.port}/0" for address, pages in self.pages.items()]

    @property
    def known(self) -> Iterator[tuple[str, str]]:
        """Host and path of each page that a node has heard of."""
        for address, pages in self.pages.items():
            yield from ((address, f"/{number}") for number in range(pages.known))

    def busy(self, seconds: float) -> set[str]:
        """The nodes with a transfer that will take so much longer."""
        end = time.monotonic() + seconds
        return {node_of(visit) for visit, its_end in self._ends.items() if its_end > end}

    async def in_full_use(self, since: float) -> None:
        """Wait until at every host a start has taken the last free place."""
        await self.until(lambda: all(pages.filled > since for pages in self.pages.values()))

    def begin(self, visit: Visit) -> Work:
        node = node_of(visit)
        self.visitors.add(node)
        others = [node_of(other) for other in self.hosts[visit.host].in_hand]
        in_use = sum(other not in self.afflicted for other in others)
        if node not in self.afflicted and in_use >= self._limit:
            self.pages[visit.host].filled = time.monotonic()
        slow = self.backlog and self._dice.random() < SLOW
        latency = self._dice.uniform(*(self._slow if slow else LATENCY_S))
        self._ends[visit] = time.monotonic() + latency
        return asyncio.get_running_loop().call_later(latency, self._serve, visit)

    def leave(self, visit: Visit) -> None:
        del self._ends[visit]
        super().leave(visit)

    def _serve(self, visit: Visit) -> None:
        pages, path = self.pages[visit.host], visit.path
        if path not in pages.links:
            pages.links[path] = []
            wanted = self.backlog - (pages.known - len(pages.links))
            count = max(0, min(LINKS if path != "/0" else self.backlog, wanted))
            pages.links[path] = [f"/{pages.known + number}" for number in range(count)]
            pages.known += count
        compute, self.compute = self.compute, 0.0
        if compute:
            self.computes = node_of(visit)
        page = json.dumps({"links": pages.links[path], "compute": compute})
        visit.answer(response(page, kind="application/json"))
