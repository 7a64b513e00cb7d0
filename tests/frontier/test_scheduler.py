"""What the scheduler tells the server, and when; the engine is the test's own."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as AwayError
from scrapy import Request
from scrapy.exceptions import DontCloseSpider

from semaphore_middleware.frontier import session as talk
from semaphore_middleware.frontier.client import SharedCrawl, Wish
from tests.crawler.conftest import crawl_keys
from tests.frontier.node import Call, joined, urls
from tests.support.crawls import asyncio_test, until
from tests.support.paths import REPOSITORY
from tests.support.servers import RedisServer
from tests.test_house import imports

# Done, and only when all is said ----------------------------------------------------------------


@asyncio_test
async def test_a_request_is_unfinished_until_the_engine_has_done_with_it(client: Redis) -> None:
    async with joined(client) as node:
        node.produce("http://a/")
        page = await node.begin()
        await node.finds_nothing()
        assert node.unfinished == 1
        node.finish(page)
        assert node.begin_now() is None
        await node.has_unfinished(0)


@asyncio_test
async def test_what_is_taken_ahead_is_in_hand_and_not_done(client: Redis) -> None:
    async with joined(client) as node:
        node.produce(*urls("a", 3))
        node.finish(await node.begin())
        node.produce("http://a/more")
        await node.has_unfinished(3)
        assert node.in_hand == node.ahead >= 2


@asyncio_test
async def test_nothing_is_done_before_its_links_are_on_the_server(
    client: Redis, calls: list[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(talk, "AT_ONCE", 2)
    async with joined(client) as node:
        node.produce("http://a/")
        page = await node.begin()
        calls.clear()
        node.produce(*urls("a", 5))
        node.finish(page)
        await until(lambda: sum(call.done for call in calls))
        assert [(call.entries, call.done) for call in calls] == [(2, 0), (2, 0), (1, 1)]


@asyncio_test
async def test_a_node_does_not_rest_while_scrapy_has_lost_sight_of_a_request(
    client: Redis,
) -> None:
    async with joined(client) as node:
        node.produce("http://a/")
        page = await node.begin()
        await node.finds_nothing()
        with pytest.raises(DontCloseSpider):
            node.scheduler._spider_idle()
        other = node.other()
        await until(lambda: not node.scheduler.talk._wants_rest)
        assert other.rests().seconds > 0  # it still works
        assert node.in_hand == 1
        node.finish(page)
        await node.idles()
        assert crawl_keys(client) == []


# Nothing waits for the server -------------------------------------------------------------------


@asyncio_test
async def test_what_one_callback_yields_goes_in_one_call(client: Redis, calls: list[Call]) -> None:
    async with joined(client) as node:
        node.produce(*urls("a", 300))
        await node.begin()
        assert [call.entries for call in calls] == [300]


@asyncio_test
async def test_the_engine_waits_for_no_answer(client: Redis, server: RedisServer) -> None:
    async with joined(client) as node:
        server.freeze()
        try:
            node.produce(*urls("a", 100))
            assert [node.begin_now() for _ in range(100)] == [None] * 100
            assert node.scheduler.has_pending_requests()
            await asyncio.sleep(0)  # the call is on its way
            assert node.begin_now() is None
        finally:
            server.thaw()
        assert await node.begin()
        assert node.unfinished == 100


@asyncio_test
async def test_a_server_that_is_away_is_not_asked_all_the_time(
    client: Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []

    async def away(*_: object) -> None:
        asked.append(1)
        raise AwayError

    async with joined(client) as node:
        with monkeypatch.context() as patch:
            patch.setattr(node.scheduler.crawl, "exchange", away)
            for url in urls("a", 100):
                node.produce(url)
                assert node.begin_now() is None
                await asyncio.sleep(0)
            assert len(asked) == 1
            assert caplog.text.count("is away") == 1
            assert node.scheduler.has_pending_requests()
        assert await node.begin()
        assert node.unfinished == 100


@asyncio_test
async def test_a_call_that_failed_is_said_again(
    client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even one that the server has heard, and whose answer was lost."""
    exchange = SharedCrawl.exchange

    async def lose_the_answer(*args: Any) -> None:
        monkeypatch.undo()
        await exchange(*args)
        raise AwayError

    monkeypatch.setattr(talk, "TRY_AGAIN", 0.01)
    async with joined(client) as node:
        monkeypatch.setattr(SharedCrawl, "exchange", lose_the_answer)
        node.produce(*urls("a", 20))
        seen = {(await node.begin()).url for _ in range(12)}
        await node.has_unfinished(20)
        assert len(seen) == 12
        assert node.dropped == []


@asyncio_test
async def test_another_node_s_links_wake_a_node_with_empty_hands(client: Redis) -> None:
    async with joined(client) as node:
        await node.finds_nothing()
        other = node.other()
        packed = node.scheduler.talk._packing.pack(other.new_id(), "a", Request("http://a/"))
        other.pushes(packed)
        assert (await node.begin()).url == "http://a/"


# Giving back ------------------------------------------------------------------------------------


@asyncio_test
async def test_what_is_in_hand_goes_back_to_where_it_was(client: Redis) -> None:
    async with joined(client) as node:
        node.produce(*urls("a", 30))
        node.produce("http://a/urgent", priority=5)
        first = await node.begin()
        assert first.url == "http://a/urgent"
        node.finish(first)
        await node.begin()
        node.produce("http://a/last")
    other = node.other()
    taken = other.takes(Wish(100, 100))
    order = [node.scheduler.talk._packing.unpack(each.data).url for each in taken]
    assert order == [*urls("a", 30), "http://a/last"]


@asyncio_test
async def test_a_node_that_was_taken_for_dead_leaves_to_others_what_it_had_ahead(
    client: Redis,
) -> None:
    async with joined(client) as node:
        node.produce(*urls("a", 6))
        begun = await node.begin()
        other = node.other()
        client.zadd(node.key("working"), {node.scheduler.crawl.node: 1})
        taken = [*other.takes(Wish(6, 6)), *other.takes(Wish(6, 6)), *other.takes(Wish(6, 6))]
        assert len(taken) == 6
        node.finish(begun)
        node.produce("http://a/link")
        await until(lambda: node.unfinished == 7)
        assert (await node.begin()).url == "http://a/link"
        other.rests(*taken)


@asyncio_test
async def test_a_node_leaves_even_if_the_server_does_not_answer(
    client: Redis, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with joined(client) as node:
        server.freeze()
        node.produce("http://a/")
    server.thaw()
    assert "Cannot leave the crawl" in caplog.text


# What is filtered, and what cannot be read ------------------------------------------------------


@asyncio_test
async def test_what_is_filtered_and_what_is_not(
    client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with joined(client) as node:
        node.produce("http://a/", "http://a/")
        page = await node.begin()
        await node.finds_nothing()
        assert node.dropped == ["http://a/"]
        assert "Filtered duplicate request <GET http://a/>" in caplog.text
        node.produce("http://a/", dont_filter=True)
        node.finish(page)
        assert await node.begin()
        await node.has_unfinished(1)
        assert client.scard(node.key("seen")) == 1
        assert node.scheduler.crawler.stats.get_value("scheduler/enqueued/redis") == 2
        assert node.scheduler.crawler.stats.get_value("scheduler/dequeued/redis") == 2


@asyncio_test
async def test_without_the_add_on_a_site_is_a_host_and_never_full(client: Redis) -> None:
    queue = "scrapy.pqueues.ScrapyPriorityQueue"
    async with joined(client, SCHEDULER_PRIORITY_QUEUE=queue) as node:
        node.produce("http://a:1/", "http://a:2/", "http://b/")
        await until(lambda: node.unfinished == 3)
        assert client.zrange(node.key("sites"), 0, -1) == [b"a", b"b"]
        assert {(await node.begin()).url for _ in range(3)}


def test_no_client_of_the_server_blocks() -> None:
    """A frozen server shows it where a test looks; this looks everywhere."""
    for path in (REPOSITORY / "crawler").glob("*.py"):
        blocking = {"redis.Redis", "redis.StrictRedis", "redis.client.Redis"}
        assert not blocking.intersection(imports(path)), path
        assert "scrapy_redis.connection" not in path.read_text("utf-8")
