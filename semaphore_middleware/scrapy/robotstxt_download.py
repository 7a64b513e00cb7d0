"""A robots.txt from its site: how it is asked for, and what the answer means (RFC 9309)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from scrapy import Request, signals
from scrapy.exceptions import IgnoreRequest, StopDownload
from scrapy.http.request import NO_CALLBACK
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.response import response_status_message
from w3lib.url import safe_url_string

from semaphore_middleware.core.robotstxt import MAX_BYTES, RobotsTxt
from semaphore_middleware.errors import SemaphoreError

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.http import Response

MAX_REDIRECTS = 5
"""RFC 9309 (2.3.1.2): at least five are followed, also to other hosts."""
MAX_DECOMPRESSED_BYTES = 8 * 1024 * 1024
"""Of a compressed file, of which at most `MAX_BYTES` are read."""
MAX_PROBLEM_CHARS = 200
READING_KEY = "semaphore_robotstxt"
"""In the meta of requests for robots.txt, which never leave this process: a `Reading`."""
DEFAULT_PORTS = {"http": ":80", "https": ":443"}


def origin_of(request: Request) -> str:
    """Scheme, host and port of a request: what one robots.txt is for (RFC 9309, 2.3). Without the
    password that a URL may have.
    """
    url = urlparse_cached(request)
    authority = url.netloc.rpartition("@")[2].lower()
    return f"{url.scheme}://{authority.removesuffix(DEFAULT_PORTS.get(url.scheme, ''))}"


@dataclass(slots=True, eq=False)
class Reading:
    """How much of a response has been read."""

    size: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of asking a site for its robots.txt."""

    robotstxt: RobotsTxt
    from_cache: bool = False
    """True if the site was not asked: the HTTP cache had a response, whatever its age."""


class RobotsTxtDownloader:
    """Downloads robots.txt files for a crawler, and counts them in Scrapy's stats."""

    def __init__(self, crawler: Crawler, priority: int) -> None:
        self._crawler = crawler
        self._priority = priority
        self._under_way = 0

    async def download(self, origin: str, failures: int = 0) -> Answer:
        """Ask the site, which has failed so often in a row before. Runs in the task of the `fetch`
        of a request that waits for it.

        Raises our own errors, such as `AcquireTimeoutError`, and `IgnoreRequest`, if a middleware
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
            return Answer(RobotsTxt(problem=text_of(error), failures=failures + 1))
        count("robotstxt/request_count")
        count("robotstxt/response_count")
        count(f"robotstxt/response_status_count/{response.status}")
        return Answer(_robotstxt_in(response, failures), "cached" in response.flags)

    async def _follow(self, url: str, readings: list[Reading]) -> Response:
        """The response, or the one that it redirects to; of too many redirects the last."""
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
            "dont_redirect": True,  # they are followed here, whatever the crawl does with its pages
            "allow_offsite": True,  # where a redirect leads is not crawled
            READING_KEY: readings[-1],
        }
        request = Request(url, priority=self._priority, meta=meta, callback=NO_CALLBACK)
        connect, disconnect = self._crawler.signals.connect, self._crawler.signals.disconnect
        if not self._under_way:  # a handler costs each part of each response
            connect(self._limit_size, signals.bytes_received)
        self._under_way += 1
        try:
            return await self._crawler.engine.download_async(request)
        finally:
            self._under_way -= 1
            if not self._under_way:
                disconnect(self._limit_size, signals.bytes_received)

    def prepare(self, request: Request) -> None:
        """A request enters the downloader middlewares. If it is for a robots.txt: how long that is
        must not matter, as only its beginning is read.
        """
        if reading := request.meta.get(READING_KEY):
            reading.size = 0
            request.meta["download_maxsize"] = 0

    def _limit_size(self, data: bytes, request: Request, **_: Any) -> None:
        reading = request.meta.get(READING_KEY)
        if reading is not None:
            reading.size += len(data)
            # From here on it holds for what the compression middleware makes of the body.
            request.meta["download_maxsize"] = MAX_DECOMPRESSED_BYTES
            if reading.size > MAX_BYTES:
                raise StopDownload(fail=False)


def _target_of(response: Response) -> str | None:
    """Where a response redirects to; None: nowhere that a robots.txt can be."""
    location = response.headers.get(b"Location")
    if response.status not in (301, 302, 303, 307, 308) or not location:
        return None
    try:
        target = urljoin(response.url, safe_url_string(location))
        return target if urlsplit(target).scheme in ("http", "https") else None
    except ValueError:
        return None


def _robotstxt_in(response: Response, failures: int) -> RobotsTxt:
    """What a response says: the file, that there is none, or that it is undefined."""
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
