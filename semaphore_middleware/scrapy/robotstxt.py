"""Scrapy's robots.txt middleware, to the letter of RFC 9309, with files shared by all nodes."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from scrapy import Request, signals
from scrapy.downloadermiddlewares.robotstxt import RobotsTxtMiddleware as ScrapyRobotsTxtMiddleware
from scrapy.exceptions import IgnoreRequest, StopDownload
from scrapy.http.request import NO_CALLBACK
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.response import response_status_message
from w3lib.url import safe_url_string

from semaphore_middleware.core.observer import Event
from semaphore_middleware.core.robotstxt import MAX_BYTES, Fetched, RobotsTxt
from semaphore_middleware.errors import ClosedError, SemaphoreError
from semaphore_middleware.scrapy.crawl import crawl_of
from semaphore_middleware.scrapy.downloads import NotAllowedError, SpiderClosingError
from semaphore_middleware.scrapy.engine import RobotsTxtUnreadableError
from semaphore_middleware.scrapy.scopes import origin_of

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from scrapy.robotstxt import RobotParser

logger = logging.getLogger(__name__)

MAX_AGE_S = 24 * 60 * 60.0
"""At this age a file is asked for again: RFC 9309 (2.4)."""
RULES_MAX = 10_000
"""Sites whose rules are kept in memory: some 10 kB each."""
FORBID_ALL = b"User-agent: *\nDisallow: /\n"


@dataclass(frozen=True, slots=True)
class RobotsTxtReused(Event):
    """This node took a site's robots.txt from the server: another node had fetched it."""

    counter = "robotstxt_reused"


@dataclass(frozen=True, slots=True)
class Rules:
    """A site's robots.txt, as this crawl applies it."""

    parser: RobotParser | None
    """None: all is allowed."""
    valid_until: float
    """On the loop's clock."""
    failures: int = 0
    """Failed readings in a row."""


@dataclass(frozen=True, slots=True, eq=False)
class Loading:
    """A reading of a site's robots.txt, while it lasts."""

    leader: Request
    """The request whose `fetch` reads the file; other requests follow."""
    rules: asyncio.Future[Rules | None]
    """None: the leader was cancelled, and another request is to lead."""


class RobotsTxtMiddleware(ScrapyRobotsTxtMiddleware):
    """Scrapy's middleware, with these differences.

    - While a site's robots.txt cannot be read, it forbids the whole site (RFC 9309, 2.3.1.4).
      Scrapy 2.19 lets all requests through then.
    - A failure on our side says nothing of the site: the requests waiting for the file fail, or
      go back to the scheduler.
    - A file is asked for again after a day, and one node fetches it for all.
    - All requests waiting for a file are checked against it. Scrapy 2.19 checks two of them.
    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._crawl = crawl = crawl_of(crawler)
        self._admissions = crawl.downloads.admissions
        self._backoff = crawl.settings.backoff
        self._allows_unreachable = crawl.settings.robotstxt_unreachable == "allow"
        self._shared = crawl.robotstxt
        self._downloader = RobotsTxtDownloader(crawler, self.DOWNLOAD_PRIORITY)
        self._parser_class: type[RobotParser] = load_object(crawler.settings["ROBOTSTXT_PARSER"])
        self._parser_of_unreadable = build_from_crawler(self._parser_class, crawler, FORBID_ALL)
        self._rules: OrderedDict[str, Rules] = OrderedDict()
        """By origin, in the order of their last use."""
        self._loading: dict[str, Loading] = {}  # by origin

    async def process_request(  # type: ignore[override]  # Scrapy's returns nothing
        self, request: Request
    ) -> Request | None:
        """Wait for the robots.txt of the request's site. Returns a copy of the request for the
        scheduler if the spider is closing.

        Raises `IgnoreRequest` if the file forbids the request, `RobotsTxtUnreadableError` if it
        cannot be read, and our own errors.
        """
        self._downloader.prepare(request)
        try:
            await super().process_request(request)
        except ClosedError:
            return self._crawl.downloads.return_to_scheduler(request)
        return None

    def process_request_2(self, rp: RobotParser | None, request: Request) -> None:
        """Raise `IgnoreRequest` if these rules forbid the request."""
        try:
            super().process_request_2(rp, request)
        except IgnoreRequest as error:
            if rp is self._parser_of_unreadable:
                raise RobotsTxtUnreadableError(f"{error}, which cannot be read") from None
            raise

    async def robot_parser(self, request: Request) -> RobotParser | None:
        """The parser for a request's site, once its robots.txt is there.

        Raises our own errors, such as `AcquireTimeoutError`, if they kept the file from being
        fetched, and `ClosedError` if the spider is closing.
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
        """Read the file, for all waiting requests."""
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
            loaded.exception()  # retrieved, even if nobody waits
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
                await self._crawl.opened()
                while_waiting = partial(self._admissions.needing, request)
                fetch = partial(self._fetch, origin)
                fetched = await self._shared.get(origin, fetch, while_waiting)
        except SpiderClosingError as error:
            raise ClosedError(str(error)) from None
        except NotAllowedError:  # our own error, not a middleware's decision
            raise
        except IgnoreRequest:  # a user's middleware let nobody ask: as in Scrapy
            return Rules(None, self._now() + MAX_AGE_S)
        if fetched.by_another:
            self._crawl.emit(RobotsTxtReused())
        return await self._apply(origin, fetched, request, known)

    async def _fetch(self, origin: str, before: RobotsTxt | None) -> Fetched:
        """Ask the site for the file."""
        begun = self._now()
        failures = before.failures if before else 0
        robotstxt, is_cached = await self._downloader.download(origin, failures)
        if robotstxt.problem:
            doublings = min(robotstxt.failures - 1, 60)
            valid = min(self._backoff.start * 2**doublings, self._backoff.most)
        else:
            valid = MAX_AGE_S - (self._now() - begun)
        return Fetched(robotstxt, valid, for_others=not is_cached)

    async def _apply(
        self, origin: str, fetched: Fetched, request: Request, known: Rules | None
    ) -> Rules:
        """The rules of a robots.txt. Logs a first failure to read it, and the end of failures."""
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
        parser = None if self._allows_unreachable else self._parser_of_unreadable
        return Rules(parser, valid_until, failures)

    def _parse(self, robotstxt: RobotsTxt) -> tuple[RobotParser | None, str]:
        """The file's parser, or None and the reason."""
        if robotstxt.problem:
            return None, robotstxt.problem
        try:
            return build_from_crawler(self._parser_class, self.crawler, robotstxt.text), ""
        except Exception as error:  # a broken file must not let all requests through
            return None, f"its parser failed: {text_of(error)}"

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


MAX_REDIRECTS = 5
"""RFC 9309 (2.3.1.2): at least five redirects are followed, also to other hosts."""
MAX_DECOMPRESSED_BYTES = 8 * 1024 * 1024
"""Of a compressed file; at most `MAX_BYTES` of its compressed form are read."""
MAX_PROBLEM_CHARS = 200
READING_KEY = "semaphore_robotstxt"
"""In the meta of requests for robots.txt: a `Reading`. The requests never leave this process."""


@dataclass(slots=True, eq=False)
class Reading:
    """The bytes of a response read so far."""

    size: int = 0


class RobotsTxtDownloader:
    """Downloads robots.txt files for a crawler, and counts them in Scrapy's stats."""

    def __init__(self, crawler: Crawler, priority: int) -> None:
        self._crawler = crawler
        self._priority = priority
        self._under_way = 0

    async def download(self, origin: str, failures: int) -> tuple[RobotsTxt, bool]:
        """Ask the site for its robots.txt, after `failures` failed readings in a row; True if the
        HTTP cache had the response, of any age. Runs in the task of a waiting request's `fetch`.

        Raises our own errors, such as `AcquireTimeoutError`, and `IgnoreRequest` if a middleware
        let nobody ask: neither says anything of the site.
        """
        readings: list[Reading] = []
        count = self._crawler.stats.inc_value
        try:
            response = await self._follow(f"{origin}/robots.txt", readings)
        except SemaphoreError:
            raise
        except Exception as error:
            if isinstance(error, IgnoreRequest):
                if not any(reading.size for reading in readings):
                    raise
            else:
                count(f"robotstxt/exception_count/{type(error)}")  # as Scrapy writes it
            count("robotstxt/request_count")
            return RobotsTxt(problem=text_of(error), failures=failures + 1), False
        count("robotstxt/request_count")
        count("robotstxt/response_count")
        count(f"robotstxt/response_status_count/{response.status}")
        return _robotstxt_in(response, failures), "cached" in response.flags

    async def _follow(self, url: str, readings: list[Reading]) -> Response:
        """The response after at most `MAX_REDIRECTS` redirects."""
        response = await self._get(url, readings)
        for _ in range(MAX_REDIRECTS):
            target = _target_of(response)
            if target is None:
                break
            response = await self._get(target, readings)
        return response

    async def _get(self, url: str, readings: list[Reading]) -> Response:
        readings.append(Reading())
        meta = {
            "dont_obey_robotstxt": True,
            "dont_redirect": True,  # `_follow` follows redirects, even if the crawl does not
            "allow_offsite": True,  # the target of a redirect is not crawled
            READING_KEY: readings[-1],
        }
        request = Request(url, priority=self._priority, meta=meta, callback=NO_CALLBACK)
        connect, disconnect = self._crawler.signals.connect, self._crawler.signals.disconnect
        if not self._under_way:  # a handler slows down each part of each response
            connect(self._limit_size, signals.bytes_received)
        self._under_way += 1
        try:
            return await self._crawler.engine.download_async(request)
        finally:
            self._under_way -= 1
            if not self._under_way:
                disconnect(self._limit_size, signals.bytes_received)

    def prepare(self, request: Request) -> None:
        """Lift the size limit of a request for a robots.txt: only the beginning of the file is
        read. Called when a request enters the downloader middlewares.
        """
        if reading := request.meta.get(READING_KEY):
            reading.size = 0
            request.meta["download_maxsize"] = 0

    def _limit_size(self, data: bytes, request: Request, **_: Any) -> None:
        reading = request.meta.get(READING_KEY)
        if reading is not None:
            reading.size += len(data)
            # From here on, the limit holds for the decompressed body.
            request.meta["download_maxsize"] = MAX_DECOMPRESSED_BYTES
            if reading.size > MAX_BYTES:
                raise StopDownload(fail=False)


def _target_of(response: Response) -> str | None:
    """The target of a response's redirect; None without one, or if it is not HTTP."""
    location = response.headers.get(b"Location")
    if response.status not in (301, 302, 303, 307, 308) or not location:
        return None
    try:
        target = urljoin(response.url, safe_url_string(location))
        return target if urlsplit(target).scheme in ("http", "https") else None
    except ValueError:
        return None


def _robotstxt_in(response: Response, failures: int) -> RobotsTxt:
    """The robots.txt in a response: a file, no file, or a problem."""
    status = response.status
    if 200 <= status < 300:
        return RobotsTxt.of_body(response.body, status)
    if 300 <= status < 500:  # of redirects: too many, or one that leads nowhere
        return RobotsTxt(status=status)
    return RobotsTxt(status=status, problem=response_status_message(status), failures=failures + 1)


def text_of(error: Exception) -> str:
    """An error in one short line."""
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    return text[:MAX_PROBLEM_CHARS].rstrip(": ")
