"""Other middlewares that end a request, before ours or between ours and the site."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import pytest
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response

from tests.support.crawls import Crawl, asyncio_test, both
from tests.support.servers import RedisServer
from tests.support.site import Site

BEFORE, AFTER = 940, 960  # ours is at 950

either_side = pytest.mark.parametrize("position", [BEFORE, AFTER], ids=["before", "after"])
outcomes = pytest.mark.parametrize("outcome", ["a response", "a request", "itself", "drop", "bug"])


class Interferer:
    """Does what a request's `meta` says, in the method it names; after that lets it pass."""

    def process_request(self, request: Request) -> Any:
        return self._interfere("process_request", request)

    def process_response(self, request: Request, response: Response) -> Any:
        return self._interfere("process_response", request) or response

    def process_exception(self, request: Request, exception: Exception) -> Any:  # noqa: ARG002
        return self._interfere("process_exception", request)

    def _interfere(self, method: str, request: Request) -> Any:
        if request.meta.get("in") != method:
            return None
        del request.meta["in"]
        match request.meta["outcome"]:
            case "a response":
                return Response(request.url)
            case "a request":
                return request.replace(url=request.meta["then"])
            case "itself":
                return request
            case "drop":
                raise IgnoreRequest
            case _:
                raise ValueError("a bug in a middleware")


def interfered(site: Site, path: str, method: str, outcome: str) -> list[Request]:
    """Two requests that the middleware interferes with."""
    meta = {"in": method, "outcome": outcome}
    return [
        Request(
            site.url(f"{path}?{name}"),
            meta={**meta, "then": site.url(f"/page/then-{name}")},
            dont_filter=True,  # the dupefilter would drop a request that comes back as it is
        )
        for name in "ab"
    ]


@both
@either_side
@outcomes
@pytest.mark.parametrize(
    ("method", "path"),
    [("process_request", "/page/"), ("process_response", "/page/"), ("process_exception", "/drop")],
)
@asyncio_test
async def test_permit_goes_back_whatever_another_middleware_does(
    server: RedisServer,
    site: Site,
    by: Mapping[str, Any],
    position: int,
    method: str,
    path: str,
    outcome: str,
) -> None:
    never_asked = position == BEFORE and method == "process_request"
    asked_again = outcome in ("a request", "itself")

    crawl = Crawl(
        server,
        *interfered(site, path, method, outcome),
        by=by,
        middlewares={Interferer: position},
        RETRY_ENABLED=False,
    )

    await crawl.gave_back(2 * (1 - never_asked + asked_again), site)
    errors = {"drop": IgnoreRequest, "bug": ValueError}
    if outcome in errors:
        assert [type(failure) for failure in crawl.spider.failures] == [errors[outcome]] * 2


class AsksAgain:
    """On its way back to the engine, asks the same site for another page."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    async def process_response(self, request: Request, response: Response) -> Any:
        await self._ask(request)
        return response

    async def process_exception(self, request: Request, exception: Exception) -> Any:  # noqa: ARG002
        await self._ask(request)

    async def _ask(self, request: Request) -> None:
        if "then" in request.meta:
            await self._crawler.engine.download_async(Request(request.meta["then"]))


@both
@pytest.mark.parametrize("outcome", ["a response", "bug"])
@asyncio_test
async def test_middleware_may_ask_the_same_site_while_a_response_passes(
    server: RedisServer, site: Site, by: Mapping[str, Any], outcome: str
) -> None:
    requests = interfered(site, "/page/", "process_request", outcome)

    crawl = Crawl(server, *requests, by=by, middlewares={Interferer: AFTER, AsksAgain: BEFORE})

    await crawl.gave_back(4, site)
    assert sorted(site.arrivals) == ["/page/then-a", "/page/then-b"]
