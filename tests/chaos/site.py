"""The judging site of the chaos runs: it writes all visits down, and its pages keep nodes busy."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Self

from tests.chaos.history import History
from tests.support.site import JudgingSite, Visit, Work, response

LATENCY_S = 0.01, 0.03  # that most pages take
SLOW = 0.008  # share of pages that take much longer, so that faults find transfers under way
LINKS = 10  # most new pages that a page links to


@dataclass(eq=False)
class Pages:
    """The pages of one host: a scope of the semaphore."""

    address: str
    port: int = 0
    links: dict[str, list[str]] = field(default_factory=dict)  # by path; the same each time asked
    known: int = 0
    served: set[str] = field(default_factory=set)
    filled: float = 0.0  # when a start last took the last free place

    @property
    def url(self) -> str:
        return f"http://{self.address}:{self.port}"


class Site(JudgingSite):
    """Hosts at addresses of their own, with new pages as long as a run wants them."""

    def __init__(
        self, history: History, dice: Random, addresses: Sequence[str], limit: int, lease: float
    ) -> None:
        super().__init__()
        self.pages = {address: Pages(address) for address in addresses}
        self.limit = limit
        self.visitors: set[str] = set()  # nodes that have been here
        self.afflicted: set[str] = set()  # nodes whose visits do not count as use of a place
        self.backlog = 40  # pages a host that are known and not yet served; 0 to come to an end
        self.last_end: dict[str, float] = {}  # by node
        self.compute = 0.0  # seconds for which the next visitor's callback shall compute
        self.computes = ""  # the node whose callback that is
        self._slow = 0.5 * lease, 2.0 * lease
        self._ends: dict[Visit, float] = {}  # of the visits in hand: when they will be answered
        self._dice = dice
        self._history = history

    async def __aenter__(self) -> Self:
        for pages in self.pages.values():
            pages.port = await self.listen(pages.address)
            self._make_known(pages, "/0")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def requests(self) -> int:
        return len(self.visits)

    def busy(self, seconds: float) -> set[str]:
        """The nodes with a transfer that will take so much longer."""
        end = time.monotonic() + seconds
        return {_node(visit) for visit, its_end in self._ends.items() if its_end > end}

    async def in_full_use(self, since: float) -> float:
        """Wait until at every host a start has taken the last free place; when that was."""
        await self.until(lambda: all(pages.filled > since for pages in self.pages.values()))
        return max(pages.filled for pages in self.pages.values())

    # What visitors do ---------------------------------------------------------------------------

    def begin(self, visit: Visit) -> Work:
        node = _node(visit)
        permit = visit.header("Permit")
        self._history.note("start", node, visit.host, str(visit.number), visit.path, permit)
        self.visitors.add(node)
        open = [_node(other) for other in self.hosts[visit.host].in_hand]
        in_use = sum(other not in self.afflicted for other in open)
        if node not in self.afflicted and in_use >= self.limit:
            self.pages[visit.host].filled = time.monotonic()
        slow = self.backlog and self._dice.random() < SLOW
        latency = self._dice.uniform(*(self._slow if slow else LATENCY_S))
        self._ends[visit] = time.monotonic() + latency
        return asyncio.get_running_loop().call_later(latency, self._serve, visit)

    def leave(self, visit: Visit) -> None:
        node = _node(visit)
        self.last_end[node] = time.monotonic()
        self._history.note("end", node, visit.host, str(visit.number))
        del self._ends[visit]
        super().leave(visit)

    def _serve(self, visit: Visit) -> None:
        pages, path = self.pages[visit.host], visit.path
        pages.served.add(path)
        if path not in pages.links:
            wanted = self.backlog - (pages.known - len(pages.served))
            count = max(0, min(LINKS if path != "/0" else self.backlog, wanted))
            pages.links[path] = [f"/{pages.known + number}" for number in range(count)]
            for link in pages.links[path]:
                self._make_known(pages, link)
        compute, self.compute = self.compute, 0.0
        if compute:
            self.computes = _node(visit)
        page = json.dumps({"links": pages.links[path], "compute": compute})
        visit.answer(response(page, kind="application/json"))

    def _make_known(self, pages: Pages, path: str) -> None:
        pages.known += 1
        self._history.note("known", host=pages.address, path=path)


def _node(visit: Visit) -> str:
    return visit.header("User-Agent")
