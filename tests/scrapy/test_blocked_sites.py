"""Requests for a site that refuses everything fail, and the crawl's other requests go on."""

from collections import Counter
from typing import Any

from scrapy import Request
from scrapy.spidermiddlewares.httperror import HttpError

from semaphore_middleware.errors import SiteBlockedError
from tests.support.crawls import Crawl, Log, pages
from tests.support.servers import RedisServer
from tests.support.site import Site

BLOCKED_SOON: dict[str, Any] = {
    "SEMAPHORE_DOWN_AFTER": 0.05,
    "SEMAPHORE_BACKOFF_START": 0.05,
    "SEMAPHORE_BACKOFF_MAX": 0.2,
    "SEMAPHORE_BACKOFF_TIMES": 100,
}


async def test_a_site_that_refuses_everything(server: RedisServer, site: Site, caplog: Log) -> None:
    site.refusals = None
    blocked = [Request(site.url(f"/busy/{n}"), priority=1) for n in range(20)]
    alive = pages(site, 9, host="localhost")
    crawl = Crawl(server, *blocked, *alive, limit=2, **BLOCKED_SOON)
    await crawl.finished()
    refused = sum(visit.path.startswith("/busy/") for visit in site.visits)
    assert refused < 60, "plain Scrapy asks three times for each"
    ends = Counter(type(error) for error in crawl.spider.failures)
    assert len(crawl.spider.responses) == 9, "of the site that answers"
    assert ends[SiteBlockedError] + ends[HttpError] == 20, "who tries it last gets the response"
    assert ends[SiteBlockedError] == crawl.stat("semaphore/failed_at_once") > 0
    assert crawl.stat("semaphore/blocked") == 1
    said = [message for message in caplog.messages if "is blocked. It has refused" in message]
    assert len(said) == 1
    assert "the last one with status 429. Requests fail at once" in said[0]
    assert server.members() == {}
