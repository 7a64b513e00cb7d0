"""One semaphore for all crawls of this process that use the same server in the same way.

So they are one node: a site's permits go from one crawl to the other without a call, they count
once where permits are shared fairly, and they have two connections together, not two each.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from semaphore_middleware.core.observer import Event, Observer
from semaphore_middleware.core.permit import Permit, Stage
from semaphore_middleware.core.semaphore import FairSemaphore
from semaphore_middleware.errors import ClosedError

if TYPE_CHECKING:
    from scrapy import Request

    from semaphore_middleware.core.admin import Admin
    from semaphore_middleware.core.permit_set import PermitSet
    from semaphore_middleware.scrapy.scopes import Scopes
    from semaphore_middleware.scrapy.settings import SemaphoreSettings


class SharedSemaphore(Observer):
    """A semaphore that is opened for the first of its crawls, and closed with the last.

    An event of a permit goes to the crawl whose request the permit is for, any other to all crawls.
    """

    def __init__(self, **options: Any) -> None:
        self.semaphore = FairSemaphore(**options, observers=[self])
        self.crawl_of: WeakKeyDictionary[object, CrawlSemaphore] = WeakKeyDictionary()
        """By request."""
        self._crawls: list[CrawlSemaphore] = []
        self._opening: asyncio.Future[None] | None = None
        self._is_closing = False

    def can_be_joined(self) -> bool:
        """False if its last crawl ends, or if its crawls were broken off with their event loop."""
        if self._opening is None:
            return True
        return not self._is_closing and self._opening.get_loop() is asyncio.get_running_loop()

    async def join(self, crawl: CrawlSemaphore) -> None:
        """A crawl begins: open the semaphore, if none has done so. Raises as `FairSemaphore.open`.

        Cancelled, it leaves others who wait for the server waiting.
        """
        if self._opening is None:
            self._opening = asyncio.ensure_future(self.semaphore.open())
        self._crawls.append(crawl)
        try:
            await asyncio.shield(self._opening)
        except BaseException:
            await self.leave(crawl)
            raise

    async def leave(self, crawl: CrawlSemaphore) -> None:
        """A crawl ends, and has given its permits back. The last one hears events to the end."""
        if self._crawls == [crawl]:
            self._is_closing = True
            assert self._opening is not None, "it was opened for the first crawl"
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
            await self.semaphore.close()
        if crawl in self._crawls:
            self._crawls.remove(crawl)

    def on_event(self, event: Event) -> None:
        permit: Permit | None = getattr(event, "permit", None)
        crawl = self.crawl_of.get(permit.owner) if permit is not None else None
        for one in (crawl,) if crawl is not None else tuple(self._crawls):
            one.emit(event)


_shared: WeakValueDictionary[tuple[Any, ...], SharedSemaphore] = WeakValueDictionary()
"""By thread, as a semaphore belongs to one event loop, and by options."""


class CrawlSemaphore:
    """One crawl's part in a shared semaphore: its requests' permits, and its observers.

    Its methods are those of `FairSemaphore`, for this crawl alone.
    """

    def __init__(
        self, settings: SemaphoreSettings, url: str | None, observers: Sequence[Observer]
    ) -> None:
        self._options = {
            "url": url,
            "node": settings.node,
            "lease": settings.lease,
            "turn": settings.turn,
            "recovery_wait": settings.recovery_wait,
            "prefix": settings.prefix,
            "backoff": settings.backoff,
        }
        self._key = (threading.get_ident(), *self._options.values())
        self._url_from = settings.url_from
        self._shared = _shared.get(self._key) or self._share_new()
        self._observers = observers
        self._open_observers: list[Observer] = []
        self._is_draining = False

    def _share_new(self) -> SharedSemaphore:
        shared = _shared[self._key] = SharedSemaphore(**self._options, url_from=self._url_from)
        return shared

    @property
    def node(self) -> str:
        """The name of this process's node."""
        return self._shared.semaphore.node

    @property
    def admin(self) -> Admin:
        """What operators see and set."""
        return self._shared.semaphore.admin

    async def open(self) -> None:
        """Wait for the server. Raises as `FairSemaphore.open`."""
        self._shared = _shared.get(self._key) or self._share_new()
        if not self._shared.can_be_joined():
            self._shared = self._share_new()
        try:
            for observer in self._observers:
                self._open_observers.append(observer)
                await observer.open(self)
            await self._shared.join(self)
        except BaseException:
            await self._close_observers()
            raise

    async def close(self) -> None:
        """Leave the semaphore, which goes on for other crawls. Raises nothing."""
        try:
            await self._shared.leave(self)
        finally:
            await self._close_observers()

    async def _close_observers(self) -> None:
        while self._open_observers:
            await self._open_observers.pop().close()

    async def acquire_all(
        self, scopes: Scopes, timeout: float | None, owner: Request, priority: float
    ) -> PermitSet:
        """Wait for a permit of each scope. Raises as `FairSemaphore.acquire_all`."""
        if self._is_draining:
            raise ClosedError("the spider is closing")
        self._shared.crawl_of[owner] = self
        return await self._shared.semaphore.acquire_all(
            scopes, timeout=timeout, owner=owner, priority=priority
        )

    def drain(self) -> None:
        """Refuse this crawl's requests that wait, and those to come, with `ClosedError`."""
        self._is_draining = True
        self._refuse_waiting()
        # A request that was just granted one permit asks for its next one before that is called.
        asyncio.get_running_loop().call_soon(self._refuse_waiting)

    def _refuse_waiting(self) -> None:
        for permit in self.permits():
            if permit.stage is Stage.WAITING:
                permit.refuse(ClosedError("the spider is closing"))

    def permits(self) -> Collection[Permit]:
        """The permits that this crawl's requests hold, and those that they wait for."""
        permits, crawl_of = self._shared.semaphore.permits(), self._shared.crawl_of
        return [permit for permit in permits if crawl_of.get(permit.owner) is self]

    def limit_of(self, scope: str) -> int | None:
        """How many may hold a permit of `scope`, as this process last heard."""
        return self._shared.semaphore.limit_of(scope)

    def emit(self, event: Event) -> None:
        """Pass an event to this crawl's observers, as long as they are open."""
        for observer in self._open_observers:
            observer.on_event(event)
