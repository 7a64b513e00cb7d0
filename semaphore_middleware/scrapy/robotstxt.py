"""Scrapy's robots.txt middleware, changed to follow RFC 9309 and to share files among nodes."""

from __future__ import annotations

import asyncio
import json
import logging
import zlib
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urljoin, urlsplit
from weakref import WeakSet

from scrapy import Request, signals
from scrapy.downloadermiddlewares.robotstxt import RobotsTxtMiddleware as ScrapyRobotsTxtMiddleware
from scrapy.exceptions import IgnoreRequest, StopDownload
from scrapy.http import Response, TextResponse
from scrapy.http.request import NO_CALLBACK
from scrapy.utils.datatypes import LocalCache
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.response import response_status_message
from w3lib.url import safe_url_string

from semaphore_middleware.core.observer import RobotsTxtObeyed
from semaphore_middleware.errors import ClosedError, SemaphoreError
from semaphore_middleware.model.events import CountedEvent
from semaphore_middleware.model.feedback import Backoff
from semaphore_middleware.scrapy.admission import SHARED_KEY
from semaphore_middleware.scrapy.crawl import crawl_of
from semaphore_middleware.scrapy.crawl_delays import ORIGINS_MAX
from semaphore_middleware.scrapy.engine import RobotsTxtUnreadableError, SpiderClosingError
from semaphore_middleware.scrapy.responses import TOO_MANY_REQUESTS
from semaphore_middleware.scrapy.scopes import origin_of
from semaphore_middleware.scrapy.versions import ResponseDataLossError, robots_parsed

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.robotstxt import RobotParser

    from semaphore_middleware.scrapy.crawl import Crawl

logger = logging.getLogger(__name__)

MAX_AGE_S = 24 * 60 * 60.0
"""A file is fetched again at this age: RFC 9309 (2.4)."""
REFUSED_AGE_S = 60 * 60.0
"""After a 429 that outlasted its retries, the file is fetched again after this time."""
FORBID_ALL = b"User-agent: *\nDisallow: /\n"
MAX_BYTES = 500 * 1024
"""The part of a robots.txt that is read: RFC 9309 (2.5) asks for at least 500 KiB."""
MAX_SHARED_BYTES = 16 * 1024
"""The largest file shared by nodes, compressed."""


@dataclass(frozen=True, slots=True)
class RobotsTxtReused(CountedEvent):
    """This node took a site's robots.txt from the server: another node had fetched it."""

    counter = "robotstxt_reused"


@dataclass(frozen=True, slots=True)
class RobotsTxt:
    """A site's answer to a request for its robots.txt (RFC 9309, 2.3.1)."""

    text: bytes = b""
    """The file's first `MAX_BYTES`; empty if the site has no robots.txt."""
    status: int = 0
    """The status of the response; 0: there was none."""
    problem: str = ""
    """The reason why the file is unreachable: a server error, or no answer. Empty: it was read."""
    failures: int = 0
    """Failed readings in a row, including this one."""
    valid_until: float = field(default=0.0, compare=False)
    """On this node's loop's clock."""

    @classmethod
    def of_body(cls, body: bytes, status: int) -> Self:
        """The file with this body. If it is too long, only the first whole lines count."""
        if len(body) > MAX_BYTES:
            body = body[:MAX_BYTES]
            # A part of a rule would be another rule: "Allow: /" is not "Allow: /one/page".
            body = body[: max(body.rfind(b"\n"), body.rfind(b"\r")) + 1]
        return cls(body, status)

    def pack(self) -> bytes:
        """The form of the file in the server's cache."""
        head = json.dumps([self.status, self.problem, self.failures])
        return head.encode() + b"\n" + zlib.compress(self.text)

    @classmethod
    def unpack(cls, packed: bytes) -> Self | None:
        """The file in these bytes of the server's cache; None if they are invalid."""
        head, _, text = packed.partition(b"\n")
        try:
            status, problem, failures = json.loads(head)
            body = zlib.decompressobj().decompress(text, MAX_BYTES)
            return cls(body, int(status), str(problem), int(failures))
        except (ValueError, TypeError, zlib.error):
            return None


class SharedFiles:
    """The robots.txt files shared by all nodes in the server's cache.

    A node looks for a file before it asks for the permit to fetch it, and again when it has the
    permit. It puts a file there before it returns the permit. So if many nodes need a file at once,
    no more of them fetch it than the site's limit allows.
    """

    def __init__(self, crawl: Crawl) -> None:
        self._crawl = crawl

    async def find_file(self, origin: str) -> RobotsTxt | None:
        """The file of an origin, if a node has put it there and it is still valid."""
        await self._crawl.opened()
        packed, seconds = await self._crawl.semaphore.cache.get(name_of_file(origin)) or (b"", 0.0)
        robotstxt = RobotsTxt.unpack(packed)
        if robotstxt is None:
            return None
        self._crawl.semaphore.emit(RobotsTxtReused)
        self.note_obeyed(origin, robotstxt)
        # At most a day, even if the server's clock was set back.
        return replace(robotstxt, valid_until=_now() + min(seconds, MAX_AGE_S))

    def note_obeyed(self, origin: str, robotstxt: RobotsTxt) -> None:
        """Notify observers of a file that this crawl obeys from now on."""
        self._crawl.semaphore.emit(
            RobotsTxtObeyed, origin, robotstxt.status, robotstxt.problem, robotstxt.text
        )

    def put_file(self, origin: str, robotstxt: RobotsTxt) -> None:
        """Share a file, unless it is too large. A failure does not replace a valid file."""
        packed = robotstxt.pack()
        if len(packed) <= MAX_SHARED_BYTES:
            name, seconds = name_of_file(origin), robotstxt.valid_until - _now()
            with suppress(ClosedError):
                self._crawl.semaphore.cache.put(
                    name, packed, seconds, replace=not robotstxt.problem
                )


def name_of_file(origin: str) -> str:
    """The name of a robots.txt in the cache."""
    return f"robotstxt:{origin}"


def _now() -> float:
    return asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True)
class SiteRules:
    """A site's robots.txt, as this crawl applies it."""

    parser: RobotParser | None
    """None: all pages are allowed."""
    valid_until: float
    """On the loop's clock."""
    failures: int = 0
    """Failed readings in a row."""


@dataclass(frozen=True, slots=True, eq=False)
class Loading:
    """A reading of a site's robots.txt that is under way."""

    leader: Request
    """The request whose `fetch` reads the file, for all requests of the site."""
    rules: asyncio.Future[SiteRules | None]
    """None: the leader was cancelled, or goes back, so another request must lead."""


class RobotsTxtMiddleware(ScrapyRobotsTxtMiddleware):
    """Scrapy's middleware, with these differences.

    - While a site's robots.txt cannot be read, it forbids the whole site (RFC 9309, 2.3.1.4).
      Scrapy 2.19 lets all requests through then.
    - A failure on our side does not count as the site's: the requests waiting for the file fail,
      or go back to the scheduler.
    - A file is fetched again after a day, and nodes share it.
    - All requests waiting for a file are checked against it. Scrapy 2.19 checks two of them.
    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        crawl = crawl_of(crawler)
        self._crawl = crawl
        self._admissions = crawl.downloads.admissions
        self._allows_unreachable = crawl.settings.robotstxt_unreachable == "allow"
        self._files = SharedFiles(crawl)
        crawler.signals.connect(self._count_bytes, signals.bytes_received)
        self._parser_class: type[RobotParser] = load_object(crawler.settings["ROBOTSTXT_PARSER"])
        self._parser_of_unreadable = build_from_crawler(self._parser_class, crawler, FORBID_ALL)
        self._rules: LocalCache[str, SiteRules] = LocalCache(ORIGINS_MAX)
        """By origin, in the order of their last use."""
        self._loading: dict[str, Loading] = {}  # by origin
        self._forbidding: WeakSet[RobotParser] = WeakSet()  # those that have forbidden a page

    async def process_request(  # type: ignore[override]  # Scrapy's returns nothing
        self, request: Request
    ) -> Request | None:
        """Wait for the robots.txt of the request's site. Returns a copy of the request for the
        scheduler if the spider is closing.

        Raises `IgnoreRequest` if the file forbids the request, `RobotsTxtUnreadableError` if it
        cannot be read, and our own errors.
        """
        if reading := request.meta.get(SHARED_KEY):
            reading.begin_response(request)
        try:
            await super().process_request(request)
        except (ClosedError, SpiderClosingError):
            return self._crawl.downloads.return_to_scheduler(request)
        return None

    def process_request_2(self, rp: RobotParser | None, request: Request) -> None:
        """Raise `IgnoreRequest` if these rules forbid the request."""
        try:
            super().process_request_2(rp, request)
        except IgnoreRequest as error:
            if rp is self._parser_of_unreadable:
                raise RobotsTxtUnreadableError(f"{error}, which cannot be read") from None
            if rp is not None and rp not in self._forbidding:
                self._forbidding.add(rp)
                logger.info(
                    "The robots.txt of %s forbids %s, and perhaps other pages: they are not "
                    "fetched, and not logged again (ROBOTSTXT_OBEY).",
                    origin_of(request),
                    request,
                )
            raise

    async def robot_parser(self, request: Request) -> RobotParser | None:
        """The parser for a request's site, after its robots.txt was read; None: all is allowed.

        Raises our own errors, such as `AcquireTimeoutError`, if they kept the file from being
        fetched, and `ClosedError` or `SpiderClosingError` if the spider is closing.
        """
        origin = origin_of(request)
        rules = self._rules.get(origin)
        if rules is not None and _now() < rules.valid_until:
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

    def _count_bytes(self, data: bytes, request: Request, **_: Any) -> None:
        if reading := request.meta.get(SHARED_KEY):
            reading.count_bytes(data, request)

    async def _lead(self, origin: str, request: Request) -> SiteRules:
        """Read the file, for all waiting requests."""
        loaded: asyncio.Future[SiteRules | None] = asyncio.get_running_loop().create_future()
        self._loading[origin] = Loading(request, loaded)
        try:
            rules = await self._load(origin, request)
            self._rules.pop(origin, None)
            self._rules[origin] = rules
            loaded.set_result(rules)
            return rules
        except (ClosedError, SpiderClosingError):  # of this request; others may go on
            raise
        except Exception as error:
            loaded.set_exception(error)
            loaded.exception()  # retrieved, even if no request waits
            raise
        finally:
            del self._loading[origin]
            if not loaded.done():
                loaded.set_result(None)

    async def _follow(self, loading: Loading, request: Request) -> SiteRules | None:
        with self._admissions.needing(request, self._admissions.admission_of(loading.leader)):
            return await asyncio.shield(loading.rules)

    async def _load(self, origin: str, request: Request) -> SiteRules:
        before = self._rules.get(origin)
        try:
            robotstxt = await self._files.find_file(origin)
            if robotstxt is None:
                failures = before.failures if before else 0
                backoff = self._crawl.settings.backoff
                reading = Reading(self.crawler, self._files, backoff, origin, failures, _now())
                robotstxt = await reading.run(self.DOWNLOAD_PRIORITY)
        except SemaphoreError:  # our own error, not a middleware's decision
            raise
        except IgnoreRequest as error:  # raised by a user's middleware: as in Scrapy
            logger.warning(
                "A middleware dropped the request for the robots.txt of %s (%r): all pages there "
                "are allowed for 24 h, as in Scrapy.",
                origin,
                error,
            )
            return SiteRules(None, _now() + MAX_AGE_S)
        return await self._apply(origin, robotstxt, request, before)

    async def _apply(
        self, origin: str, robotstxt: RobotsTxt, request: Request, before: SiteRules | None
    ) -> SiteRules:
        """The rules of a robots.txt. Logs a first failure to read it, and the end of failures."""
        parser, problem = self._parse(robotstxt)
        if parser is not None:
            await self.crawler.signals.send_catch_log_async(
                robots_parsed, robotparser=parser, request=request
            )
            if before is not None and before.failures:
                logger.info("The robots.txt of %s can be read again.", origin)
            return SiteRules(parser, robotstxt.valid_until)
        if before is None or not before.failures:
            most = self._crawl.settings.backoff.most
            is_refused = robotstxt.status == TOO_MANY_REQUESTS
            logger.warning(
                "The robots.txt of %s cannot be read (%s). Until it can be, requests there are %s "
                "(SEMAPHORE_ROBOTSTXT_UNREACHABLE). It is requested again after %g s%s.",
                origin,
                problem,
                "allowed" if self._allows_unreachable else "forbidden",
                round(robotstxt.valid_until - _now(), 1),
                "" if is_refused else f", then at longer intervals, up to {most:g} s",
            )
        failures = max(1, robotstxt.failures)
        parser = None if self._allows_unreachable else self._parser_of_unreadable
        return SiteRules(parser, robotstxt.valid_until, failures)

    def _parse(self, robotstxt: RobotsTxt) -> tuple[RobotParser | None, str]:
        """The file's parser, or None and the reason."""
        if robotstxt.problem:
            return None, robotstxt.problem
        try:
            return build_from_crawler(self._parser_class, self.crawler, robotstxt.text), ""
        except Exception as error:  # a broken file must not let all requests through
            return None, f"its parser failed: {text_of(error)}"


MAX_REDIRECTS = 5
"""RFC 9309 (2.3.1.2): at least five redirects are followed, also to other hosts."""
MAX_DECOMPRESSED_BYTES = 8 * 1024 * 1024
"""Of a compressed file; at most `MAX_BYTES` of its compressed form are read."""
MAX_PROBLEM_CHARS = 200


@dataclass(slots=True, eq=False)
class Reading:
    """One reading of a site's robots.txt, in the meta of its requests (a `SharedRequest`)."""

    crawler: Crawler
    files: SharedFiles
    backoff: Backoff
    origin: str
    failures: int
    """Failed readings in a row before this one."""
    began_at: float
    """On the loop's clock."""
    redirects_left: int = MAX_REDIRECTS
    size: int = 0
    """Bytes of the present response read so far."""
    has_begun: bool = False
    """True once any bytes were read."""
    found: RobotsTxt | None = None
    """The file, if another node has put it into the cache meanwhile."""

    async def run(self, priority: int) -> RobotsTxt:
        """Download the file, and count it in Scrapy's stats. Runs in the task of a waiting
        request's `fetch`.

        Raises our own errors, such as `AcquireTimeoutError`, and `IgnoreRequest` if a middleware
        dropped the request: none of them is the site's fault.
        """
        count = self.crawler.stats.inc_value
        is_cached = False
        try:
            response = await self._fetch(priority)
        except SemaphoreError:
            raise
        except Exception as error:
            if self.found is not None:
                return self.found
            if isinstance(error, IgnoreRequest):
                if not self.has_begun:
                    raise
            else:
                count(f"robotstxt/exception_count/{type(error)}")  # as Scrapy writes it
            robotstxt = self.failed(text_of(error))
        else:
            if self.found is not None:
                return self.found
            count("robotstxt/response_count")
            count(f"robotstxt/response_status_count/{response.status}")
            robotstxt = self.result_of(response)
            _warn_of_unread(self.origin, response)
            is_cached = "cached" in response.flags
        count("robotstxt/request_count")
        if not is_cached:
            self.files.note_obeyed(self.origin, robotstxt)
        return robotstxt

    async def _fetch(self, priority: int) -> Response:
        """The response after at most `MAX_REDIRECTS` redirects."""
        url: str | None = f"{self.origin}/robots.txt"
        meta = {
            "dont_obey_robotstxt": True,
            "dont_redirect": True,  # they are followed here, even if the crawl does not
            "allow_offsite": True,  # the target of a redirect is not crawled
            "download_fail_on_dataloss": False,  # the status may be enough
            SHARED_KEY: self,
        }
        while url:
            request = Request(url, priority=priority, meta=meta, callback=NO_CALLBACK)
            response = await self.crawler.engine.download_async(request)
            url = self.target_of(response)
            self.redirects_left -= 1
        return response

    def begin_response(self, request: Request) -> None:
        """Lift the size limit of a request for a robots.txt: only the beginning of the file is
        read. Called when the request enters the downloader middlewares.
        """
        self.size = 0
        request.meta["download_maxsize"] = 0

    def count_bytes(self, data: bytes, request: Request) -> None:
        """Stop reading after `MAX_BYTES`."""
        self.has_begun = True
        self.size += len(data)
        # From here on, the limit holds for the decompressed body.
        request.meta["download_maxsize"] = MAX_DECOMPRESSED_BYTES
        if self.size > MAX_BYTES:
            raise StopDownload(fail=False)

    async def known_response(self, request: Request) -> Response | None:
        """A response in place of the site's, if another node has put the file into the cache."""
        self.found = await self.files.find_file(self.origin)
        if self.found is None:
            return None
        request.meta["dont_retry"] = True  # the site is not asked again
        status, text = self.found.status, self.found.text
        return TextResponse(request.url, status, body=text, flags=["cached"])

    def received(self, response: Response) -> Response:
        """The response for other middlewares: without its body if the status alone decides, as it
        may be impossible to decompress. Raises an error if a file was cut off.
        """
        if 200 <= response.status < 300:
            if "dataloss" in response.flags:
                raise ResponseDataLossError(["the file was cut off"])
            return response
        headers = response.headers.copy()
        headers.pop(b"Content-Encoding", None)
        return response.replace(headers=headers, body=b"")

    def on_response(self, response: Response) -> None:
        """Share the file, unless the response is a redirect or comes from the HTTP cache."""
        if self.target_of(response) is None and "cached" not in response.flags:
            self.files.put_file(self.origin, self.result_of(response))

    def target_of(self, response: Response) -> str | None:
        """The target of the response's redirect, if it is HTTP; None if the response is the last
        one of this reading.
        """
        location = response.headers.get(b"Location")
        is_redirect = response.status in (301, 302, 303, 307, 308)
        if not (self.redirects_left and is_redirect and location):
            return None
        try:
            target = urljoin(response.url, safe_url_string(location))
            return target if urlsplit(target).scheme in ("http", "https") else None
        except ValueError:
            return None

    def result_of(self, response: Response) -> RobotsTxt:
        """The result of this reading by its last response: a file, no file, or a problem. A file is
        valid for a day after the reading began.
        """
        status, until = response.status, self.began_at + MAX_AGE_S
        if 200 <= status < 300:
            return replace(RobotsTxt.of_body(response.body, status), valid_until=until)
        if status == TOO_MANY_REQUESTS:
            return self.failed(response_status_message(status), status, REFUSED_AGE_S)
        # A redirect here is one too many, or has no target.
        if 300 <= status < 500:
            return RobotsTxt(status=status, valid_until=until)
        return self.failed(response_status_message(status), status)

    def failed(self, problem: str, status: int = 0, seconds: float | None = None) -> RobotsTxt:
        """The result of a failed reading, for this reason, valid for so many seconds. By default
        they double with each failure in a row.
        """
        if seconds is None:
            seconds = min(self.backoff.start * 2 ** min(self.failures, 60), self.backoff.most)
        return RobotsTxt(b"", status, problem, self.failures + 1, _now() + seconds)


def _warn_of_unread(origin: str, response: Response) -> None:
    """Warn of rules in a file that do not count."""
    if not 200 <= response.status < 300:
        return
    if len(response.body) > MAX_BYTES:
        logger.warning(
            "The robots.txt of %s is longer than %d KiB: rules after these do not count.",
            origin,
            MAX_BYTES // 1024,
        )
    if b"\0" in response.body:
        logger.warning(
            "The robots.txt of %s has NUL bytes, as a text in UTF-16 has: rules that are not in "
            "UTF-8 do not count.",
            origin,
        )


def text_of(error: Exception) -> str:
    """An error in one short line."""
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    return text[:MAX_PROBLEM_CHARS].rstrip(": ")
