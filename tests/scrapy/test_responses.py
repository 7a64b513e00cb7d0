"""What a response says of its site; `Retry-After` in all the ways that sites write it."""

from __future__ import annotations

import asyncio
from email.utils import formatdate
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

from semaphore_middleware import Permit
from semaphore_middleware.scrapy.responses import ResponseClassifier, retry_after
from tests.support.nodes import in_asyncio

NOW = 1_800_000_000
REFUSALS = "semaphore_refusals"


class FakePermit:
    """Keeps what it is told of its request."""

    def __init__(self) -> None:
        self.granted_at = asyncio.get_running_loop().time()
        self.told: list[Any] = []

    def refused(self, retry_after: float) -> None:
        self.told.append(("refused", retry_after))

    def answered(self, latency: float) -> None:
        self.told.append(("answered", latency))

    def failed(self) -> None:
        self.told.append("failed")


def classifier(times: int = 2) -> ResponseClassifier:
    return ResponseClassifier(frozenset({429}), times)


def recorded(status: int, request: Request, **headers: str) -> Any:
    permit = FakePermit()
    response = Response("http://a/", status=status, headers=headers)
    seen = classifier()
    seen.record_response(cast("Permit", permit), request, response)
    assert seen.was_refused(request) == (status == 429)
    return permit.told


# Feedback ---------------------------------------------------------------------------------------


@in_asyncio
async def test_a_refusal_is_told_with_the_time_that_the_site_asks_for() -> None:
    request = Request("http://a/")
    assert recorded(429, request, **{"Retry-After": "7"}) == [("refused", 7)]
    assert recorded(429, request) == [("refused", 0)]


@in_asyncio
async def test_of_a_usual_response_the_latency_is_told() -> None:
    measured = Request("http://a/", meta={"download_latency": 0.25})
    for status in (200, 302, 404):
        assert recorded(status, measured) == [("answered", 0.25)]
    ((kind, latency),) = recorded(200, Request("http://a/"))  # by a handler that measures nothing
    assert kind == "answered"
    assert 0 <= latency < 60


@in_asyncio
async def test_of_a_server_s_error_nothing_is_told() -> None:
    assert recorded(500, Request("http://a/", meta={"download_latency": 0.01})) == []


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (DownloadTimeoutError(), ["failed"]),
        (DownloadConnectionRefusedError(), ["failed"]),
        (TimeoutError(), ["failed"]),
        (ConnectionRefusedError(), ["failed"]),
        (CannotResolveHostError(), []),
        (DownloadFailedError(), []),
        (ValueError(), []),
    ],
)
@in_asyncio
async def test_only_a_site_that_does_not_respond_is_a_failure(
    error: Exception, told: list[str]
) -> None:
    permit = FakePermit()
    classifier().record_failure(cast("Permit", permit), error)
    assert permit.told == told


# Retries ----------------------------------------------------------------------------------------


def test_a_refused_request_is_made_again_so_often_and_past_the_dupefilter() -> None:
    seen, request = classifier(times=2), Request("http://a/")
    for refusals in (1, 2):
        again = seen.retry_request(request)
        assert again is not None
        assert again is not request
        assert again.dont_filter
        assert again.meta[REFUSALS] == refusals
        request = again
    assert seen.retry_request(request) is None
    assert request.meta["dont_retry"], "Scrapy's middleware must not begin anew"


def test_a_request_that_is_not_to_be_retried_is_not() -> None:
    request = Request("http://a/", meta={"dont_retry": True})
    seen = classifier()
    assert seen.retry_request(request) is None
    seen.forget(request)
    assert request.meta == {"dont_retry": True}, "it is the user's"


def test_what_a_spider_makes_of_a_request_that_was_given_up_starts_afresh() -> None:
    seen, request = classifier(times=0), Request("http://a/", meta={"mine": 1})
    assert seen.retry_request(request) is None
    request.meta[REFUSALS] = 3
    seen.forget(request)
    assert request.meta == {"mine": 1}
    seen.forget(request)


# Retry-After ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("30", 30),
        (" 0 ", 0),
        ("-5", 0),
        ("1.5", 0),
        ("soon", 0),
        ("", 0),
        ("²", 0),
        ("9" * 5000, float("inf")),
        (formatdate(NOW + 90, usegmt=True), 90),
        (formatdate(NOW - 90, usegmt=True), 0),
        ("Fri, 99 Foo 2026 00:00:00 GMT", 0),
        ("Wed, 01 Jan 99999999999 00:00:00 GMT", 0),
    ],
)
def test_retry_after(value: str, seconds: float) -> None:
    headers = {"Retry-After": value.encode("latin-1"), "Date": formatdate(NOW, usegmt=True)}
    assert retry_after(Response("http://a/", headers=headers)) == seconds


def test_retry_after_date_without_a_date_header() -> None:
    assert retry_after(Response("http://a/", headers={"Retry-After": formatdate(0)})) == 0
    far = Response("http://a/", headers={"Retry-After": formatdate(2**33)})
    assert retry_after(far) > 10**9
    assert retry_after(Response("http://a/")) == 0
