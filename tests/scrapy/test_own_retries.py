"""A project that handles refusals itself gets them at once, while all nodes pause."""

import logging
from collections.abc import Mapping
from typing import Any

import pytest
from scrapy import Request
from scrapy.http import Response
from scrapy.http.request import NO_CALLBACK

from semaphore_middleware.scrapy.admission import SHARED_KEY
from semaphore_middleware.scrapy.retries import Retries
from tests.support.crawls import Crawl, Log, ready_crawler
from tests.support.servers import RedisServer
from tests.support.site import Site
from tests.support.visits import Visits

LIST = "handle_httpstatus_list"
ALL = "handle_httpstatus_all"
OWN: dict[str, Any] = {"RETRY_HTTP_CODES": [500, "503"]}
LONG_PAUSE: dict[str, Any] = {"SEMAPHORE_BACKOFF_START": 600, "SEMAPHORE_BACKOFF_MAX": 600}
TIMES = 7


class Tolerant(Visits):
    """Its callback gets a 429."""

    handle_httpstatus_list = (429,)


class ChangesKey(Tolerant):
    """Its callback answers a 429 with another key."""

    async def parse(self, response: Response) -> Any:
        await super().parse(response)
        if response.status == 429:
            assert response.request is not None
            headers = {"X-Key": "another"}
            yield response.request.replace(headers=headers, dont_filter=True)


def retries_by_us(
    status: int = 429,
    spider: Mapping[str, Any] = {},
    meta: Mapping[str, Any] = {},
    settings: Mapping[str, Any] = {},
    callback: Any = None,
    retries: Retries | None = None,
    times: int = TIMES,
) -> int | None:
    """How often the add-on retries such a request."""
    if retries is None:
        crawler = ready_crawler(Visits, **settings)
        crawler.crawling = True
        crawler.spider = Visits.from_crawler(crawler)
        vars(crawler.spider).update(spider)
        retries = Retries(crawler, times)
    request = Request("http://a/", callback=callback, meta={**meta})
    return retries.decide(request, status)


@pytest.mark.parametrize(
    ("case", "is_ours"),
    [
        ({}, True),
        ({"status": 503}, True),
        # The request's meta comes first, then the spider, then the settings, as in Scrapy.
        ({"meta": {LIST: [429]}}, False),
        ({"meta": {LIST: [404]}}, True),
        ({"meta": {LIST: None}}, True),
        ({"meta": {ALL: True}}, False),
        ({"meta": {ALL: False}}, True),
        ({"spider": {LIST: [429]}}, False),
        ({"spider": {LIST: [429]}, "status": 503}, True),
        ({"spider": {LIST: [429]}, "meta": {LIST: [404]}}, True),
        ({"spider": {ALL: True}}, False),
        ({"settings": {"HTTPERROR_ALLOWED_CODES": [429]}}, False),
        ({"settings": {"HTTPERROR_ALLOWED_CODES": [429]}, "spider": {LIST: [404]}}, True),
        ({"settings": {"HTTPERROR_ALLOW_ALL": True}}, False),
        ({"settings": {"HTTPERROR_ALLOW_ALL": True}, "meta": {LIST: [404]}}, True),
        ({"settings": OWN}, False),
        ({"settings": OWN, "status": 503}, True),
        ({"settings": OWN, "status": 403}, True),  # of SEMAPHORE_BACKOFF_CODES alone
        ({"meta": {LIST: [403]}, "status": 403}, False),
        ({"meta": {ALL: True}, "status": 200}, True),  # by the user's own refusal check
        # Without a callback: a media pipeline's request, and a robots.txt.
        ({"meta": {ALL: True}, "callback": NO_CALLBACK}, True),
        ({"settings": OWN, "callback": NO_CALLBACK}, False),
        ({"settings": OWN, "spider": {LIST: [429]}, "meta": {SHARED_KEY: 1}}, True),
    ],
)
def test_what_the_project_handles_is_left_to_it(case: dict[str, Any], is_ours: bool) -> None:
    assert retries_by_us(**case) == (TIMES if is_ours else None)


@pytest.mark.parametrize(
    "case", [{"settings": {"RETRY_ENABLED": False}}, {"meta": {"dont_retry": True}}, {"times": 0}]
)
def test_what_the_project_retries_never_is_not_retried(case: dict[str, Any]) -> None:
    assert retries_by_us(**case) == 0


@pytest.mark.parametrize("where", ["meta", "spider", "settings"])
async def test_a_callback_gets_it_at_once(server: RedisServer, site: Site, where: str) -> None:
    """Though 429 is in `RETRY_HTTP_CODES`."""
    site.refusals = None
    request = Request(site.url("/busy/"), meta={LIST: [429]} if where == "meta" else {})
    spider = Tolerant if where == "spider" else Visits
    settings = LONG_PAUSE | ({"HTTPERROR_ALLOWED_CODES": [429]} if where == "settings" else {})
    crawl = Crawl(server, request, spider=spider, **settings)
    await crawl.finished()
    (response,) = crawl.spider.responses
    assert response.status == 429
    assert not {"dont_retry", "semaphore_refused_at"} & response.meta.keys()
    assert len(site.arrivals) == 1
    assert (crawl.stat("semaphore/backoffs"), crawl.stat("retry/count")) == (1, 0)
    assert crawl.stat("downloader/response_status_count/429") == 1


async def test_what_the_callback_yields_waits_for_the_pause(
    server: RedisServer, site: Site
) -> None:
    site.refusals, site.refusal_headers = 1, {"Retry-After": "1"}
    request = Request(site.url("/busy/"))
    settings: dict[str, Any] = {"ROBOTSTXT_OBEY": True, "SEMAPHORE_BACKOFF_MAX": 10}
    crawl = Crawl(server, request, spider=ChangesKey, **settings)
    await crawl.finished()
    assert [response.status for response in crawl.spider.responses] == [429, 200]
    _, first, second = site.visits
    assert (first.header("X-Key"), second.header("X-Key")) == ("", "another")
    assert second.begin >= site.refused_at[0] + 1


def test_the_log_says_once_who_retries(caplog: Log) -> None:
    caplog.set_level(logging.INFO, Retries.__module__)

    def said(**case: Any) -> str:
        caplog.clear()
        retries_by_us(**case)
        (info,) = (record for record in caplog.records if record.levelno == logging.INFO)
        assert info.message.startswith("This crawl's first refusal: 429 for <GET http://a/>. ")
        return "".join(record.message for record in caplog.records)

    assert "The add-on retries it, at most 7 times (SEMAPHORE_BACKOFF_TIMES)." in said()
    assert "It is not retried: SEMAPHORE_BACKOFF_TIMES is 0." in said(times=0)
    assert "RETRY_ENABLED is off" in said(settings={"RETRY_ENABLED": False})
    assert "its meta has dont_retry" in said(meta={"dont_retry": True})
    by_callback = said(spider={LIST: [429]}, settings=OWN)
    assert "As the spider's handle_httpstatus_list has 429, your callback gets it" in by_callback
    warning = "429 is not in your RETRY_HTTP_CODES: these pages are not retried."
    assert warning in said(settings=OWN)
    assert warning not in by_callback


def test_it_says_so_once_a_crawl(caplog: Log) -> None:
    caplog.set_level(logging.INFO, Retries.__module__)
    crawler = ready_crawler(Visits, **OWN)
    crawler.crawling = True
    retries = Retries(crawler, TIMES)
    for _ in range(3):
        retries_by_us(retries=retries)
    assert sorted(record.levelname for record in caplog.records) == ["INFO", "WARNING"]
