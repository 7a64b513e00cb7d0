"""The settings of a shared crawl: `CRAWL` and `CRAWL_*`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from scrapy.squeues import LifoMemoryQueue
from scrapy.utils.misc import load_object

from semaphore_middleware.errors import SettingsError
from semaphore_middleware.link.environment import default_node, server_of
from semaphore_middleware.model.options import (
    check_credentials,
    check_redis_options,
    unusable_server,
)
from semaphore_middleware.model.settings import value_of
from semaphore_middleware.model.validation import (
    check_integer,
    check_number,
    check_period,
    check_prefix,
    check_printable,
    check_truth,
    checked,
    did_you_mean,
)
from semaphore_middleware.scrapy.engine import spider_name

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from semaphore_middleware.link.location import Server


PERIOD = "seconds, or a number with 's', 'm', 'h' or 'd' behind it"
LONGEST_RUN_NAME = 100  # characters

_count = partial(check_integer, least=0, text=True)
_truth = partial(check_truth, text=True)


def _wait(value: Any, where: str) -> bool | float:
    with suppress(SettingsError):
        return _truth(value, where)
    return check_period(value, where, allowed=f"True, False, or {PERIOD}")


def _run_name(value: Any, where: str) -> str:
    allowed = f"'new', or a name of at most {LONGEST_RUN_NAME} characters, all printable"
    return check_printable(str(value), where, allowed, LONGEST_RUN_NAME)


CHECKS: Mapping[str, Callable[[Any, str], Any]] = {
    "CRAWL_LEASE": partial(check_number, least=0.1, text=True),
    "CRAWL_MAX_PAGES": _count,
    "CRAWL_MAX_PAGES_PER_SITE": _count,
    "CRAWL_PREFIX": check_prefix,
    "CRAWL_RECRAWL_AFTER": partial(check_period, allowed=PERIOD),
    "CRAWL_RUN": _run_name,
    "CRAWL_START_KEY": check_printable,
    "CRAWL_START_ONCE": _truth,
    "CRAWL_VERSION": lambda value, _: str(value),
    "CRAWL_WAIT": _wait,
    "SEMAPHORE_REDIS_CREDENTIALS": check_credentials,
    "SEMAPHORE_REDIS_OPTIONS": check_redis_options,
    "SEMAPHORE_START_TIMEOUT": partial(check_number, least=0.001, text=True),
}
"""By setting. A setting without a value, or with an empty text, has the default of
`CrawlSettings`.
"""


@dataclass(frozen=True, slots=True)
class CrawlSettings:
    """The settings of one node, or of an operator. Times are in seconds; docs/settings.md has
    the meanings.
    """

    url: str
    name: str = ""
    node: str = ""
    url_from: str = "the server's URL"
    """Where `url` was set, for errors."""
    last_first: tuple[bool, bool] = False, False
    """Whether a site's newest request is taken first, and its newest start request."""
    lease: float = 15.0
    max_pages: int = 0
    max_pages_per_site: int = 0
    prefix: str = "crawl"
    recrawl_after: float = 0
    redis_credentials: Callable[[], object] | None = None
    redis_options: Mapping[str, Any] | None = None
    run: str = ""
    start_key: str | None = None
    start_once: bool | None = None
    start_timeout: float | None = None
    version: str = ""
    wait: bool | float = False

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """The settings of a node. Raises `SettingsError`."""
        settings = crawler.settings
        spider = spider_name(crawler)
        url, url_from = server_of(settings)
        if url is None:
            raise unusable_server(settings) or SettingsError(
                "REDIS_URL is not set (or SEMAPHORE_REDIS_URL): the nodes of a crawl share a Redis "
                "server; allowed is its address, like redis://host:6379/0"
            )
        return cls(
            url,
            name=check_printable(settings.get("CRAWL", "") or spider, "CRAWL"),
            node=value_of("SEMAPHORE_NODE", settings) or default_node(spider),
            url_from=url_from,
            last_first=(
                _takes_last(settings["SCHEDULER_MEMORY_QUEUE"]),
                _takes_last(settings["SCHEDULER_START_MEMORY_QUEUE"]),
            ),
            **values_of(settings),
        )

    def server(self, call_timeout: float, prefix: str) -> Server:
        """The server, for calls of at most `call_timeout` seconds to keys with this prefix."""
        from semaphore_middleware.link.location import Server

        return Server(
            self.url,
            call_timeout,
            self.url_from,
            prefix,
            self.redis_credentials,
            self.redis_options,
        )

    @property
    def run_name(self) -> str:
        """The name of the run to join or begin; empty for any."""
        return self.run if self.run != "new" else ""

    @property
    def budgets(self) -> dict[str, int]:
        """The limits that all nodes share, by setting."""
        return {
            "CRAWL_MAX_PAGES": self.max_pages,
            "CRAWL_MAX_PAGES_PER_SITE": self.max_pages_per_site,
        }


def _takes_last(queue: Any) -> bool:
    return issubclass(load_object(queue), LifoMemoryQueue)


def values_of(settings: Mapping[str, Any], names: Iterable[str] = CHECKS) -> dict[str, Any]:
    """The values of the settings with these names, by field. Raises `SettingsError`."""
    found = {name: checked(_read, settings.get(name), name) for name in names}
    return {
        name.partition("_")[2].lower(): value for name, value in found.items() if value is not None
    }


def _read(value: Any, name: str) -> Any:
    return None if value in (None, "") else CHECKS[name](value, name)


def misspelt(names: Iterable[str]) -> Iterator[str]:
    """A warning for each name close to a setting's. Others in `CRAWL_` may be the project's own."""
    for name in names:
        is_known = name in CHECKS or not name.startswith("CRAWL_")
        meant = {"CRAWL_NAME": "CRAWL"}
        if not is_known and (hint := did_you_mean(name, CHECKS, "CRAWL_", meant)):
            yield f"{name}: there is no such setting{hint}"
