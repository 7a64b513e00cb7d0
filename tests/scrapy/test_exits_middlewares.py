"""Other middlewares that end a request, before ours or between ours and the site."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from scrapy import Request
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response

from tests.scrapy.hosts import more_hosts
from tests.support.crawls import By, Crawl, both
from tests.support.servers import RedisServer
from tests.support.site import Site

BEFORE, AFTER = 940, 960  # ours is at 950
PATHS = {"process_request": "/page/", "process_response": "/page/", "process_exception": "/drop"}
OUTCOMES = ["a response", "a request", "itself", "drop", "bug"]


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


def interfered(site: Site, host: str, method: str, outcome: str) -> list[Request]:
    """Two requests that the middleware interferes with."""
    meta = {"in": method, "outcome": outcome}
    return [
        Request(
            site.url(f"{PATHS[method]}?{name}", host),
            meta={**meta, "then": site.url(f"/page/then-{name}", host)},
            dont_filter=True,  # the dupefilter would drop a request that comes back as it is
        )
        for name in "ab"
    ]


@both
@pytest.mark.parametrize("position", [BEFORE, AFTER], ids=["before", "after"])
async def test_each_interference(server: RedisServer, site: Site, by: By, position: int) -> None:
    cases = [(method, outcome) for method in PATHS for outcome in OUTCOMES]
    hosts = await more_hosts(site, len(cases))
    requests = [
        request
        for host, case in zip(hosts, cases, strict=True)
        for request in interfered(site, host, *case)
    ]
    crawl = Crawl(server, *requests, by=by, middlewares={Interferer: position}, RETRY_ENABLED=False)
    expected = {}
    for host, (method, outcome) in zip(hosts, cases, strict=True):
        never_asked = position == BEFORE and method == "process_request"
        asked_again = outcome in ("a request", "itself")
        expected[host] = 2 * (1 - never_asked + asked_again)
    await crawl.gave_back(sum(expected.values()), site)
    for host, permits in expected.items():
        assert crawl.stat(f"semaphore/scope/{host}/acquired") == permits, host
    errors = Counter(type(failure) for failure in crawl.spider.failures)
    assert (errors[IgnoreRequest], errors[ValueError]) == (2 * len(PATHS),) * 2
