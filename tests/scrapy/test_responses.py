"""What a response says of its site, and what becomes of a request that was refused."""

from __future__ import annotations

import asyncio
import errno
import math
import socket
import time
from typing import Any, cast

import pytest
from scrapy import Request
from scrapy.exceptions import (
    CannotResolveHostError,
    DownloadConnectionRefusedError,
    DownloadFailedError,
    DownloadTimeoutError,
)
from scrapy.http import Response
from scrapy.utils.test import get_crawler
from twisted.internet.error import ConnectBindError, NoRouteError

from semaphore_middleware import Permit
from semaphore_middleware.errors import PermitLostError
from semaphore_middleware.scrapy.judge import Judge
from semaphore_middleware.scrapy.responses import (
    REFUSALS_KEY,
    REFUSED_AT_KEY,
    ResponseClassifier,
)
from tests.support.nodes import in_asyncio
from tests.support.visits import Visits


class FakePermit:
    """Keeps what it is told of its request."""

    def __init__(self) -> None:
        self.granted_at = asyncio.get_running_loop().time()
        self.site_answered_at = -math.inf
        self.told: list[Any] = []

    def refused(self, retry_after: float) -> None:
        self.told.append(("refused", retry_after))

    def answered(self, latency: float | None, retry_after: float) -> None:
        self.told.append(("answered", latency, retry_after))

    def failed(self) -> None:
        self.told.append("failed")


def classifier(times: int = 2) -> ResponseClassifier:
    return ResponseClassifier(frozenset({429, 503}), times)


def recorded(
    status: int,
    request: Request,
    seen: ResponseClassifier | None = None,
    answered_ago: float = math.inf,
    **headers: Any,
) -> Any:
    """What the permit is told of a response. The site answered a request well that began so many
    seconds ago.
    """
    permit = FakePermit()
    permit.site_answered_at = permit.granted_at - answered_ago
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    response = Response("http://a/", status=status, headers=names)
    is_refused = (seen or classifier()).record_response(cast("Permit", permit), request, response)
    assert is_refused == (status in (429, 503))
    return permit.told


def refused_before(seconds: float) -> Request:
    """A request that its site has refused so long ago."""
    meta = {REFUSALS_KEY: 1, REFUSED_AT_KEY: time.time() - seconds}
    return Request("http://a/", meta=meta)


def retried(seen: ResponseClassifier, request: Request, status: int = 429) -> Request | None:
    """What is made of a request that was refused, or answered, with this status."""
    crawler = get_crawler(Visits)
    spider = Visits.from_crawler(crawler)
    return seen.retry_request(request, Response("http://a/", status=status), spider)


# Feedback ---------------------------------------------------------------------------------------


@in_asyncio
async def test_a_refusal_is_told_with_the_time_that_the_site_asks_for() -> None:
    request = Request("http://a/")
    assert recorded(429, request, Retry_After="7") == [("refused", 7)]
    assert recorded(429, request, RateLimit='"a";r=0;t=8') == [("refused", 8)]
    both = recorded(429, request, Retry_After="7", RateLimit='"a";r=0;t=8')
    assert both == [("refused", 7)], "Retry-After wins"
    assert recorded(429, request) == [("refused", 0)]


@pytest.mark.parametrize(
    ("status", "headers", "refused_ago", "answered_ago", "is_of_site"),
    [
        (503, {}, None, 1, True),  # the first time: nobody knows
        (503, {}, 5, 9, True),  # others were answered before it was refused, and not since
        (503, {}, 5, 1, False),
        (503, {"Retry_After": "1"}, 5, 1, True),
        (503, {"Retry_After": "0"}, 5, 1, True),
        (503, {"RateLimit": '"a";r=0;t=1'}, 5, 1, True),
        (429, {}, 5, 1, True),
        (503, {}, -3600, 1, True),  # by another node, with another clock
    ],
)
@in_asyncio
async def test_a_refusal_speaks_for_its_site_unless_the_site_s_other_answers_contradict(
    status: int,
    headers: dict[str, str],
    refused_ago: float | None,
    answered_ago: float,
    is_of_site: bool,
) -> None:
    request = Request("http://a/") if refused_ago is None else refused_before(refused_ago)
    seen = classifier()
    told = recorded(status, request, seen, answered_ago, **cast("Any", headers))
    assert (told[0][0] == "refused") == is_of_site
    assert (retried(seen, request, status) is not None) == is_of_site
    if not is_of_site:
        assert told == [("answered", None, 0)], "the site is there, and no more is known"
        kept = {REFUSALS_KEY, REFUSED_AT_KEY}
        assert kept <= request.meta.keys(), "for the copy that Scrapy's retry middleware makes"


@in_asyncio
async def test_what_a_user_leaves_in_the_meta_harms_nothing() -> None:
    request = Request("http://a/", meta={REFUSED_AT_KEY: "yesterday"})
    assert recorded(503, request, answered_ago=1) == [("refused", 0)]


@in_asyncio
async def test_of_a_usual_response_the_latency_is_told() -> None:
    measured = Request("http://a/", meta={"download_latency": 0.25})
    for status in (200, 302, 404):
        assert recorded(status, measured) == [("answered", 0.25, 0)]
    ((kind, latency, _),) = recorded(200, Request("http://a/"))  # by a handler that measures not
    assert kind == "answered"
    assert 0 <= latency < 60


@in_asyncio
async def test_a_site_that_allows_no_more_requests_is_heeded_whatever_its_status() -> None:
    request = Request("http://a/", meta={"download_latency": 0.25})
    none_left: Any = {"RateLimit": '"a";r=0;t=8'}
    assert recorded(200, request, **none_left) == [("answered", 0.25, 8)]
    assert recorded(500, request, **none_left) == [("answered", None, 8)]
    assert recorded(200, request, RateLimit='"a";r=1;t=8') == [("answered", 0.25, 0)]
    assert recorded(200, request, Retry_After="5", **none_left) == [("answered", 0.25, 5)]
    assert recorded(200, request, Retry_After="5") == [("answered", 0.25, 0)], "no refusal"


@in_asyncio
async def test_of_a_server_s_error_only_is_told_that_it_is_there() -> None:
    request = Request("http://a/", meta={"download_latency": 0.01})
    assert recorded(500, request) == [("answered", None, 0)]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (DownloadTimeoutError(), ["failed"]),
        (DownloadConnectionRefusedError(), ["failed"]),
        (TimeoutError(), ["failed"]),
        (ConnectionRefusedError(), ["failed"]),
        (CannotResolveHostError(), ["failed"]),
        (socket.gaierror(), ["failed"]),
        (NoRouteError(), ["failed"]),  # type: ignore[no-untyped-call]
        (OSError(errno.EHOSTUNREACH, "no route to host"), ["failed"]),
        (ConnectBindError(), []),  # type: ignore[no-untyped-call] # this machine's own trouble
        (OSError(errno.EMFILE, "too many open files"), []),
        (PermitLostError(), []),
        (DownloadFailedError(), []),
        (ValueError(), []),
    ],
)
@in_asyncio
async def test_only_a_site_that_does_not_respond_is_a_failure(
    error: Exception, told: list[str]
) -> None:
    permit = FakePermit()
    classifier().record_failure(cast("Permit", permit), Request("http://a/"), error)
    assert permit.told == told


@in_asyncio
async def test_behind_a_proxy_a_failure_may_be_the_proxy_s() -> None:
    permit = FakePermit()
    request = Request("http://a/", meta={"proxy": "http://b:3128"})
    classifier().record_failure(cast("Permit", permit), request, DownloadTimeoutError())
    assert permit.told == []


# Retries ----------------------------------------------------------------------------------------


@in_asyncio
async def test_a_refused_request_is_made_again_so_often_and_past_the_dupefilter() -> None:
    seen, request = classifier(times=2), Request("http://a/", meta={"retry_times": 1})
    refused_at = []
    for refusals in (1, 2):
        recorded(429, request, seen)
        again = retried(seen, request)
        assert again is not None
        assert again is not request
        assert again.dont_filter
        assert (again.meta[REFUSALS_KEY], again.meta["retry_times"]) == (refusals, 1)
        refused_at.append(again.meta[REFUSED_AT_KEY])
        request = again
    assert refused_at[0] == refused_at[1], "when it was refused first"
    recorded(429, request, seen)
    assert retried(seen, request) is None
    assert request.meta["dont_retry"], "Scrapy's middleware must not begin anew"


@in_asyncio
async def test_a_retry_is_counted_and_logged_as_scrapy_does_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", "semaphore_middleware")
    seen, request = classifier(times=1), Request("http://a/b")
    crawler = get_crawler(Visits, {"RETRY_PRIORITY_ADJUST": -7})
    spider, refusal = Visits.from_crawler(crawler), Response("http://a/b", status=429)
    recorded(429, request, seen)
    again = seen.retry_request(request, refusal, spider)
    assert again is not None
    assert again.priority == -7, "others are asked first"
    recorded(429, again, seen)
    assert seen.retry_request(again, refusal, spider) is None
    reason = "429 Unknown Status"
    assert caplog.messages == [
        f"Retrying <GET http://a/b> (failed 1 times): {reason}",
        f"Gave up retrying <GET http://a/b> (failed 2 times): {reason}",
    ]
    assert crawler.stats is not None
    assert crawler.stats.get_stats() == {
        "retry/count": 1,
        f"retry/reason_count/{reason}": 1,
        "retry/max_reached": 1,
    }


@in_asyncio
async def test_a_retry_takes_no_response_of_the_http_cache_along() -> None:
    """RFC2616Policy keeps there what is too old, until the response comes."""
    kept = {"cached_response": Response("http://a/"), "mine": 1}
    seen, request = classifier(), Request("http://a/", meta=kept)
    recorded(429, request, seen)
    again = retried(seen, request)
    assert again is not None
    assert again.meta.keys() == {"mine", REFUSALS_KEY, REFUSED_AT_KEY}


@in_asyncio
async def test_a_request_that_is_not_to_be_retried_is_not() -> None:
    request, seen = Request("http://a/", meta={"dont_retry": True}), classifier()
    recorded(429, request, seen)
    assert retried(seen, request) is None
    seen.forget(request)
    assert request.meta == {"dont_retry": True}, "it is the user's"


@in_asyncio
async def test_what_a_spider_makes_of_a_request_that_was_given_up_starts_afresh() -> None:
    seen, request = classifier(times=0), Request("http://a/", meta={"mine": 1})
    recorded(429, request, seen)
    assert retried(seen, request) is None
    request.meta.update({REFUSALS_KEY: 3, REFUSED_AT_KEY: 4.0})
    seen.forget(request)
    assert request.meta == {"mine": 1}
    seen.forget(request)


@in_asyncio
async def test_what_a_spider_makes_of_a_request_that_was_served_starts_afresh() -> None:
    seen, request = classifier(), refused_before(5)
    recorded(200, request, seen)
    assert retried(seen, request, 200) is None
    assert request.meta == {}


def test_a_refusal_from_a_cache_does_not_count() -> None:
    assert retried(classifier(), Request("http://a/")) is None


# The user's judge -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdict", "told"),
    [
        (True, ("refused", 0)),
        (30, ("refused", 30)),
        (False, ("answered", 0.25, 0)),
    ],
)
@in_asyncio
async def test_what_the_judge_says_of_a_page_counts_as_a_refusal(verdict: Any, told: Any) -> None:
    judge = Judge(lambda _: verdict, get_crawler(Visits))
    seen = ResponseClassifier(frozenset(), 2, judge)
    request = Request("http://a/", meta={"download_latency": 0.25})
    permit = FakePermit()
    response = Response("http://a/")
    is_refused = seen.record_response(cast("Permit", permit), request, response)
    assert (permit.told, is_refused) == ([told], verdict is not False)
    assert (retried(seen, request, 200) is not None) == (verdict is not False)
