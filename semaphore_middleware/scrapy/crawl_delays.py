"""The delays in robots.txt files, kept by all nodes together."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy.utils.datatypes import LocalCache

from semaphore_middleware.model.events import CountedEvent
from semaphore_middleware.model.limits import Limit, strictest
from semaphore_middleware.scrapy.scopes import Scopes, origin_of
from semaphore_middleware.scrapy.versions import crawl_delay

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.robotstxt import RobotParser
    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)

ORIGINS_MAX = 10_000
"""The number of origins whose delay, and whose rules of some 10 kB, are kept in memory."""


@dataclass(frozen=True, slots=True)
class CrawlDelayFound(CountedEvent):
    """The robots.txt of a host asks for a delay between requests."""

    counter = "crawl_delays"


class CrawlDelays:
    """The delays in robots.txt files (`Crawl-delay`); at most `longest_s`.

    The server uses the longest delay of all nodes, so it is enough if one node has read it.
    """

    def __init__(self, settings: BaseSettings, longest_s: float) -> None:
        self._user_agent = settings["ROBOTSTXT_USER_AGENT"]
        self._default_user_agent = settings["USER_AGENT"]
        self._longest_s = longest_s
        self._delays_s: LocalCache[str, float] = LocalCache(ORIGINS_MAX)
        """By origin (scheme, host and port), in the order of their last use."""

    def record(self, robotparser: RobotParser, request: Request) -> bool:
        """Record the delay in the robots.txt of a request's host. True if there is a delay, and it
        is new or has changed.
        """
        agent = (
            self._user_agent or request.headers.get(b"User-Agent") or self._default_user_agent or ""
        )
        delay = _delay_in(robotparser, agent)
        origin = origin_of(request)
        known = self._delays_s.pop(origin, 0.0)
        if not delay:
            return False
        self._delays_s[origin] = min(delay, self._longest_s)
        if known == self._delays_s[origin]:  # the file was read again
            return False
        if delay > self._longest_s:
            logger.warning(
                "The robots.txt of %s asks for a delay of %g s; %g s is used, the maximum "
                "in SEMAPHORE_MAX_CRAWL_DELAY.",
                origin,
                delay,
                self._longest_s,
            )
        else:
            logger.info("The robots.txt of %s asks for a delay of %g s.", origin, delay)
        return True

    def apply(self, scopes: Scopes, request: Request) -> Scopes:
        """The scopes of a request. Its site's limit gets the delay of the robots.txt, if that is
        longer than the shortest time between two starts under the limit.
        """
        origin = origin_of(request) if self._delays_s else ""
        delay = self._delays_s.get(origin)
        if not delay:
            return scopes
        self._delays_s.move_to_end(origin)
        index = scopes.site
        if index is None or delay <= scopes.limits[index][1].least_interval:
            return scopes
        name, limit = scopes.limits[index]
        delayed = (name, strictest(limit, Limit(limit.concurrency, delay)))
        limits = (*scopes.limits[:index], delayed, *scopes.limits[index + 1 :])
        return Scopes(limits, scopes.scope_names)


def _delay_in(robotparser: RobotParser, agent: str | bytes) -> float:
    """The Crawl-delay in a robots.txt, in seconds; 0 for none."""
    try:
        delay = float(crawl_delay(robotparser, agent) or 0)
    except OverflowError:  # an integer too large for a float
        return math.inf
    return 0.0 if math.isnan(delay) else max(0.0, delay)
