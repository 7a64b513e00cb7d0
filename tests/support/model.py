"""What the semaphore should do, in plain Python: nobody's clock, no leases, no keys.

It is start-time fair queueing as the book has it, for one scope.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from semaphore_middleware.redis.protocol import Verb


@dataclass
class Waiter:
    place: int
    arrival: int
    id: str

    @property
    def node(self) -> str:
        return self.id[0]


class Model:
    """One scope. A permit's id begins with its node's letter."""

    def __init__(self) -> None:
        self.recovering = False
        self._arrivals = count()
        self._forget_all()

    def _forget_all(self) -> None:
        self.rule: int | None = None  # an operator's word
        self.paused = False
        self.quiet = False  # the site has said "not now"
        self._be_idle()

    def _be_idle(self) -> None:
        self.limit: int | None = None
        self.held: list[str] = []
        self._line: list[Waiter] = []
        self._virtual = 0

    @property
    def in_force(self) -> int:
        return self.rule or self.limit or 0

    @property
    def forbids(self) -> bool:
        """Whether nothing may start, however many permits are free."""
        return self.recovering or self.paused or self.quiet

    @property
    def line(self) -> list[str]:
        return [waiter.id for waiter in self._sorted()]

    def say(self, verb: Verb, ids: tuple[str, ...], limit: int) -> tuple[list[str], list[str]]:
        """Returns who is told of a grant, in order, and what is lost."""
        self.limit = min(self.limit or limit, limit)
        told, lost = [], []
        for id in ids:
            if verb == "release":
                self._leave(id)
            elif id in self.held:
                told += [id] if verb == "acquire" else []
            elif verb == "acquire":
                self._join(id)
            elif self.recovering:
                self._leave(id)
                self.held.append(id)
            else:
                lost.append(id)
        return told + self.promote(), lost

    def refuse(self, ids: tuple[str, ...], limit: int) -> list[str]:
        """Given back with the word that the site said "not now", if it was held at all."""
        self.limit = min(self.limit or limit, limit)
        self.quiet = self.quiet or any(id in self.held for id in ids)
        for id in ids:
            self._leave(id)
        return self.promote()

    def promote(self) -> list[str]:
        granted = []
        while self._line and not self.forbids and len(self.held) < self.in_force:
            head = self._sorted()[0]
            self._line.remove(head)
            self._virtual = head.place
            self.held.append(head.id)
            granted.append(head.id)
        if not self.held and not self._line:
            self._be_idle()
        return granted

    def die(self, node: str) -> None:
        self.held = [id for id in self.held if id[0] != node]
        self._line = [waiter for waiter in self._line if waiter.node != node]

    def lose_all(self) -> None:
        self._forget_all()
        self.recovering = True

    def _join(self, id: str) -> None:
        if id not in self.line:
            last = max((w.place for w in self._line if w.node == id[0]), default=0)
            self._line.append(Waiter(max(self._virtual, last) + 1, next(self._arrivals), id))

    def _leave(self, id: str) -> None:
        self.held = [other for other in self.held if other != id]
        if id in self.line:
            self._line = [waiter for waiter in self._line if waiter.id != id]
            last = 0
            for waiter in self._sorted():
                if waiter.node == id[0]:  # those behind move up
                    waiter.place = min(waiter.place, max(self._virtual, last) + 1)
                    last = waiter.place

    def _sorted(self) -> list[Waiter]:
        return sorted(self._line, key=lambda waiter: (waiter.place, waiter.arrival))
