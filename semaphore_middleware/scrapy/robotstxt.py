"""Scrapy's robots.txt middleware, to the letter of RFC 9309, with files that all nodes share."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from scrapy import signals
from scrapy.downloadermiddlewares.robotstxt import RobotsTxtMiddleware as ScrapyRobotsTxtMiddleware
from scrapy.exceptions import IgnoreRequest
from scrapy.utils.misc import build_from_crawler, load_object

from semaphore_middleware.core.observer import Event
from semaphore_middleware.core.robotstxt import Fetched, RobotsTxt
from semaphore_middleware.errors import ClosedError
from semaphore_middleware.scrapy.robotstxt_download import RobotsTxtDownloader, origin_of, text_of
from semaphore_middleware.scrapy.throttler import NotAllowedError, SpiderClosingError, throttler_of

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.robotstxt import RobotParser

logger = logging.getLogger(__name__)

MAX_AGE_S = 24 * 60 * 60.0
"""After that the file is asked for again: RFC 9309 (2.4)."""
RULES_MAX = 10_000
"""Sites whose rules are kept in memory: some 10 kB each."""
FORBID_ALL = b"User-agent: *\nDisallow: /\n"


@dataclass(frozen=True, slots=True)
class RobotsTxtReused(Event):
    """This node took a site's robots.txt from the server: another node had fetched it."""

    counter = "robotstxt_reused"


@dataclass(frozen=True, slots=True)
class Rules:
    """What a site's robots.txt means to this crawl."""

    parser: RobotParser | None
    """None: all is allowed."""
    valid_until: float
    """On the loop's clock."""
    failures: int = 0
    """How often in a row it could not be read."""


@dataclass(frozen=True, slots=True, eq=False)
class Loading:
    """A site's robots.txt is being read."""

    leader: Request
    """The request in whose `fetch` that is done; others follow."""
    rules: asyncio.Future[Rules | None]
    """None: the leader was cancelled, and another request is to lead."""


class RobotsTxtMiddleware(ScrapyRobotsTxtMiddleware):
    """Scrapy's middleware, with these differences.

    - A robots.txt that cannot be read forbids its site as long as that lasts (RFC 9309, 2.3.1.4).
      Scrapy 2.19 lets all requests through then.
    - What fails on our side says nothing of the site: the requests that wait for the file fail, or
      go back to the scheduler.
    - It is asked for again after a day, and fetched by one of the nodes for all.
    - All requests that wait for a file are checked against it. Scrapy 2.19 checks two of them.
    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._throttler = throttler = throttler_of(crawler)
        self._admissions = throttler.admissions
        self._backoff = throttler.settings.backoff
        self._allows_unreachable = throttler.settings.robotstxt_unreachable == "allow"
        self._shared = throttler.robotstxt
        self._downloader = RobotsTxtDownloader(crawler, self.DOWNLOAD_PRIORITY)
        self._parser_class: type[RobotParser] = load_object(crawler.settings["ROBOTSTXT_PARSER"])
        self._rules: OrderedDict[str, Rules] = OrderedDict()
        """By origin; those that were used last stand last."""
        self._loading: dict[str, Loading] = {}  # by origin

    async def process_request(  # type: ignore[override]  # Scrapy's returns nothing
        self, request: Request
    ) -> Request | None:
        """Wait for the robots.txt of the request's site. Returns a request that goes back to the
        scheduler, if the spider is closing.

        Raises `IgnoreRequest` if the file forbids the request, and what `robot_parser` raises.
        """
        self._downloader.prepare(request)
        try:
            await super().process_request(request)
        except ClosedError:
            return self._throttler.return_to_scheduler(request)
        return None

    async def robot_parser(self, request: Request) -> RobotParser | None:
        """The parser for a request's site, once its robots.txt is there.

        Raises our own errors, such as `AcquireTimeoutError`, where these kept the file from being
        fetched, and `ClosedError`, if the spider is closing.
        """
        origin = origin_of(request)
        rules = self._rules.get(origin)
        if rules is not None and self._now() < rules.valid_until:
            self._rules.move_to_end(origin)
            return rules.parser
        rules = None
        while rules is None:
            loading = self._loading.get(origin)
            if loading is None:
                rules = await self._lead(origin, request)
            else:
                rules = await self._follow(loading, request)
        return rules.parser

    async def _lead(self, origin: str, request: Request) -> Rules:
        """Read the file, for all requests that wait for it."""
        loaded: asyncio.Future[Rules | None] = asyncio.get_running_loop().create_future()
        self._loading[origin] = Loading(request, loaded)
        try:
            rules = self._rules[origin] = await self._load(origin, request)
            self._rules.move_to_end(origin)
            if len(self._rules) > RULES_MAX:
                self._rules.popitem(last=False)
            loaded.set_result(rules)
            return rules
        except Exception as error:
            loaded.set_exception(error)
            loaded.exception()  # there may be nobody who waits
            raise
        finally:
            del self._loading[origin]
            if not loaded.done():
                loaded.set_result(None)

    async def _follow(self, loading: Loading, request: Request) -> Rules | None:
        with self._admissions.needing(request, self._admissions.of(loading.leader)):
            return await asyncio.shield(loading.rules)

    async def _load(self, origin: str, request: Request) -> Rules:
        known = self._rules.get(origin)
        try:
            if self._shared is None:
                failures = known.failures if known else 0
                fetched = await self._fetch(origin, RobotsTxt(failures=failures))
            else:
                await self._throttler.opened()
                while_waiting = partial(self._admissions.needing, request)
                fetch = partial(self._fetch, origin)
                fetched = await self._shared.get(origin, fetch, while_waiting)
        except SpiderClosingError as error:
            raise ClosedError(str(error)) from None
        except NotAllowedError:  # our own: nobody asked, and not because a middleware chose so
            raise
        except IgnoreRequest:  # a middleware of the user's let nobody ask: as in Scrapy
            return Rules(None, self._now() + MAX_AGE_S)
        if fetched.by_another:
            self._throttler.emit(RobotsTxtReused())
        return await self._apply(origin, fetched, request, known)

    async def _fetch(self, origin: str, before: RobotsTxt | None) -> Fetched:
        """Ask the site."""
        begun = self._now()
        answer = await self._downloader.download(origin, before.failures if before else 0)
        robotstxt = answer.robotstxt
        if robotstxt.problem:
            doublings = min(robotstxt.failures - 1, 60)
            valid = min(self._backoff.start * 2**doublings, self._backoff.most)
        else:
            valid = MAX_AGE_S - (self._now() - begun)
        return Fetched(robotstxt, valid, for_others=not answer.from_cache)

    async def _apply(
        self, origin: str, fetched: Fetched, request: Request, known: Rules | None
    ) -> Rules:
        """What a robots.txt means here; says so in the log where it is undefined."""
        robotstxt = fetched.robotstxt
        valid_until = self._now() + fetched.valid
        parser, problem = self._parse(robotstxt)
        if parser is not None:
            await self.crawler.signals.send_catch_log_async(
                signals.robots_parsed, robotparser=parser, request=request
            )
            if known is not None and known.failures:
                logger.info("The robots.txt of %s can be read again.", origin)
            return Rules(parser, valid_until)
        if known is None or not known.failures:
            logger.warning(
                "The robots.txt of %s cannot be read (%s). Until it can, its requests are %s "
                "(SEMAPHORE_ROBOTSTXT_UNREACHABLE). It is asked for again after %g s, then after "
                "longer times, up to %g s.",
                origin,
                problem,
                "allowed" if self._allows_unreachable else "forbidden",
                fetched.valid,
                self._backoff.most,
            )
        failures = max(1, robotstxt.failures)
        if self._allows_unreachable:
            return Rules(None, valid_until, failures)
        parser = build_from_crawler(self._parser_class, self.crawler, FORBID_ALL)
        return Rules(parser, valid_until, failures)

    def _parse(self, robotstxt: RobotsTxt) -> tuple[RobotParser | None, str]:
        """The file's parser; or None, and why there is none."""
        if robotstxt.problem:
            return None, robotstxt.problem
        try:
            return build_from_crawler(self._parser_class, self.crawler, robotstxt.text), ""
        except Exception as error:  # whatever a site has written must not let all through
            return None, f"its parser failed: {text_of(error)}"

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
