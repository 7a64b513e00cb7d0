"""No setting of Scrapy's that makes a crawl politer is lost: each does with the add-on what it does
without, as the site sees it.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from scrapy import Request
from scrapy.http import Response

from tests.support.crawls import ADD_ON, By, Crawl
from tests.support.servers import RedisServer
from tests.support.site import Site, most_at_once
from tests.support.visits import Visits

pytestmark = pytest.mark.filterwarnings("ignore::scrapy.exceptions.ScrapyDeprecationWarning")

PLAIN: By = {}
DELAY_S = 0.1
EVEN: dict[str, Any] = {"DOWNLOAD_DELAY_JITTER": 0, "RANDOMIZE_DOWNLOAD_DELAY": False}
THROTTLED = {"AUTOTHROTTLE_ENABLED": True, "AUTOTHROTTLE_START_DELAY": DELAY_S, **EVEN}
HOST, OTHER = "127.0.0.1", "localhost"


class Follows(Visits):
    """Follows each page to the next one, without an end."""

    async def parse(self, response: Response) -> Any:
        await super().parse(response)
        yield Request(f"{response.url}0")


class Slow(Visits):
    download_delay = DELAY_S


class SlowBySettings(Visits):
    custom_settings = {"DOWNLOAD_DELAY": DELAY_S}  # noqa: RUF012


class Stays(Visits):
    allowed_domains = (HOST,)


@dataclass
class Case:
    """A setting, requests, and what the site may see."""

    settings: dict[str, Any] = field(default_factory=dict)
    paths: tuple[str, ...] = tuple(f"/page/{number}" for number in range(4))
    hosts: tuple[str, ...] = (HOST,)
    spider: type[Visits] = Visits
    meta: dict[str, Any] = field(default_factory=dict)
    seen: int = 4
    """How many requests the site gets."""
    at_once: int = 8
    """How many of them are open at once, at most."""
    delay: float = 0.0
    """Seconds between two starts, at least."""


CASES = {
    "CONCURRENT_REQUESTS": Case(
        {"CONCURRENT_REQUESTS": 2},
        paths=("/take/0.1/a", "/take/0.1/b"),
        hosts=(HOST, OTHER),
        at_once=2,
    ),
    "DOWNLOAD_DELAY": Case({"DOWNLOAD_DELAY": DELAY_S, **EVEN}, delay=DELAY_S),
    "DOWNLOAD_SLOTS": Case({"DOWNLOAD_SLOTS": {HOST: {"delay": DELAY_S}}, **EVEN}, delay=DELAY_S),
    "spider.download_delay": Case(EVEN, spider=Slow, delay=DELAY_S),
    "custom_settings": Case(EVEN, spider=SlowBySettings, delay=DELAY_S),
    "AUTOTHROTTLE_ENABLED": Case({**THROTTLED, "DOWNLOAD_DELAY": DELAY_S}, delay=DELAY_S),
    "AUTOTHROTTLE_MAX_DELAY": Case(
        {
            **THROTTLED,
            "AUTOTHROTTLE_MAX_DELAY": DELAY_S,
            "AUTOTHROTTLE_TARGET_CONCURRENCY": 0.001,
        },
        delay=DELAY_S,
    ),
    "autothrottle_dont_adjust_delay": Case(
        THROTTLED, meta={"autothrottle_dont_adjust_delay": True}, delay=DELAY_S
    ),
    "download_slot": Case(
        {"DOWNLOAD_SLOTS": {"ours": {"delay": DELAY_S}}, **EVEN},
        paths=("/page/1", "/page/2"),
        hosts=(HOST, OTHER),
        meta={"download_slot": "ours"},
        delay=DELAY_S,
    ),
    "CLOSESPIDER_PAGECOUNT": Case(
        {"CLOSESPIDER_PAGECOUNT": 3}, paths=("/page/",), spider=Follows, seen=3
    ),
    "DEPTH_LIMIT": Case({"DEPTH_LIMIT": 2}, paths=("/page/",), spider=Follows, seen=3),
    "DOWNLOAD_MAXSIZE": Case({"DOWNLOAD_MAXSIZE": 100}, paths=("/large",), seen=1),
    "DOWNLOAD_TIMEOUT": Case(
        {"DOWNLOAD_TIMEOUT": 0.5, "RETRY_ENABLED": False}, paths=("/never",), seen=1
    ),
    "REDIRECT_ENABLED": Case({"REDIRECT_ENABLED": False}, paths=("/redirect/page/",), seen=1),
    "REDIRECT_MAX_TIMES": Case(
        {"REDIRECT_MAX_TIMES": 2}, paths=("/redirect/redirect/redirect/redirect/page/",), seen=3
    ),
    "METAREFRESH_ENABLED": Case({"METAREFRESH_ENABLED": False}, paths=("/refresh/page/",), seen=1),
    "RETRY_ENABLED": Case({"RETRY_ENABLED": False}, paths=("/status/500",), seen=1),
    "RETRY_TIMES": Case({"RETRY_TIMES": 2}, paths=("/status/500",), seen=3),
    "RETRY_HTTP_CODES": Case({"RETRY_HTTP_CODES": []}, paths=("/status/500",), seen=1),
    "max_retry_times": Case(meta={"max_retry_times": 0}, paths=("/status/500",), seen=1),
    "dont_retry": Case(meta={"dont_retry": True}, paths=("/status/503",), seen=1),
    "ROBOTSTXT_OBEY": Case({"ROBOTSTXT_OBEY": True}, paths=("/forbidden/1",), seen=1),
    "URLLENGTH_LIMIT": Case({"URLLENGTH_LIMIT": 40}, paths=(f"/page/{'x' * 40}",), seen=0),
    "allowed_domains": Case(hosts=(HOST, OTHER), spider=Stays),
    "dupefilter": Case(paths=("/page/1", "/page/1", "/page/2"), seen=2),
}


@pytest.mark.parametrize("by", [PLAIN, ADD_ON], ids=["plain", "add-on"])
@pytest.mark.parametrize("name", CASES)
async def test_a_setting_does_what_it_does_without_the_add_on(
    server: RedisServer, site: Site, name: str, by: By
) -> None:
    case = CASES[name]
    urls = [site.url(path, host) for path in case.paths for host in case.hosts]
    requests = [Request(url, meta={**case.meta}) for url in urls]
    since = asyncio.get_running_loop().time()
    crawl = Crawl(server, *requests, spider=case.spider, by=by, limit=8, **case.settings)
    await crawl.finished()
    assert len(site.visits) == case.seen
    assert most_at_once(site.visits) <= case.at_once
    for number, start in enumerate(sorted(site.times)):
        # Late arrivals make single intervals shorter. The server's clock rounds down.
        assert start >= since + number * case.delay - 0.002
