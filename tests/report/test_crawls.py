"""The history of a crawl counts each try of a request once, with its outcome."""

from __future__ import annotations

from scrapy import Request

from semaphore_middleware.operators.admin import Admin
from semaphore_middleware.report.history import Minute
from semaphore_middleware.report.keys import HistoryKeys
from semaphore_middleware.report.reader import read_history
from tests.scrapy.test_exits import crawl_with_a_cancelled_fetch
from tests.support.crawls import By, Crawl, both
from tests.support.servers import RedisServer
from tests.support.site import Site

HOST = "127.0.0.1"


async def history(server: RedisServer) -> Minute:
    async with Admin(server.url) as admin:
        return (await read_history(admin, HOST, 3600)).sum()


async def test_tries_that_a_site_refuses(server: RedisServer, site: Site) -> None:
    alone = Request(site.url("/status/503?n=1"))
    await Crawl(server, alone, RETRY_TIMES=0, SEMAPHORE_BACKOFF_TIMES=1).finished()
    done = await history(server)
    assert (done.requests, done.server_errors, done.silent) == (2, 2, 0)


async def test_answers_by_their_class_and_the_robots_txt_of_each_node(
    server: RedisServer, site: Site
) -> None:
    paths = ("/redirect/page/", "/status/404", "/forbidden")
    requests = [Request(site.url(path)) for path in paths]
    for _ in range(2):  # the second node finds the file in the server's cache
        await Crawl(server, *requests, ROBOTSTXT_OBEY=True).finished()
        async with Admin(server.url) as admin:
            (file,) = (await read_history(admin, HOST, 3600)).robotstxt
        assert (file.origin, file.status, file.text) == (site.url(""), 200, site.robots)
        with server.client() as client:
            client.delete(HistoryKeys("semaphore").of_files(HOST))
    done = await history(server)
    assert (done.ok, done.redirected, done.client_errors) == (3, 2, 2)  # one is the robots.txt


@both
async def test_a_request_without_a_response(server: RedisServer, site: Site, by: By) -> None:
    crawl = await crawl_with_a_cancelled_fetch(server, site, "/never", by)
    await crawl.finished(site)
    await Crawl(server, Request(site.url("/page/other"))).finished(site)
    done = await history(server)
    assert (done.requests, done.silent, done.ok) == (2, 1, 1)
