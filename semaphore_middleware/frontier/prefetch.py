"""What a node has in hand: requests that it has taken and not finished."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Set
from typing import Any

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.squeues import FifoMemoryQueue
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.misc import build_from_crawler, load_object

from semaphore_middleware.frontier.client import Taken, Wish

AHEAD = 32  # requests taken ahead, of sites that are not full
OF_A_SITE = 8  # of these, taken at once
ENOUGH = OF_A_SITE // 2  # ahead, of a site: that many, and no more of it is taken


class Hand:
    """A few requests are taken ahead, so that the engine need not wait for the server. They wait in
    the queue that `SCHEDULER_PRIORITY_QUEUE` names. Where that passes over full sites, as the
    add-on's does, none of theirs are taken: they would have to wait here as well, and on the server
    they are for any node.

    How many they are does not depend on the crawl's length: `AHEAD` of sites that are not full,
    and of each full site what was taken before it was full, less than `OF_A_SITE + ENOUGH`.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._queue = self._new_queue()
        self.site_of: Callable[[Request], str] = getattr(self._queue, "site_of", _host_of)
        self._is_full: Callable[[str], bool] = getattr(self._queue, "is_full", _never)
        self._ahead: dict[Request, Taken] = {}
        self._ahead_of_site: Counter[str] = Counter()
        self._begun: dict[str, tuple[Request | None, Taken]] = {}

    def _new_queue(self) -> Any:
        queue_class = load_object(self._crawler.settings["SCHEDULER_PRIORITY_QUEUE"])
        return build_from_crawler(
            queue_class, self._crawler, downstream_queue_cls=FifoMemoryQueue, key=""
        )

    @property
    def ahead(self) -> int:
        """How many requests have been taken and not begun."""
        return len(self._ahead)

    # A request's way ----------------------------------------------------------------------------

    def take(self, request: Request, taken: Taken) -> None:
        self._queue.push(request)
        self._ahead[request] = taken
        self._ahead_of_site[taken.site] += 1

    def give_up(self, taken: Taken) -> None:
        """It is done, though it was never begun."""
        self._begun[taken.id] = None, taken

    def begin(self) -> Request | None:
        """The next request, unless there is none or all are of full sites."""
        request: Request | None = self._queue.pop()
        if request is None:
            return None
        taken = self._ahead.pop(request)
        self._begun[taken.id] = request, taken
        self._ahead_of_site[taken.site] -= 1
        if not self._ahead_of_site[taken.site]:
            del self._ahead_of_site[taken.site]
        return request

    def done(self, in_progress: Set[Request | None]) -> list[str]:
        """The ids of those that were begun and that the engine has done with."""
        return [id for id, (request, _) in self._begun.items() if request not in in_progress]

    def holds_only(self, done: list[str]) -> bool:
        return not self._ahead and len(done) == len(self._begun)

    def forget(self, done: list[str]) -> None:
        for id in done:
            del self._begun[id]

    def forget_what_is_ahead(self) -> list[Taken]:
        """It is others' now, or nobody's."""
        ahead = list(self._ahead.values())
        self._ahead.clear()
        self._ahead_of_site.clear()
        self._queue = self._new_queue()  # the old one keeps those of full sites to itself
        return ahead

    def forget_all(self) -> list[Taken]:
        begun = [taken for request, taken in self._begun.values() if request is not None]
        self._begun.clear()
        return begun + self.forget_what_is_ahead()

    # What to take next --------------------------------------------------------------------------

    @property
    def is_low(self) -> bool:
        """Whether it is time to take more."""
        return 2 * self._at_call() < AHEAD

    def wish(self) -> Wish:
        # A site is full only by requests that this node has begun.
        sites = {taken.site for _, taken in self._begun.values()}.union(self._ahead_of_site)
        passed_over = frozenset(site for site in sites if self.is_passed_over(site))
        return Wish(max(0, AHEAD - self._at_call()), OF_A_SITE, passed_over)

    def is_passed_over(self, site: str) -> bool:
        return self._ahead_of_site[site] >= ENOUGH or self._is_full(site)

    def _at_call(self) -> int:
        """Requests ahead that can be begun now."""
        counts = self._ahead_of_site.items()
        return self.ahead - sum(count for site, count in counts if self._is_full(site))


def _host_of(request: Request) -> str:
    return urlparse_cached(request).hostname or ""


def _never(_: str) -> bool:
    return False
