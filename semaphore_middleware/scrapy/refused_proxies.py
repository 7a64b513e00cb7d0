"""Whether a site refuses one proxy or all requests, by the refusals of all nodes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from scrapy.utils.datatypes import LocalCache

from semaphore_middleware.link.text import decoded, encoded

if TYPE_CHECKING:
    from semaphore_middleware.core.cache import Cache
    from semaphore_middleware.core.permit import Permit

REMEMBERED_S = 300.0
SITES_MAX = 1000


class RefusedProxies:
    """The last refusal of each site through a proxy, shared by the nodes in the server's cache.

    A refusal concerns only its proxy until the site refuses another one, too, without having
    answered any request well that began in between.
    """

    def __init__(self, cache: Callable[[], Cache]) -> None:
        self._cache = cache
        self._last: LocalCache[str, tuple[str, float]] = LocalCache(SITES_MAX)
        """By site: the scope of the site through the proxy, and when, on the loop's clock."""

    async def add(self, site: Permit, via: Permit) -> bool:
        """Record a site's refusal through a proxy. True if it concerns the whole site."""
        now = asyncio.get_running_loop().time()
        # Before any wait, so that refusals at the same time see each other.
        other, refused_at = self._last.get(site.scope, ("", 0.0))
        self._last[site.scope] = (via.scope, now)
        if other in ("", via.scope):
            value, left = await self._cache().get(_name_of(site)) or (b"", 0.0)
            other, refused_at = decoded(value), now - (REMEMBERED_S - left)
        self._cache().put(_name_of(site), encoded(via.scope), REMEMBERED_S)
        is_recent = refused_at > max(site.site_answered_at, now - REMEMBERED_S)
        return is_recent and other not in ("", via.scope)

    def note_answer(self, site: Permit) -> None:
        """Record a good answer: earlier refusals by the site concerned single proxies."""
        _, refused_at = self._last.get(site.scope, ("", math.inf))
        if site.granted_at > refused_at:
            del self._last[site.scope]
            self._cache().put(_name_of(site), b"", REMEMBERED_S)


def _name_of(site: Permit) -> str:
    return f"refused:{site.scope}"
