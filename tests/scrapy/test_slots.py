"""What is set in the slots of Scrapy's downloader, by AutoThrottle or by any other code, holds for
all nodes together.
"""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any, Self

import pytest
from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.http import Response

from tests.support.crawls import ADD_ON, By, Crawl, holding, pages, waiting
from tests.support.nodes import eventually
from tests.support.servers import RedisServer
from tests.support.site import Site
from tests.support.times import ENDLESS_S
from tests.support.visits import Visits

# RANDOMIZE_DOWNLOAD_DELAY is the jitter of older versions.
pytestmark = pytest.mark.filterwarnings("ignore::scrapy.exceptions.ScrapyDeprecationWarning")

PLAIN: By = {}
TARGET_S, START_S = 0.05, 0.4
DELAYS = [START_S, 0.225, 0.1375, 0.09375]  # as AutoThrottle's formula has them


class Latency:
    """Makes each response's latency the same for AutoThrottle, however busy the machine is."""

    def __init__(self, crawler: Crawler) -> None:
        self._latency = crawler.settings.getfloat("LATENCY")
        crawler.signals.connect(self._set, signals.response_downloaded)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    def _set(self, request: Request) -> None:
        request.meta["download_latency"] = self._latency


THROTTLED: dict[str, Any] = {
    "AUTOTHROTTLE_ENABLED": True,
    "AUTOTHROTTLE_START_DELAY": START_S,
    "DOWNLOAD_DELAY_JITTER": 0,
    "RANDOMIZE_DOWNLOAD_DELAY": False,
    "EXTENSIONS": {Latency: -1},
    "LATENCY": TARGET_S,
}


def assert_starts(site: Site, delays: Sequence[float], since: float) -> None:
    """The n-th request starts so much after the crawl's begin or later, as late arrivals make only
    single gaps shorter. The server's clock rounds down to a millisecond.
    """
    earliest = itertools.accumulate(delays, initial=since)
    starts = sorted(site.times)
    assert len(starts) == len(delays) + 1
    late = [start - least for start, least in zip(starts, earliest, strict=True)]
    assert min(late) > -0.002, late


@pytest.mark.parametrize("by", [PLAIN, ADD_ON], ids=["plain", "add-on"])
async def test_autothrottle_s_delays_are_kept(server: RedisServer, site: Site, by: By) -> None:
    since = asyncio.get_running_loop().time()
    await Crawl(server, *pages(site, 5), limit=4, by=by, **THROTTLED).finished()
    assert_starts(site, DELAYS, since)


async def test_two_nodes_keep_the_longer_delay_of_both(server: RedisServer, site: Site) -> None:
    since = asyncio.get_running_loop().time()
    crawls = [
        Crawl(
            server, *pages(site, n), limit=4, SEMAPHORE_NODE=f"{n}", **{**THROTTLED, "LATENCY": s}
        )
        for n, s in ((2, TARGET_S), (4, START_S))
    ]
    for crawl in crawls:
        await crawl.finished()
    assert_starts(site, [START_S] * 5, since)


class OneByOne(Visits):
    """Asks for each page in the callback of the page before."""

    async def parse(self, response: Response) -> Any:
        await super().parse(response)
        if len(self.responses) < len(DELAYS) + 1:
            yield Request(f"{response.url}0")


async def test_requests_that_come_one_by_one_keep_them(server: RedisServer, site: Site) -> None:
    since = asyncio.get_running_loop().time()
    await Crawl(server, *pages(site, 1), spider=OneByOne, limit=4, **THROTTLED).finished()
    assert_starts(site, DELAYS, since)


async def test_a_permit_is_not_held_during_the_delay(server: RedisServer, site: Site) -> None:
    endless = {**THROTTLED, "AUTOTHROTTLE_START_DELAY": ENDLESS_S}
    crawl = Crawl(server, *pages(site, 3), limit=4, **endless)
    await eventually(lambda: (holding(server), waiting(server)) == (0, 2))
    assert len(site.arrivals) == 1
    await crawl.crawler.engine.close_spider_async(reason="test")
    await crawl.finished()
