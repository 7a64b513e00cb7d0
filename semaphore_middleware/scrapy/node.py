"""This process's part in the fleet: one semaphore for all crawls with the same server, job and
options.

So these crawls are one node: a site's permits go from one crawl to the other without a call, fair
sharing counts the crawls once, and they have two connections together, not two each.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from semaphore_middleware.core.observer import Event, Observer
from semaphore_middleware.core.semaphore import FairSemaphore
from semaphore_middleware.redis.environment import default_node

if TYPE_CHECKING:
    from semaphore_middleware.scrapy.crawl import Crawl
    from semaphore_middleware.scrapy.settings import SemaphoreSettings


class Node(Observer):
    """A semaphore of several crawls, opened for the first and closed with the last.

    An event of a permit goes to the crawl whose request the permit is for, any other to all crawls.
    """

    def __init__(self, **options: Any) -> None:
        self.semaphore = FairSemaphore(**options, observers=[self])
        self._crawls: list[Crawl] = []
        self._opening: asyncio.Future[None] | None = None
        self._is_closing = False

    @property
    def can_be_joined(self) -> bool:
        """False once its last crawl ends, or if its crawls were broken off with their loop."""
        if self._opening is None:
            return True
        return not self._is_closing and self._opening.get_loop() is asyncio.get_running_loop()

    async def join(self, crawl: Crawl) -> None:
        """Add a crawl; the first one opens the semaphore. Raises as `FairSemaphore.open`.

        A cancellation does not affect other crawls waiting for the server.
        """
        if self._opening is None:
            self._opening = asyncio.ensure_future(self.semaphore.open())
        self._crawls.append(crawl)
        try:
            await asyncio.shield(self._opening)
        except BaseException:
            await self.leave(crawl)
            raise

    async def leave(self, crawl: Crawl) -> None:
        """Remove a crawl without permits. The last crawl closes the semaphore and hears the end."""
        if self._crawls == [crawl]:
            self._is_closing = True
            assert self._opening is not None, "it was opened for the first crawl"
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
            await self.semaphore.close()
        if crawl in self._crawls:
            self._crawls.remove(crawl)

    def on_event(self, event: Event) -> None:
        permit = getattr(event, "permit", None)
        if permit is not None:
            permit.owner.crawl.emit(event)
        else:
            for crawl in tuple(self._crawls):
                crawl.emit(event)


_nodes: WeakValueDictionary[tuple[Any, ...], Node] = WeakValueDictionary()
"""By options and thread: a semaphore belongs to one event loop."""


def node_for(settings: SemaphoreSettings, url: str, spider: str, job: str) -> Node:
    """The node of crawls with these settings: the existing one, or a new one. Where no name is set,
    it has those of the spider and the job that come first.
    """
    options = {"url": url, **settings.semaphore_options(spider)}
    key = (threading.get_ident(), settings.node, *options.values())
    node = _nodes.get(key)
    if node is None or not node.can_be_joined:
        node = _nodes[key] = Node(
            **options, node=settings.node or default_node(spider, job), url_from=settings.url_from
        )
    return node
