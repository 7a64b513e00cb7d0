"""Requests taken from the scheduler that have no permit yet, and sites that have enough of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from semaphore_middleware.model.limits import LimitTable

if TYPE_CHECKING:
    from scrapy import Request

MOST = 1000  # waiters in memory, so that they do not grow with the number of full sites
LONG = 100  # characters of a scope, above which it makes no good name for a file


@dataclass(slots=True, eq=False)
class Site:
    """A scope as this node's requests find it."""

    name: str
    limit: int
    waiters: int = 0
    in_line: int = 0
    """Of those that wait, who asked and was told to."""
    held: int = 0

    @property
    def has_enough(self) -> bool:
        """A limit's worth of its requests wait here: more of them would only take room."""
        return self.waiters >= self.limit

    @property
    def taking_no_room(self) -> int:
        """Waiters that are not to count as work in hand. Of a site that may have a free permit none
        is: all that are on their way there may start at once. Nor more than a limit's worth: a
        scheduler that takes no heed of full sites is held up by the others, as it is without us.
        """
        if self.in_line or self.held >= self.limit:
            return min(self.waiters, self.limit)
        return 0


class Waiters:
    """A request is a waiter from the moment it enters the downloader's `fetch` until it has its
    permit: behind the robots.txt of a full site it waits just as well.
    """

    def __init__(
        self,
        scope_of: Callable[[Request], str | None],
        limits: LimitTable,
        room_made: Callable[[], None],
    ) -> None:
        self._scope_of = scope_of
        self._limits = limits
        self._room_made = room_made
        self._sites: dict[str, Site] = {}  # with requests in `fetch`
        self._waiting: dict[Request, Site] = {}
        self._in_line: set[Request] = set()
        self._holding: dict[Request, Site] = {}
        self.taking_no_room = 0
        """How many of all sites' waiters are not to count as work in hand."""

    @property
    def too_many(self) -> bool:
        return len(self._waiting) >= MOST

    # A request's way through `fetch` --------------------------------------------------------------

    def entered(self, request: Request) -> None:
        scope = self._scope_of(request)
        limit = self._limits.of(scope) if scope is not None else None
        if scope is None or limit is None or request in self._waiting or request in self._holding:
            return
        name = _name(scope)
        site = self._sites.get(name) or Site(name, limit.concurrency)
        self._sites[name] = self._waiting[request] = site
        self._change(site, waiters=1)

    def stands_in_line(self, request: Request) -> None:
        site = self._waiting.get(request)
        if site is not None and request not in self._in_line:
            self._in_line.add(request)
            self._change(site, in_line=1)

    def got_permit(self, request: Request) -> None:
        if site := self._stop_waiting(request, held=1):
            self._holding[request] = site

    def gave_back(self, request: Request) -> None:
        if site := self._holding.pop(request, None):
            self._change(site, held=-1)

    def left(self, request: Request) -> None:
        self.gave_back(request)
        self._stop_waiting(request)

    def _stop_waiting(self, request: Request, held: int = 0) -> Site | None:
        too_many = self.too_many
        site = self._waiting.pop(request, None)
        if site is None:
            return None
        in_line = request in self._in_line
        self._in_line.discard(request)
        self._change(site, waiters=-1, in_line=-in_line, held=held)
        if too_many:
            self._room_made()
        return site

    def _change(self, site: Site, waiters: int = 0, in_line: int = 0, held: int = 0) -> None:
        had_enough, took_no_room = site.has_enough, site.taking_no_room
        site.waiters += waiters
        site.in_line += in_line
        site.held += held
        room = site.taking_no_room - took_no_room
        self.taking_no_room += room
        if room > 0 or (had_enough and not site.has_enough):
            self._room_made()
        if not site.waiters and not site.held:
            del self._sites[site.name]

    # What Scrapy's DownloaderAwarePriorityQueue asks its downloader ------------------------------

    def get_slot_key(self, request: Request) -> str:
        return _name(self._scope_of(request) or "")

    def stats(self, possible_slots: Iterable[str]) -> list[tuple[int, str]]:
        """Of sites that want more, how many wait: the queue takes from the one with the fewest."""
        found = []
        for name in possible_slots:
            site = self._sites.get(name)
            if site is None:
                found.append((0, name))
            elif not site.has_enough:
                found.append((site.waiters, name))
        return found


def _name(scope: str) -> str:
    """The scope; or what stands for it in the queue, which makes file names of it under JOBDIR."""
    if len(scope) <= LONG and scope.isprintable():
        return scope
    return f"scope-{sha256(scope.encode('utf-8', 'surrogatepass')).hexdigest()}"
