"""What the scheduler sends to the server, and when."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from scrapy import Request
from scrapy.exceptions import DontCloseSpider, IgnoreRequest
from scrapy.http import Response

from semaphore_middleware.errors import ServerUnreachableError
from semaphore_middleware.frontier import session
from semaphore_middleware.frontier.client import CrawlClient, Demand
from semaphore_middleware.redis.connection import CallTimeoutError
from tests.frontier.node import Call, failed, joined, urls
from tests.frontier.verbs import die
from tests.support.crawls import asyncio_test, until
from tests.support.frontier import crawl_keys
from tests.support.paths import PACKAGE, REPOSITORY
from tests.support.servers import RedisServer
from tests.test_house import imports


def count_looks(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """An entry for each time that nodes look whether their server still is the master."""
    looks: list[None] = []
    look = CrawlClient.look

    async def counted(crawl: CrawlClient) -> None:
        looks.append(None)
        await look(crawl)

    monkeypatch.setattr(CrawlClient, "look", counted)
    return looks


async def start_urls(count: int) -> AsyncIterator[str]:
    for url in urls("a", count):
        yield url


# Finished, and only then ----------------------------------------------------------------------


@asyncio_test
async def test_a_request_is_unfinished_while_the_engine_has_it_in_progress(client: Redis) -> None:
    async with joined(client) as node:
        node.enqueue("http://a/")
        page = await node.start()
        await node.finds_nothing()
        assert node.unfinished == 1
        node.finish(page)
        assert node.start_now() is None
        await node.has_unfinished(0)


@asyncio_test
async def test_a_prefetched_request_is_taken_and_unfinished(client: Redis) -> None:
    async with joined(client) as node:
        node.enqueue(*urls("a", 3))
        node.finish(await node.start())
        node.enqueue("http://a/more")
        await node.has_unfinished(3)
        assert node.taken == node.ready >= 2


@asyncio_test
async def test_a_request_is_finished_after_its_links_are_queued(
    client: Redis, calls: list[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MAX_NEW_REQUESTS", 2)
    async with joined(client) as node:
        node.enqueue("http://a/")
        page = await node.start()
        calls.clear()
        node.enqueue(*urls("a", 5))
        node.finish(page)
        await until(lambda: sum(call.finished for call in calls))
        assert [(call.new, call.finished) for call in calls] == [(2, 0), (2, 0), (1, 1)]


@asyncio_test
async def test_a_page_counts_whatever_request_its_response_names(client: Redis) -> None:
    async with joined(client) as node:
        node.enqueue("http://a/page", "http://a/moved", "http://a/failed")
        page, moved, failed = [await node.start() for _ in range(3)]
        other = page.replace(headers={"X": "1"})
        node.fetch(page, Response(page.url, request=other))
        node.fetch(moved, other)
        node.finish(page, moved, failed)
        assert node.start_now() is None
        await node.has_unfinished(0)
        assert client.hget(node.key("run"), "pages") == b"1"


@asyncio_test
async def test_a_request_is_finished_after_its_items_are_in_the_feeds_files(
    client: Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    written = []
    sync = CrawlClient.sync

    async def look(crawl: CrawlClient, new: Any, finished: Any, *more: Any) -> Any:
        if finished:
            written.append((tmp_path / "feed").read_text())
        return await sync(crawl, new, finished, *more)

    monkeypatch.setattr(CrawlClient, "sync", look)
    async with joined(client) as node:
        with (tmp_path / "feed").open("w") as node.feed.file:
            node.enqueue("http://a/")
            page = await node.start()
            node.feed.file.write("item")
            node.finish(page)
            assert node.start_now() is None
            await node.has_unfinished(0)
    assert written == ["item"]


@asyncio_test
async def test_a_node_has_one_request_at_a_time_that_others_have_died_with(client: Redis) -> None:
    async with joined(client) as node:
        node.enqueue(*urls("a", 3))
        await node.has_unfinished(3)
        dead = node.other()
        while dead.takes(Demand(8, 8)):
            pass
        die(dead)
        for left in (3, 2, 1):
            suspect = await node.start()
            await node.finds_nothing()
            assert (node.taken, node.unfinished) == (1, left)
            node.finish(suspect)
        await node.idles()


@asyncio_test
async def test_a_node_that_works_renews_its_lease(
    client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = count_looks(monkeypatch)
    async with joined(client, CRAWL_LEASE=0.5) as node:
        node.enqueue("http://a/")
        page = await node.start()
        await node.finds_nothing()
        lease_end, begin = node.lease_end, len(looks)
        await until(lambda: len(looks) > begin + 3)  # as often as it renews its lease
        assert node.lease_end > lease_end
        node.finish(page)


@asyncio_test
async def test_a_node_is_not_idle_with_a_request_between_downloader_and_spider(
    client: Redis,
) -> None:
    async with joined(client) as node:
        node.enqueue("http://a/")
        page = await node.start()
        await node.finds_nothing()
        with pytest.raises(DontCloseSpider):
            node.scheduler._spider_idle()
        other = node.other()
        await until(lambda: not node.scheduler.session._wants_idle)
        assert other.idles().wait_s > 0  # it still works
        assert node.taken == 1
        node.finish(page)
        await node.idles()
        assert crawl_keys(client) == []


# Nothing waits for the server -------------------------------------------------------------------


@asyncio_test
async def test_the_requests_of_one_callback_are_sent_in_one_call(
    client: Redis, calls: list[Call]
) -> None:
    async with joined(client) as node:
        node.enqueue(*urls("a", 300))
        await node.start()
        assert [call.new for call in calls] == [300]


@asyncio_test
async def test_a_call_has_at_most_so_many_bytes_or_one_request(
    client: Redis, calls: list[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with joined(client) as node:
        encoded = node.scheduler.session._codec.encode(b"", Request("http://a/0"))
        monkeypatch.setattr(session, "MAX_NEW_BYTES", 2 * len(encoded.data))
        node.enqueue(*urls("a", 5))
        node.enqueue("http://a/large", body=b"x" * session.MAX_NEW_BYTES)
        await until(lambda: sum(call.new for call in calls) == 6)
        assert [call.new for call in calls] == [2, 2, 1, 1]


@asyncio_test
async def test_what_is_not_answered_in_time_is_halved_until_it_is(
    client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "retry_delay", lambda _: 0.0)
    sync, sizes = CrawlClient.sync, []

    async def slow(crawl: CrawlClient, new: Any, finished: Any, demand: Demand, *more: Any) -> Any:
        sizes.append((len(new), demand.requests))
        if max(sizes[-1]) > 2:
            raise CallTimeoutError
        return await sync(crawl, new, finished, demand, *more)

    monkeypatch.setattr(CrawlClient, "sync", slow)
    async with joined(client) as node:
        node.enqueue(*urls("a", 10))
        await until(lambda: len(sizes) > 5)
        assert sizes[:5] == [(10, 0), (5, 0), (2, 0), (3, 0), (1, 0)]
        await node.has_unfinished(10)
        sizes.clear()
        node.start_now()
        await until(lambda: sizes)
        assert 0 < sizes[0][1] < 10
        assert len({(await node.start()).url for _ in range(9)}) == 9


@asyncio_test
async def test_the_engine_waits_for_no_reply(client: Redis, server: RedisServer) -> None:
    async with joined(client) as node:
        server.freeze()
        try:
            node.enqueue(*urls("a", 100))
            assert [node.start_now() for _ in range(100)] == [None] * 100
            assert node.scheduler.has_pending_requests()
            await asyncio.sleep(0)  # the call has begun
            assert node.start_now() is None
        finally:
            server.thaw()
        assert await node.start()
        assert node.unfinished == 100


@asyncio_test
async def test_calls_to_an_unavailable_server_are_spaced(
    client: Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = []

    async def unavailable(*_: object) -> None:
        asked.append(1)
        raise ServerUnreachableError

    async with joined(client) as node:
        with monkeypatch.context() as patch:
            patch.setattr(session, "retry_delay", lambda _: 0.5)
            patch.setattr(node.scheduler.client, "sync", unavailable)
            for url in urls("a", 100):
                node.enqueue(url)
                assert node.start_now() is None
                await asyncio.sleep(0)
            assert len(asked) == 1
            assert caplog.text.count("is unavailable") == 1
            assert node.scheduler.has_pending_requests()
        assert await node.start()
        assert node.unfinished == 100


@asyncio_test
async def test_a_failed_call_is_retried(client: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even one that the server has done, and whose reply was lost."""
    sync = CrawlClient.sync

    async def lose_the_reply(*args: Any) -> None:
        monkeypatch.setattr(CrawlClient, "sync", sync)
        await sync(*args)
        raise ServerUnreachableError

    async with joined(client) as node:
        monkeypatch.setattr(CrawlClient, "sync", lose_the_reply)
        node.enqueue(*urls("a", 20))
        seen = {(await node.start()).url for _ in range(12)}
        await node.has_unfinished(20)
        assert len(seen) == 12
        assert node.dropped == []


@asyncio_test
async def test_another_nodes_requests_wake_a_node_without_any(client: Redis) -> None:
    async with joined(client) as node:
        await node.finds_nothing()
        other = node.other()
        encoded = node.scheduler.session._codec.encode(
            other.new_place("a", 0), Request("http://a/")
        )
        other.pushes(encoded)
        assert (await node.start()).url == "http://a/"


@asyncio_test
async def test_a_busy_node_looks_at_its_server_too(
    client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = count_looks(monkeypatch)
    async with joined(client, CRAWL_LEASE=0.5) as node:
        numbers = itertools.count()
        async with asyncio.timeout(10):
            while len(looks) < 3:
                node.enqueue(f"http://a/{next(numbers)}")
                await asyncio.sleep(0.01)
        assert len(node.scheduler.session._sent) < next(numbers)


@asyncio_test
async def test_what_a_promoted_server_lacks_is_sent_again(client: Redis) -> None:
    async with joined(client, CRAWL_LEASE=0.5) as node:
        node.enqueue("http://a/", "http://b/")
        await node.has_unfinished(2)
        client.delete(*(node.key(part) for part in ("queue", "requests", "seen", "sites", "taken")))
        node.scheduler.session._life = "that of the server before"
        node.scheduler.session.check_again()
        await node.has_unfinished(2)
        assert {(await node.start()).url for _ in range(2)} == {"http://a/", "http://b/"}
        assert node.dropped == []


@pytest.mark.parametrize("ends", [False, True])
@asyncio_test
async def test_over_a_new_connection_the_server_is_looked_at_first(
    client: Redis, calls: list[Call], monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    async with joined(client) as node:
        node.enqueue("http://a/")
        await until(lambda: node.scheduler.session._sent)
        sent = list(node.scheduler.session._sent)
        if ends:  # else it looks by itself, should it have the time
            task = node.scheduler.session._task
            assert task is not None
            task.cancel()
            await asyncio.wait({task})
        await node.scheduler.client.disconnect()
        looks = count_looks(monkeypatch)
        calls_before = len(calls)
        leave = CrawlClient.leave
        seen: list[int] = []

        async def look_at(crawl: CrawlClient, *arguments: Any) -> None:
            seen.append(len(looks))
            await leave(crawl, *arguments)

        monkeypatch.setattr(CrawlClient, "leave", look_at)
        if not ends:
            node.enqueue("http://b/")
            await until(lambda: len(calls) > calls_before)
            assert len(looks) == 1
            assert node.scheduler.session._sent[:1] == sent, "it is sent again if that one lacks it"
    assert seen == [1]


@pytest.mark.parametrize(("ago", "begins"), [(3600, True), (-3600, False)])
@asyncio_test
async def test_a_server_that_goes_back_to_before_the_run_is_one_that_has_lost_it(
    client: Redis, caplog: pytest.LogCaptureFixture, ago: int, begins: bool
) -> None:
    async with joined(client) as node:

        async def start() -> AsyncIterator[Request]:
            yield Request("http://a/again")

        node.engine.start_again = start
        client.flushall()
        ended = round(1000 * (time.time() - ago))
        client.hset(node.key("run"), mapping={"id": "an older run", "ended": ended})
        node.enqueue("http://a/link")
        await until(lambda: node.unfinished == 2 or node.scheduler.session.ended)
        assert node.scheduler.session.ended != begins
        assert ("starts over" in caplog.text) == begins


@asyncio_test
async def test_a_node_that_is_idle_while_its_server_is_away_says_so_once(
    client: Redis, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "retry_delay", lambda _: 0.01)
    async with joined(client) as node:
        await node.finds_nothing()
        idle, failures = CrawlClient.idle, 0

        async def fail(*_: Any) -> Any:
            nonlocal failures
            failures += 1
            raise ServerUnreachableError("away")

        monkeypatch.setattr(CrawlClient, "idle", fail)
        with pytest.raises(DontCloseSpider):
            node.scheduler._spider_idle()
        await until(lambda: failures)
        await until(lambda: failures > 5 or not node.scheduler.session._unavailable)
        assert node.scheduler.session._unavailable
        assert caplog.text.count("The crawl's server is unavailable") == 1
        monkeypatch.setattr(CrawlClient, "idle", idle)
        await node.idles()


@asyncio_test
async def test_start_requests_leave_the_event_loop_to_others(
    client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MAX_LOOP_HOLD_S", 0.0)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with joined(client, start=start_urls(500)) as node:
        counting = asyncio.create_task(count_turns())
        async for url in node.engine._start:
            node.enqueue(url)
        counting.cancel()
        assert turns > 450
        await node.has_unfinished(500)


@asyncio_test
async def test_start_requests_wait_for_the_server(
    client: Redis, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MAX_NEW_REQUESTS", 20)
    async with joined(client, start=start_urls(200)) as node:

        async def read() -> None:
            async for url in node.engine._start:
                node.enqueue(url)
                await asyncio.sleep(0)

        server.freeze()
        try:
            reading = asyncio.create_task(read())
            for _ in range(500):
                await asyncio.sleep(0)
            assert len(node.scheduler.session._unsent) == 2 * 20 + 1
        finally:
            server.thaw()
        await reading
        await node.has_unfinished(200)


@asyncio_test
async def test_a_server_that_is_full_is_not_said_to_be_away(
    client: Redis, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = count_looks(monkeypatch)
    monkeypatch.setattr(session, "retry_delay", lambda _: 0.01)
    async with joined(client, CRAWL_LEASE=0.5) as node:
        client.config_set("maxmemory", 1)
        node.enqueue("http://a/")
        await until(lambda: "The crawl's server is full (maxmemory)" in caplog.text)
        lease_end, begin = node.lease_end, len(looks)
        await until(lambda: len(looks) > begin + 3)
        assert node.lease_end > lease_end
        client.config_set("maxmemory", 0)
        assert await node.start()


@asyncio_test
async def test_who_joins_at_a_full_server_is_told_so(
    client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    client.config_set("maxmemory", 1)
    node = joined(client)
    joining = asyncio.ensure_future(node.__aenter__())
    await until(lambda: "Waiting for the crawl's server, which is full" in caplog.text)
    client.config_set("maxmemory", 0)
    await joining
    await node.__aexit__(None, None, None)


@asyncio_test
async def test_a_node_that_leaves_a_full_server_gives_back_what_has_led_to_new_requests(
    client: Redis,
) -> None:
    async with joined(client) as node:
        other = node.other()
        node.enqueue("http://a/")
        page = await node.start()
        client.config_set("maxmemory", 1)
        node.enqueue("http://a/link")
        node.finish(page)
    taken = other.takes(Demand(8, 8))
    decode = node.scheduler.session._codec.decode
    assert [(decode(one.data).url, one.tries) for one in taken] == [("http://a/", 0)]


# A crawl that the server has lost ---------------------------------------------------------------


@asyncio_test
async def test_a_loss_while_the_crawl_starts_over_loses_no_start_request(
    client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async with joined(client) as node:
        goes_on = asyncio.Event()

        async def start() -> AsyncIterator[Request]:
            yield Request("http://a/first")
            await goes_on.wait()
            yield Request("http://a/last")

        node.engine.start_again = start
        client.flushall()
        node.enqueue("http://a/link")
        await node.has_unfinished(2)
        before = node.scheduler.restart
        client.flushall()
        node.enqueue("http://a/other-link")
        await until(lambda: caplog.text.count("starts over") == 2)
        restart = node.scheduler.restart
        assert before
        assert restart
        assert before is not restart
        await asyncio.wait({before})
        assert node.scheduler.restart is restart
        goes_on.set()
        await restart
        await node.has_unfinished(3)
        assert node.scheduler.restart is None


@asyncio_test
async def test_a_node_that_cannot_start_over_fails(
    client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async with joined(client) as node:

        async def start() -> AsyncIterator[Request]:
            yield Request("http://a/first")
            raise ValueError("the list of start URLs is gone")

        node.engine.start_again = start
        client.flushall()
        node.enqueue("http://a/link")
        await until(lambda: "the list of start URLs is gone" in caplog.text)
        await until(lambda: node.scheduler.restart is None)
        await node.has_unfinished(2)
        node.closes("finished")
        assert node.fails


@asyncio_test
async def test_start_requests_of_a_crawl_that_starts_over_wait_for_the_server(
    client: Redis, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MAX_NEW_REQUESTS", 20)
    async with joined(client) as node:
        begins = asyncio.Event()

        async def start() -> AsyncIterator[Request]:
            await begins.wait()
            async for url in start_urls(200):
                yield Request(url)

        node.engine.start_again = start
        client.flushall()
        node.enqueue("http://a/link")
        await node.has_unfinished(1)
        server.freeze()
        try:
            begins.set()
            for _ in range(500):
                await asyncio.sleep(0)
            assert len(node.scheduler.session._unsent) == 2 * 20 + 1
        finally:
            server.thaw()
        await node.has_unfinished(201)


# The exit status --------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["shutdown", "closespider_timeout"])
@asyncio_test
async def test_a_node_that_closes_before_the_end_fails(client: Redis, reason: str) -> None:
    async with joined(client) as node:
        node.closes(reason)
        assert node.fails


@asyncio_test
async def test_a_node_fails_neither_at_the_end_nor_after_it(client: Redis) -> None:
    async with joined(client) as node:
        await node.idles()
        node.closes("finished")
        assert not node.fails
    async with joined(client) as node:
        node.closes("finished")
        assert not node.fails


# Giving back ------------------------------------------------------------------------------------


@asyncio_test
async def test_unfinished_requests_go_back_to_their_old_place(client: Redis) -> None:
    async with joined(client) as node:
        node.enqueue(*urls("a", 30))
        node.enqueue("http://a/urgent", priority=5)
        first = await node.start()
        assert first.url == "http://a/urgent"
        node.finish(first)
        await node.start()
        node.enqueue("http://a/last")
    other = node.other()
    taken = other.takes(Demand(100, 100))
    order = [node.scheduler.session._codec.decode(each.data).url for each in taken]
    assert order == [*urls("a", 30), "http://a/last"]


@asyncio_test
async def test_what_a_node_could_not_read_is_said_when_it_leaves(client: Redis) -> None:
    """Else it would not count as a try: more than three nodes would end for one request."""
    async with joined(client) as node:
        node.enqueue("http://a/1")
        await node.start()
        (place,) = client.hkeys(node.key("requests"))
        session = node.scheduler.session
        assert session._task
        assert isinstance(place, bytes)
        session._task.cancel()  # the end comes before it can say so
        session._unreadable.append(place)
    assert client.hgetall(node.key("tries")) == {place: b"1"}


@asyncio_test
async def test_a_node_whose_lease_expired_leaves_its_prefetched_requests_to_others(
    client: Redis,
) -> None:
    async with joined(client) as node:
        node.enqueue(*urls("a", 6))
        begun = await node.start()
        other = node.other()
        client.zadd(node.key("working"), {node.scheduler.client.node: 1})
        taken = [taken for _ in range(6) for taken in other.takes(Demand(6, 6))]
        assert len(taken) == 6
        node.finish(begun)
        node.enqueue("http://a/link")
        await until(lambda: node.unfinished == 7)
        assert (await node.start()).url == "http://a/link"
        other.idles(*taken)


@asyncio_test
async def test_what_has_no_response_when_the_spider_closes_goes_back_as_it_is_stored(
    client: Redis,
) -> None:
    async with joined(client) as node:
        node.enqueue("http://a/page", "http://a/waiting", "http://a/failing", dont_filter=True)
        page, waiting, failing = [await node.start() for _ in range(3)]
        waiting.meta["put there by a middleware"] = object()
        await node.engine.close_spider_async()
        node.fetch(page, Response(page.url))
        results = [
            node.fetch(waiting, waiting.copy()),
            node.fetch(failing, failed(IgnoreRequest("the spider is closing"))),
        ]
        assert results == [waiting, failing]
        assert [node.engine.crawl(request) for request in (waiting, failing)] == [True, True]
        node.finish(page, waiting, failing)
    taken = node.other().takes(Demand(8, 8))
    decode = node.scheduler.session._codec.decode
    assert [decode(one.data).url for one in taken] == ["http://a/waiting", "http://a/failing"]


@asyncio_test
async def test_what_comes_from_no_scheduler_ends_as_it_does_though_the_spider_closes(
    client: Redis,
) -> None:
    async with joined(client) as node:
        await node.engine.close_spider_async()
        copy = Request("http://a/robots.txt")
        assert node.fetch(Request("http://a/robots.txt"), copy) is copy


@asyncio_test
async def test_a_page_whose_callback_got_nothing_any_more_when_the_spider_closed_goes_back(
    client: Redis,
) -> None:
    async with joined(client) as node:
        node.enqueue("http://a/page", "http://a/done-later", dont_filter=True)
        page, later = [await node.start() for _ in range(2)]
        node.fetch(page, Response(page.url))
        await node.engine.close_spider_async()
        image = Request("http://a/image")
        node.fetch(image, failed(IgnoreRequest("the spider is closing")))
        node.fetch(later, Response(later.url))
        node.finish(page, later)
    taken = node.other().takes(Demand(8, 8))
    decode = node.scheduler.session._codec.decode
    assert [decode(one.data).url for one in taken] == ["http://a/page"]


@asyncio_test
async def test_a_node_leaves_even_if_the_server_does_not_reply(
    client: Redis, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with joined(client) as node:
        server.freeze()
        node.enqueue("http://a/")
    server.thaw()
    assert "Cannot leave the crawl" in caplog.text


# Filtered, and undecodable ---------------------------------------------------------------------


@asyncio_test
async def test_duplicates_are_dropped_unless_dont_filter_is_set(
    client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with joined(client) as node:
        node.enqueue("http://a/", "http://a/")
        page = await node.start()
        await node.finds_nothing()
        assert node.dropped == ["http://a/"]
        assert "Filtered duplicate request: <GET http://a/>" in caplog.text
        node.enqueue("http://a/", dont_filter=True)
        node.finish(page)
        assert await node.start()
        await node.has_unfinished(1)
        assert client.hget(node.key("seen"), "count") == b"1"
        assert node.scheduler.crawler.stats.get_value("scheduler/enqueued/redis") == 2
        assert node.scheduler.crawler.stats.get_value("scheduler/dequeued/redis") == 2


@asyncio_test
async def test_without_the_add_on_a_site_is_a_host_and_never_full(client: Redis) -> None:
    queue = "scrapy.pqueues.ScrapyPriorityQueue"
    async with joined(client, SCHEDULER_PRIORITY_QUEUE=queue) as node:
        node.enqueue("http://a:1/", "http://a:2/", "http://b/")
        await until(lambda: node.unfinished == 3)
        assert client.zrange(node.key("sites"), 0, -1) == [b"a", b"b"]
        assert {(await node.start()).url for _ in range(3)}


def test_no_client_of_the_server_blocks() -> None:
    """A frozen server shows it where a test looks; the imports show it everywhere."""
    crawler = REPOSITORY / "crawler"
    for path in (
        *(PACKAGE / "frontier").glob("*.py"),
        *crawler.glob("*.py"),
        *crawler.glob("cluster/*.py"),
    ):
        blocking = {"redis.Redis", "redis.StrictRedis", "redis.client.Redis"}
        assert not blocking.intersection(imports(path)), path
