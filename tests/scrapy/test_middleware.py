"""The downloader middleware by itself: when it asks for permits, and when it gives them back."""

from __future__ import annotations

from typing import Any, cast

import pytest
from scrapy import Request
from scrapy.exceptions import NotConfigured
from scrapy.http import Response
from scrapy.utils.test import get_crawler

from semaphore_middleware.middleware import SemaphoreMiddleware
from semaphore_middleware.scrapy.throttler import Throttler
from tests.support.nodes import in_asyncio

REQUEST = Request("http://a/")
RESPONSE = Response("http://a/")
AGAIN = Request("http://a/", dont_filter=True)


class FakeThrottler:
    """Keeps what it is asked to do."""

    def __init__(self, again: Request | None = None) -> None:
        self.calls: list[tuple[str, Request]] = []
        self._again = again

    async def acquire_for(self, request: Request) -> Request | None:
        self.calls.append(("acquire", request))
        return self._again

    def release_for(self, request: Request) -> None:
        self.calls.append(("release", request))

    def retry_request(self, request: Request, response: Response) -> Request | None:
        assert response is RESPONSE
        self.calls.append(("retry", request))
        return self._again


def made(throttler: FakeThrottler) -> SemaphoreMiddleware:
    return SemaphoreMiddleware(cast("Throttler", throttler))


@pytest.mark.parametrize("again", [None, AGAIN])
@in_asyncio
async def test_a_request_waits_for_its_permit_and_may_go_back_to_the_scheduler(
    again: Request | None,
) -> None:
    throttler = FakeThrottler(again)
    assert await made(throttler).process_request(REQUEST) is again
    assert throttler.calls == [("acquire", REQUEST)]


def test_the_permit_goes_back_before_other_middlewares_see_the_response() -> None:
    throttler = FakeThrottler()
    assert made(throttler).process_response(REQUEST, RESPONSE) is RESPONSE
    assert throttler.calls == [("release", REQUEST), ("retry", REQUEST)]


def test_a_refused_request_is_made_again() -> None:
    assert made(FakeThrottler(AGAIN)).process_response(REQUEST, RESPONSE) is AGAIN


def test_the_permit_goes_back_before_other_middlewares_see_an_exception() -> None:
    throttler = FakeThrottler()
    made(throttler).process_exception(REQUEST, ValueError())
    assert throttler.calls == [("release", REQUEST)]


def test_it_can_be_switched_off() -> None:
    settings: dict[str, Any] = {"SEMAPHORE_ENABLED": False, "SEMAPHORE_REDIS_URL": "redis://a"}
    with pytest.raises(NotConfigured):
        SemaphoreMiddleware.from_crawler(get_crawler(settings_dict=settings))
