"""robots.txt: judged for every request, and its delays kept by all nodes together."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from scrapy.downloadermiddlewares.robotstxt import RobotsTxtMiddleware as ScrapyRobotsTxtMiddleware
from scrapy.utils.httpobj import urlparse_cached

from semaphore_middleware.core.observer import Event
from semaphore_middleware.model.limits import Limit

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.robotstxt import RobotParser
    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)


class RobotsTxtMiddleware(ScrapyRobotsTxtMiddleware):
    """Scrapy's own, minus a hole: of the requests that wait for a robots.txt it judges only two.

    Its waiters share one Deferred, whose result is None for all but the first of them (Scrapy
    2.19, `Deferred.asFuture`), and None means that all is allowed.
    """

    async def robot_parser(self, request: Request) -> RobotParser | None:
        await super().robot_parser(request)
        return await super().robot_parser(request)  # now from memory, the same for everyone


@dataclass(frozen=True, slots=True)
class CrawlDelayFound(Event):
    """The robots.txt of a host asks for a delay between requests."""

    counter = "crawl_delays"


class CrawlDelays:
    """What robots.txt asks for between two requests: `Crawl-delay`, or what `Request-rate` makes.

    One node that knows of it is enough: the longest delay in use holds for all.
    """

    def __init__(self, settings: BaseSettings, most: float) -> None:
        self._user_agent = settings["ROBOTSTXT_USER_AGENT"]
        self._default_user_agent = settings["USER_AGENT"]
        self._most = most
        self._delays: dict[str, float] = {}  # seconds, by host and port

    def heard(self, robotparser: RobotParser, request: Request) -> bool:
        """Scrapy has read the robots.txt of this request's host. Whether it asks for a delay."""
        agent = (
            self._user_agent or request.headers.get(b"User-Agent") or self._default_user_agent or ""
        )
        delay = _delay_in(robotparser, agent)
        if not delay:
            return False
        host = urlparse_cached(request).netloc
        self._delays[host] = min(delay, self._most)
        if delay > self._most:
            logger.warning(
                "The robots.txt of %s asks for %g s between two requests. It gets %g s, which is "
                "SEMAPHORE_MAX_CRAWL_DELAY.",
                host,
                delay,
                self._most,
            )
        else:
            logger.info("The robots.txt of %s asks for %g s between two requests.", host, delay)
        return True

    def applied_to(self, limit: Limit, request: Request) -> Limit:
        """The limit, with the delay of the request's host where that is longer than what jitter may
        leave of its own.
        """
        if self._delays:
            delay = self._delays.get(urlparse_cached(request).netloc)
            if delay and delay > limit.delay * (1 - limit.jitter):
                return _slower(limit, delay)
        return limit


@lru_cache(maxsize=1024)
def _slower(limit: Limit, delay: float) -> Limit:
    """With so little jitter that it is never less than what the site asks for."""
    longest = max(limit.delay, delay)
    return replace(limit, delay=longest, jitter=1 - delay / longest)


def _delay_in(robotparser: RobotParser, agent: str | bytes) -> float:
    """Seconds, 0 if it asks for none. Of the hours that a Request-rate may name nothing is made."""
    asked = [_number(robotparser.crawl_delay(agent))]
    # Scrapy 2.19 has no word for Request-rate; of its parsers protego's and Python's have one.
    rate_of: Any = getattr(getattr(robotparser, "rp", None), "request_rate", None)
    name = agent.decode("utf-8", "replace") if isinstance(agent, bytes) else agent
    if rate_of is not None and (rate := rate_of(name)):
        asked.append(_number(rate.seconds) / max(1.0, _number(rate.requests)))
    return max(asked)


def _number(value: Any) -> float:
    """Above 0, or 0: negative ones and what is no number ask for nothing."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return 0.0
    return 0.0 if math.isnan(number) else max(0.0, number)
