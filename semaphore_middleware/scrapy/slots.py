"""Scrapy's slots as the add-on uses them: they hold up no request. What AutoThrottle, or any other
code, sets in a slot while the crawl runs holds for all nodes together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scrapy.core.downloader import Slot

from semaphore_middleware.model.limits import LIMITLESS, Limit
from semaphore_middleware.model.validation import LONGEST_S
from semaphore_middleware.scrapy.scopes import chosen_slot

if TYPE_CHECKING:
    from scrapy import Request

    from semaphore_middleware.scrapy.scopes import Scopes

SCOPES_MAX = 1000
"""The most scopes that a slot names a limit for."""


class Requests(set["Request"]):
    """The requests in a slot, also those that wait for permits."""

    def remove(self, request: Request) -> None:
        """Remove a request, if it is there. A cancelled one has left when Scrapy removes it."""
        self.discard(request)


class OpenSlot(Slot):
    """A slot that holds up no request, as one that waits there would hold its permit.

    It begins with the delay and the concurrency of Scrapy's settings, which hold by the permits.
    A longer delay, or a lower concurrency, is this node's own limit of the sites of its requests.
    As in Scrapy's slots, a delay that becomes shorter counts from the next start on.
    """

    def __init__(
        self, slot: Slot, delay: float, name_limit: Callable[[str, object, Limit | None], object]
    ) -> None:
        """`slot` is Scrapy's, `delay` that of the settings: if Scrapy's is longer, AutoThrottle has
        set it.
        """
        self._of_settings = slot.concurrency, delay
        self._counted_delay = slot.delay
        self._name_limit = name_limit
        self._jitters: dict[str, float] = {}  # by scope: of its requests' limit there
        super().__init__(slot.concurrency, slot.delay, 0)
        self.active = Requests()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute: anybody may set the delay and the concurrency, Scrapy sets `lastseen`
        when a request starts.
        """
        super().__setattr__(name, value)
        if name == "delay":
            self._count_delay(max(value, self._counted_delay))
        elif name == "lastseen":
            self._count_delay(self.delay)
        elif name == "concurrency":
            self._name_all()

    def _count_delay(self, delay: float) -> None:
        if delay != self._counted_delay:
            self._counted_delay = delay
            self._name_all()

    def _name_all(self) -> None:
        for scope in self._jitters:
            self._name(scope)

    def enter(self, request: Request, scopes: Scopes) -> None:
        """Note a request that asks for permits, with its scopes, until it is no longer active."""
        self.active.add(request)
        chosen = chosen_slot(request)
        names = [name for name, _ in scopes.limits]
        index = names.index(chosen) if chosen in names else scopes.site
        if index is None:
            return
        scope, limit = scopes.limits[index]
        if scope not in self._jitters:
            if len(self._jitters) == SCOPES_MAX:
                self._forget(next(iter(self._jitters)))
            self._jitters[scope] = limit.jitter
            self._name(scope)

    def _name(self, scope: str) -> None:
        most, least_delay = self._of_settings
        delay = min(self._counted_delay, LONGEST_S) if self._counted_delay > least_delay else 0.0
        concurrency = max(1, int(self.concurrency)) if self.concurrency < most else LIMITLESS
        is_set = delay > 0 or concurrency < LIMITLESS
        limit = Limit(concurrency, delay, self._jitters[scope]) if is_set else None
        self._name_limit(scope, self, limit)

    def _forget(self, scope: str) -> None:
        del self._jitters[scope]
        self._name_limit(scope, self, None)

    # For Scrapy's downloader ---------------------------------------------------------------------

    def free_transfer_slots(self) -> int:
        """How many requests may begin now: all that are here, as each has its permit."""
        return len(self.queue)

    def download_delay(self) -> float:
        return 0.0

    def close(self) -> None:
        """End its limits, when it has been unused for a while, or at the end of the crawl."""
        for scope in list(self._jitters):
            self._forget(scope)
        super().close()
