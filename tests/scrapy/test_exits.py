"""However a request ends, its permit is given back exactly once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request, signals
from scrapy.exceptions import (
    CannotResolveHostError,
    DownloadCancelledError,
    DownloadConnectionRefusedError,
    DownloadFailedError,
    DownloadTimeoutError,
    IgnoreRequest,
    NotSupported,
    ResponseDataLossError,
    StopDownload,
)
from scrapy.http import Response
from scrapy.spidermiddlewares.httperror import HttpError

from semaphore_middleware.errors import AcquireTimeoutError
from tests.support.crawls import TIMEOUT_S, Crawl, asyncio_test, both, until
from tests.support.servers import RedisServer, free_port
from tests.support.site import Site
from tests.support.visits import Visits


@both
@pytest.mark.parametrize(
    ("path", "requests", "error"),
    [
        pytest.param("/page/", 1, None, id="response"),
        pytest.param("/redirect/page/", 2, None, id="redirect"),
        pytest.param("/refresh/page/", 2, None, id="meta refresh"),
        pytest.param("/status/404", 1, HttpError, id="HTTP error"),
        pytest.param("/status/503", 2, HttpError, id="retries that end in an HTTP error"),
        pytest.param("/status-once/503", 2, None, id="retry that ends in a response"),
        pytest.param("/drop", 2, DownloadFailedError, id="connection dropped before the headers"),
        pytest.param("/drop-midway", 2, ResponseDataLossError, id="connection dropped midway"),
        pytest.param("/truncated", 2, ResponseDataLossError, id="truncated body"),
        pytest.param("/never", 2, DownloadTimeoutError, id="download timeout"),
        pytest.param("/half/", 2, DownloadTimeoutError, id="download timeout within the body"),
        pytest.param("/large", 1, DownloadCancelledError, id="body too large"),
    ],
)
@asyncio_test
async def test_permit_goes_back_after_whatever_a_site_does(
    server: RedisServer,
    site: Site,
    by: Mapping[str, Any],
    path: str,
    requests: int,
    error: type[Exception] | None,
) -> None:
    urls = [site.url(f"{path}?{name}") for name in "ab"]
    timeout = 0.3 if error is DownloadTimeoutError else TIMEOUT_S
    meta = {"download_timeout": timeout, "download_maxsize": 1000}

    crawl = Crawl(server, *(Request(url, meta=meta) for url in urls), by=by)

    await crawl.gave_back(2 * requests, site)
    assert len(site.arrivals) == 2 * requests
    assert [type(failure) for failure in crawl.spider.failures] == ([error] * 2 if error else [])
    assert len(crawl.spider.responses) == (0 if error else 2)


@both
@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("http://127.0.0.1:{free_port}/", DownloadConnectionRefusedError),
        ("http://nowhere.invalid/", CannotResolveHostError),  # a name that never exists: RFC 6761
    ],
    ids=["connection refused", "no such host"],
)
@asyncio_test
async def test_permit_goes_back_if_a_site_cannot_be_reached(
    server: RedisServer, site: Site, by: Mapping[str, Any], url: str, error: type[Exception]
) -> None:
    crawl = Crawl(server, Request(url.format(free_port=free_port())), by=by)

    await crawl.gave_back(2, site)
    assert [type(failure) for failure in crawl.spider.failures] == [error]


@asyncio_test
async def test_permit_goes_back_for_an_unknown_scheme(server: RedisServer, site: Site) -> None:
    crawl = Crawl(server, Request("gopher://127.0.0.1/"))

    await crawl.gave_back(1, site)
    assert [type(failure) for failure in crawl.spider.failures] == [NotSupported]


# robots.txt -------------------------------------------------------------------------------------


@both
@asyncio_test
async def test_robots_txt_takes_a_permit_and_forbidden_requests_none(
    server: RedisServer, site: Site, by: Mapping[str, Any]
) -> None:
    crawl = Crawl(server, Request(site.url("/forbidden")), by=by, ROBOTSTXT_OBEY=True)

    await crawl.gave_back(1, site)
    assert site.arrivals == ["/robots.txt"]
    assert [type(failure) for failure in crawl.spider.failures] == [IgnoreRequest]


@both
@asyncio_test
async def test_requests_get_permits_after_a_slow_robots_txt(
    server: RedisServer, site: Site, by: Mapping[str, Any]
) -> None:
    site.robots_is_slow = True
    requests = [Request(site.url(f"/page/{name}")) for name in "abc"]

    crawl = Crawl(server, *requests, by=by, ROBOTSTXT_OBEY=True)
    await site.until(lambda: site.now == 1)
    assert site.arrivals == ["/robots.txt"]
    site.let_go()

    await crawl.gave_back(4, site)
    assert sorted(site.arrivals[1:]) == ["/page/a", "/page/b", "/page/c"]


# What stops a download or a callback ------------------------------------------------------------


@pytest.mark.parametrize("signal", [signals.headers_received, signals.bytes_received])
@both
@asyncio_test
async def test_permit_goes_back_after_stop_download(
    server: RedisServer, site: Site, by: Mapping[str, Any], signal: object
) -> None:
    def stop() -> None:
        raise StopDownload(fail=False)

    crawl = Crawl(server, *(Request(site.url(f"/half/{name}")) for name in "abc"), by=by)
    crawl.crawler.signals.connect(stop, signal)

    await crawl.gave_back(3, site)
    assert len(crawl.spider.responses) == 3


@asyncio_test
async def test_permit_goes_back_before_a_callback_raises(server: RedisServer, site: Site) -> None:
    class Raising(Visits):
        async def parse(self, response: Response) -> Any:
            raise ValueError(response.url)

    requests = [Request(site.url(f"/page/{name}")) for name in "abc"]
    crawl = Crawl(server, *requests, spider=Raising)

    await crawl.gave_back(3, site)
    assert crawl.stat("spider_exceptions/ValueError") == 3


# What takes no permit, or another ---------------------------------------------------------------


@asyncio_test
async def test_semaphore_skip_data_and_file_urls_take_no_permit(
    server: RedisServer, site: Site, tmp_path: Path
) -> None:
    file = tmp_path / "page.txt"
    file.write_text("a page")
    skip = Request(site.url("/page/"), meta={"semaphore_skip": True})

    crawl = Crawl(server, Request("data:,a page"), Request(file.as_uri()), skip)

    await crawl.gave_back(0, site)
    assert len(crawl.spider.responses) == 3


@asyncio_test
async def test_unlimited_hosts_take_no_permit(server: RedisServer, site: Site) -> None:
    requests = [Request(site.url("/page/")), Request(site.url("/page/", host="localhost"))]

    crawl = Crawl(server, *requests, SEMAPHORE_LIMITS={"localhost": None})

    await crawl.gave_back(1, site)
    assert crawl.stat("semaphore/scope/127.0.0.1/acquired") == 1


@asyncio_test
async def test_cached_pages_take_no_permit(server: RedisServer, site: Site, tmp_path: Path) -> None:
    cache: dict[str, Any] = {"HTTPCACHE_ENABLED": True, "HTTPCACHE_DIR": str(tmp_path)}
    request = Request(site.url("/page/"))

    await Crawl(server, request, **cache).gave_back(1, site)
    again = Crawl(server, request, **cache)

    await again.gave_back(0, site)
    assert "cached" in again.spider.responses[0].flags
    assert len(site.arrivals) == 1


@asyncio_test
async def test_semaphore_scope_picks_the_semaphore(server: RedisServer, site: Site) -> None:
    by_name = Request(site.url("/slow/by-name"), meta={"semaphore_scope": "another"})

    crawl = Crawl(server, by_name, Request(site.url("/slow/by-host")), limit=2)
    await site.until(lambda: site.now == 2)
    held = server.members()
    site.let_go()

    await crawl.gave_back(2, site)
    assert held == {"127.0.0.1": (1, 0), "another": (1, 0)}


# No permit in time ------------------------------------------------------------------------------


@both
@asyncio_test
async def test_errback_gets_acquire_timeout_error(
    server: RedisServer, site: Site, by: Mapping[str, Any]
) -> None:
    requests = [Request(site.url(f"/slow/{name}"), priority=-ord(name)) for name in "ab"]
    crawl = Crawl(server, *requests, by=by, SEMAPHORE_ACQUIRE_TIMEOUT=0.1, RETRY_ENABLED=False)

    await site.until(lambda: site.now == 1)
    await until(lambda: crawl.spider.failures)
    site.let_go()

    await crawl.gave_back(1, site)
    assert [type(failure) for failure in crawl.spider.failures] == [AcquireTimeoutError]
    assert crawl.stat("semaphore/timeouts") == 1
    assert site.arrivals == ["/slow/a"]


@both
@asyncio_test
async def test_acquire_timeout_is_retried(
    server: RedisServer, site: Site, by: Mapping[str, Any]
) -> None:
    requests = [Request(site.url(f"/slow/{name}"), priority=-ord(name)) for name in "ab"]
    # Long beside what a busy machine takes: a permit that comes as the time is up counts, too.
    crawl = Crawl(server, *requests, by=by, SEMAPHORE_ACQUIRE_TIMEOUT=0.4, RETRY_TIMES=1000)

    await site.until(lambda: site.now == 1)
    await until(lambda: crawl.stat("semaphore/timeouts"))
    site.let_go()

    await crawl.gave_back(2, site)
    assert site.arrivals == ["/slow/a", "/slow/b"]
    assert crawl.spider.failures == []
