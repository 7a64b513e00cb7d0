"""What older versions of Scrapy lack: all other modules are written for the newest one.

Each part names the version that has it. When `scrapy>=` in pyproject.toml reaches that version, the
part is deleted, and its callers use Scrapy's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy import Request, exceptions, signals, version_info
from twisted.internet import error
from twisted.web.client import ResponseFailed

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

# Since 2.15 -----------------------------------------------------------------------------------


def _error(name: str, of_twisted: type[Exception]) -> type[Exception]:
    """A download error. In older versions, errbacks get Twisted's."""
    return getattr(exceptions, name, of_twisted)


CannotResolveHostError = _error("CannotResolveHostError", error.DNSLookupError)
DownloadConnectionRefusedError = _error(
    "DownloadConnectionRefusedError", error.ConnectionRefusedError
)
DownloadTimeoutError = _error("DownloadTimeoutError", error.TimeoutError)
ResponseDataLossError = _error("ResponseDataLossError", ResponseFailed)

REQUEST_FIELDS = frozenset(getattr(Request("data:,"), "__dict__", ()))
"""The names in each request's `__dict__`. Newer requests have `__slots__`."""


def fail_start(crawler: Crawler) -> None:
    """Make Scrapy's commands exit with status 1 after an error in a component's `from_crawler`.
    Older versions do so only without a spider.
    """
    if version_info < (2, 15):
        crawler.spider = None


# Since 2.17 -----------------------------------------------------------------------------------


def give_up_log_level(request: Request) -> dict[str, Any]:
    """The argument `give_up_log_level` of `get_retry_request`. Older versions have none."""
    if version_info < (2, 17):
        return {}
    return {"give_up_log_level": request.meta.get("give_up_log_level")}


# Since 2.18 -----------------------------------------------------------------------------------

robots_parsed: object = getattr(signals, "robots_parsed", object())
"""The signal of a robots.txt that was read. In older versions, only the add-on sends it."""

START_MAY_CLOSE = version_info >= (2, 18)
"""True if a `CloseSpider` raised by a spider's `start` closes the spider. Older versions log it as
an error.
"""


def crawl_delay(parser: Any, agent: str | bytes) -> Any:
    """The Crawl-delay in a robots.txt. In older versions, only the wrapped parsers know it."""
    if version_info >= (2, 18):
        return parser.crawl_delay(agent)
    wrapped = getattr(parser, "rp", None)
    find = getattr(wrapped, "crawl_delay", None) or getattr(wrapped, "get_crawl_delay", None)
    return find and find(agent.decode("utf-8", "replace") if isinstance(agent, bytes) else agent)


class EndedAtStartError(exceptions.CloseSpider, exceptions.UsageError):
    """Closes the spider, for a reason that is logged. It reaches the command in `scrapy shell`
    alone: as a `UsageError` it ends that with status 2, not with a traceback.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.print_help = False


def close_opened(crawler: Crawler, reason: str) -> None:
    """Close the spider instead of starting the engine. For receivers of `spider_opened`.

    Raises `EndedAtStartError`. Older versions would log it, and start the engine.
    """
    if version_info >= (2, 18):
        raise EndedAtStartError(reason)
    engine: Any = crawler.engine

    async def close() -> None:
        if engine.spider is not None:  # not yet closed by another call
            await engine.close_spider_async(reason=reason)

    engine.start_async = close
