"""The add-on's downloader: when it wants no more requests, and what it does around each."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import Request
from scrapy.http import Response

from tests.support.nodes import in_asyncio

REQUEST = Request("http://a.example/")


def downloader(active: int, **parts: Any) -> Any:
    """A downloader with these requests, and with these parts of a throttler."""
    # Not at the top: Scrapy's downloader imports the reactor's parts.
    from semaphore_middleware.scrapy.downloader import SemaphoreDownloader

    made: Any = SemaphoreDownloader.__new__(SemaphoreDownloader)
    made.active = {Request(f"http://a.example/{n}") for n in range(active)}
    made.total_concurrency = 4
    made._throttler = SimpleNamespace(**parts)
    return made


@pytest.mark.parametrize(
    ("active", "exempt", "is_full", "is_short", "wants_none"),
    [
        (3, 0, False, False, False),
        (4, 0, False, False, True),
        (9, 6, False, False, False),
        (9, 5, False, False, True),
        (0, 0, True, False, True),
        (0, 0, False, True, True),
    ],
)
def test_it_wants_no_more_than_concurrent_requests_but_for_those_that_wait(
    active: int, exempt: int, is_full: bool, is_short: bool, wants_none: bool
) -> None:
    made = downloader(
        active,
        backpressure=SimpleNamespace(exempt_from_concurrency=exempt, is_full=is_full),
        local_concurrency=SimpleNamespace(is_short=is_short),
    )
    assert made.needs_backout() is wants_none
    made.total_concurrency = 0
    assert made.needs_backout() is (is_full or is_short)


def test_after_a_fetch_nothing_is_left_of_it() -> None:
    left: list[Request] = []
    made = downloader(
        0,
        backpressure=SimpleNamespace(leave=left.append),
        responses=SimpleNamespace(forget=left.append),
        fetched=lambda result, request: (result, request),
    )
    assert made._fetched("result", REQUEST) == ("result", REQUEST)
    assert left == [REQUEST, REQUEST]


@in_asyncio
async def test_each_transfer_is_run_by_the_throttler() -> None:
    from semaphore_middleware.scrapy.downloader import ThrottledHandlers

    async def download(request: Request) -> Response:
        return Response(request.url)

    async def transfer(request: Request, download: Any) -> Response:
        return Response(f"{(await download(request)).url}by-the-throttler")

    handlers: Any = SimpleNamespace(download_request_async=download, other=1)
    throttler: Any = SimpleNamespace(transfer=transfer)
    throttled = ThrottledHandlers(handlers, throttler)
    response = await throttled.download_request_async(REQUEST)
    assert response.url == "http://a.example/by-the-throttler"
    assert throttled.other == 1
