"""Whether a spider's `start` is a list of requests, which each node makes, or a feed."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from scrapy import Request

from semaphore_middleware.shared_crawl.spider_start import SpiderStart
from tests.support.simulated import in_simulated_time


@pytest.mark.parametrize(("seconds", "is_feed"), [(0.9, False), (1.0, True)])
async def test_a_start_is_a_feed_once_it_has_waited_for_a_second(
    seconds: float, is_feed: bool
) -> None:
    async def requests() -> AsyncIterator[Request]:
        yield Request("http://a/", dont_filter=True)
        await asyncio.Event().wait()

    start = SpiderStart(once=None)
    watched = start.watched(requests())
    first = await anext(watched)
    second = asyncio.ensure_future(anext(watched))
    await asyncio.sleep(0)
    now = asyncio.get_running_loop().time()
    start.on_idle(now)
    start.on_idle(now + seconds)
    assert start.is_listed(first) == (not is_feed)
    second.cancel()


@in_simulated_time
async def test_a_start_that_has_waited_for_a_second_is_a_feed_from_its_next_request_on() -> None:
    queue: asyncio.Queue[Request] = asyncio.Queue()

    async def requests() -> AsyncIterator[Request]:
        yield await queue.get()

    start = SpiderStart(once=None)
    reading = asyncio.ensure_future(anext(start.watched(requests())))
    await asyncio.sleep(0)
    start.on_idle(asyncio.get_running_loop().time())
    await asyncio.sleep(1.1)
    queue.put_nowait(Request("http://a/", dont_filter=True))
    assert not start.is_listed(await reading)
