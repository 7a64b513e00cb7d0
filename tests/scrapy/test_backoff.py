"""Crawls of a site that refuses lose no request."""

import logging
from typing import Any

from scrapy import Request
from scrapy.http import Response
from scrapy.spidermiddlewares.httperror import HttpError

from lab.demo.judging import Visit
from tests.support.crawls import Crawl, Log, pages
from tests.support.servers import RedisServer
from tests.support.site import Site


def refusals_of(crawl: Crawl) -> list[Response]:
    """Responses that were refusals to the end, as errbacks get them."""
    errors = crawl.spider.failures
    return [error.response for error in errors if isinstance(error, HttpError)]


async def test_none_starts_before_retry_after(server: RedisServer, site: Site) -> None:
    site.refusals, site.refusal_headers = 1, {"Retry-After": "1"}
    crawl = Crawl(server, *pages(site, 4, "/busy/"), limit=1, SEMAPHORE_BACKOFF_MAX=10)
    await crawl.finished()
    assert len(crawl.spider.responses) == 4
    assert len(site.arrivals) == 5
    assert site.times[1] >= site.refused_at[0] + 1
    assert (crawl.stat("semaphore/refused"), crawl.stat("semaphore/backoffs")) == (1, 1)


async def test_retries_of_refusals_are_no_others(server: RedisServer, site: Site) -> None:
    site.refusals, site.refusal_headers = 5, {"Set-Cookie": "passed=yes"}
    settings: dict[str, Any] = {"RETRY_TIMES": 0, "SEMAPHORE_BACKOFF_TIMES": 5}
    crawl = Crawl(server, *pages(site, 3, "/busy/"), limit=2, **settings)
    await crawl.finished()
    assert [response.status for response in crawl.spider.responses] == [200] * 3
    assert all("semaphore_refusals" not in response.meta for response in crawl.spider.responses)
    assert crawl.stat("semaphore/refused") == 5
    assert crawl.stat("downloader/response_status_count/429") == 5
    assert crawl.stat("retry/count") == crawl.stat("retry/reason_count/429 Unknown Status") == 5
    assert crawl.stat("retry/max_reached") == 0
    assert "passed=yes" in site.visits[-1].header("Cookie"), "by which the site may know us"
    assert server.members() == {}


async def test_what_is_refused_too_often(server: RedisServer, site: Site, caplog: Log) -> None:
    caplog.set_level(logging.INFO)
    site.refusals = None
    settings: dict[str, Any] = {"RETRY_TIMES": 2, "SEMAPHORE_BACKOFF_TIMES": 3}
    crawl = Crawl(server, *pages(site, 1, "/busy/"), **settings)
    await crawl.finished()
    (response,) = refusals_of(crawl)
    assert response.status == 429
    assert not {"dont_retry", "semaphore_refusals"} & response.meta.keys()
    assert len(site.arrivals) == 1 + 3
    said = [line for line in caplog.messages if "all nodes pause there" in line]
    told = f"127.0.0.1 answered 429 to GET {site.arrivals[0]}"
    assert said[0] == f"{told} (try 1 of 4): all nodes pause there for 0.01 s."
    assert said[1] == f"{told} (try 2 of 4): all nodes pause there for 0.02 s."


async def test_backoff_codes_can_be_chosen(server: RedisServer, site: Site) -> None:
    visited = [Request(site.url(path)) for path in ("/status/503", "/status-once/418")]
    crawl = Crawl(server, *visited, SEMAPHORE_BACKOFF_CODES=[418])
    await crawl.finished()
    assert crawl.stat("semaphore/refused") == 1
    of = "retry/reason_count"
    assert crawl.stat(f"{of}/503 Service Unavailable") == 1, "by Scrapy"
    assert crawl.stat(f"{of}/418 I'm a teapot") == 1


async def test_a_page_that_always_fails(server: RedisServer, site: Site) -> None:
    bad = Request(site.url("/status/503"), priority=1)  # first of all
    settings: dict[str, Any] = {"RETRY_TIMES": 0, "SEMAPHORE_BACKOFF_TIMES": 4}
    # With two permits all good pages may come before the bad one's first answer.
    crawl = Crawl(server, bad, *pages(site, 9), limit=1, **settings)
    await crawl.finished()
    of_page = [visit for visit in site.visits if visit.path == "/status/503"]
    assert len(of_page) == 1 + settings["SEMAPHORE_BACKOFF_TIMES"]
    assert crawl.stat("semaphore/backoffs") == len(of_page)
    assert crawl.stat("downloader/response_status_count/503") == len(of_page)
    assert crawl.stat("retry/count") == len(of_page) - 1
    assert len(crawl.spider.responses) == 9
    metas = [response.meta.keys() for response in refusals_of(crawl)]
    assert len(metas) == 1
    assert not any({"semaphore_refusals", "semaphore_refused_at"} & meta for meta in metas)


class RefusesTwice(Site):
    """Answers each page /twice/403/... with that status two times."""

    def _response(self, visit: Visit, kind: str, rest: str, query: str) -> bytes:
        if kind != "twice":
            return super()._response(visit, kind, rest, query)
        status = rest.partition("/")[0] if self.arrivals.count(visit.path) <= 2 else "200"
        return f"HTTP/1.1 {status} .\r\nContent-Length: 0\r\n\r\n".encode()


async def test_no_page_is_lost_at_its_second_refusal(server: RedisServer) -> None:
    """Even if others are answered meanwhile, and Scrapy does not retry this status."""
    site = RefusesTwice()
    await site.start()
    codes = [403, 509, 520]
    refused = [Request(site.url(f"/twice/{code}/{n}"), priority=1) for code in codes for n in "ab"]
    settings: dict[str, Any] = {"SEMAPHORE_BACKOFF_CODES": codes, "SEMAPHORE_BACKOFF_TIMES": 2}
    crawl = Crawl(server, *refused, *pages(site, 6), RETRY_TIMES=0, **settings)
    await crawl.finished()
    await site.stop()
    assert [response.status for response in crawl.spider.responses] == [200] * 12
    assert crawl.stat("retry/count") == 12


def is_captcha(response: Response) -> bool:
    """A user's refusal check."""
    return response.url.endswith("/page/captcha") and "A page" in response.text


async def test_a_page_that_the_refusal_check_refuses(server: RedisServer, site: Site) -> None:
    visited = [Request(site.url(path)) for path in ("/page/captcha", "/page/0", "/large")]
    when = f"{__name__}.is_captcha"
    crawl = Crawl(server, *visited, SEMAPHORE_BACKOFF_WHEN=when, SEMAPHORE_BACKOFF_TIMES=1)
    await crawl.finished()
    assert site.arrivals.count("/page/captcha") == 2
    assert len(crawl.spider.responses) == 3
    assert crawl.stat("semaphore/refused") == 2


async def test_refusals_without_a_limit_are_left_to_scrapy(server: RedisServer, site: Site) -> None:
    site.refusals = None
    free = Request(site.url("/busy/a"), meta={"semaphore_skip": True})
    limits = {"localhost": None}
    unlimited = Request(site.url("/busy/b", "localhost"))
    crawl = Crawl(server, free, unlimited, SEMAPHORE_LIMITS=limits)
    await crawl.finished()
    assert crawl.stat("semaphore/refused") == 0
    assert crawl.stat("retry/count") == 2
