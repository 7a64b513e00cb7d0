"""What the scheduler sends to the server, and when."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis import Redis
from scrapy import Request
from scrapy.exceptions import CloseSpider, IgnoreRequest
from scrapy.http import Response
from scrapy.spidermiddlewares.httperror import HttpError
from twisted.python.failure import Failure

from semaphore_middleware.errors import ServerUnreachableError
from semaphore_middleware.link import link
from semaphore_middleware.link.connection import CallTimeoutError
from semaphore_middleware.link.link import Link
from semaphore_middleware.scrapy.engine import (
    PageIncompleteError,
    RobotsTxtUnreadableError,
    SpiderClosingError,
)
from semaphore_middleware.shared_crawl import (
    new_requests,
    node_state,
    scheduler,
    session,
    spider_start,
)
from semaphore_middleware.shared_crawl.client import (
    CALL_TIMEOUT_S,
    CrawlClient,
    Demand,
    Ending,
    NewRequest,
    NextStep,
    Outcome,
    RequestInFlight,
    SyncReply,
)
from tests.shared_crawl.node import (
    Call,
    DrivenNode,
    OtherNode,
    joined,
    joined_in,
    urls,
    watch_calls,
)
from tests.support.blocking import result_of
from tests.support.nodes import calls_of, eventually
from tests.support.servers import RedisServer
from tests.support.shared_crawl import PLACES, Node
from tests.support.simulated import BusyHost, SimulatedServer, in_simulated_time
from tests.support.times import ENDLESS_S

Logged = pytest.LogCaptureFixture
Patch = pytest.MonkeyPatch

LEASE_S = 15.0


# Finished, and only then ----------------------------------------------------------------------


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


async def test_an_error_that_the_callback_gets_is_a_page(client: Redis) -> None:
    async with joined(client) as node:
        node.enqueue("http://a/handled", "http://a/ignored")
        handled, ignored = await node.start(), await node.start()
        for request in (handled, ignored):
            response = Response(request.url, status=503)
            node.fetch(request, response)
            is_ignored = request is ignored
            result = Failure(HttpError(response)) if is_ignored else response  # type: ignore[no-untyped-call]
            await node.engine.scraper.call_spider_async(result, request)
        node.finish(handled, ignored)
        assert node.start_now() is None
        await node.has_unfinished(0)
        assert client.hget(node.key("run"), "pages") == b"1"
        assert client.hlen(node.key("failed")) == 1


async def test_a_node_has_one_request_at_a_time_that_others_have_died_with(client: Redis) -> None:
    async with joined(client) as node:
        node.enqueue(*urls("a", 3))
        await node.has_unfinished(3)
        dead = node.other()
        while dead.takes(Demand(8, 8)):
            pass
        dead.dies()
        for left in (3, 2, 1):
            poison = await node.start()
            await node.finds_nothing()
            assert (node.taken, node.unfinished) == (1, left)
            node.finish(poison)
        await node.idles()


async def test_what_two_nodes_have_died_with_is_done_alone(client: Redis) -> None:
    async with joined(client) as node:
        node.enqueue("http://a/")
        await node.has_unfinished(1)
        for dead in (node.other(), node.other()):
            assert len(dead.takes(Demand(1, 1))) == 1
            dead.dies()
        node.enqueue("http://b/")
        plain = await node.start()
        await node.finds_nothing()
        assert (plain.url, node.taken) == ("http://b/", 1)
        node.finish(plain)
        node.scheduler._spider_idle()
        assert node.scheduler.has_pending_requests()
        alone = await node.start()
        node.enqueue("http://b/more")
        await node.has_unfinished(2)
        assert (alone.url, node.taken) == ("http://a/", 1)
        node.finish(alone)
        node.finish(await node.start())


# Calls ------------------------------------------------------------------------------------------


async def test_a_call_brings_so_many_bytes(client: Redis, monkeypatch: Patch) -> None:
    calls = watch_calls(monkeypatch)
    async with joined(client) as node:
        node.enqueue(*urls("a", 300))
        await node.start()
        encoded = node.state.codec.encode(b"", Request("http://b/0"))
        monkeypatch.setattr(new_requests, "MAX_NEW_BYTES", 2 * len(encoded.data))
        node.enqueue(*urls("b", 5))
        node.enqueue("http://b/large", body=b"x" * new_requests.MAX_NEW_BYTES)
        await node.has_unfinished(306)
        assert [call.new for call in calls if call.new] == [300, 2, 2, 1, 1]


async def test_a_call_without_answer_is_halved(client: Redis, monkeypatch: Patch) -> None:
    def slow(call: Call) -> None:
        if max(call.new, call.demand.requests) > 2:
            raise CallTimeoutError

    monkeypatch.setattr(link, "LONGEST_PAUSE_S", 0.0)
    calls = watch_calls(monkeypatch, slow)
    async with joined(client) as node:
        node.enqueue(*urls("a", 10))
        await eventually(lambda: len(calls) > 5)
        assert [call.new for call in calls[:5]] == [10, 5, 2, 3, 1]
        await node.has_unfinished(10)
        calls.clear()
        node.start_now()
        await eventually(lambda: calls)
        assert 0 < calls[0].demand.requests < 10
        assert len({(await node.start()).url for _ in range(9)}) == 9


@pytest.mark.parametrize("has_expired", [False, True])
@in_simulated_time
async def test_what_an_unheard_reply_brought_goes_back_though_the_node_is_never_idle(
    monkeypatch: Patch, has_expired: bool
) -> None:
    server = SimulatedServer(lease=LEASE_S)
    sync, unheard = CrawlClient.sync, asyncio.Event()

    async def sync_unheard(self: CrawlClient, *arguments: Any, **named: Any) -> SyncReply:
        reply = await sync(self, *arguments, **named)
        if is_due(reply) and not unheard.is_set():
            unheard.set()
            raise CallTimeoutError
        return reply

    def is_due(reply: SyncReply) -> bool:
        return reply.lease_expired if has_expired else bool(reply.taken)

    async with joined_in(server) as node:
        node.enqueue("http://slow/", *urls("a", 8))
        await node.start()
        other = OtherNode(server)
        await other.join()
        monkeypatch.setattr(CrawlClient, "sync", sync_unheard)
        if has_expired:
            server.client.zadd(node.key("working"), 1, node.scheduler.client.node)
            assert await other.takes(Demand(9, 9))
            assert node.state.prefetch.ready > 0
            await eventually(lambda: unheard.is_set() and not node.state.prefetch.ready)
        else:
            await other.sync([NewRequest(PLACES.new_place("b", 0), b"") for _ in range(4)])
            node.state.check_again()
            await unheard.wait()
            await eventually(lambda: node.taken == len([*node.state.prefetch._taken()]))


@pytest.mark.parametrize("ends", [False, True])
async def test_over_a_new_connection_the_server_is_checked_first(
    client: Redis, monkeypatch: Patch, ends: bool
) -> None:
    checks = calls_of(monkeypatch, Link, "check_server")
    seen: list[int] = []
    calls = watch_calls(monkeypatch, lambda _: seen.append(len(checks)))
    calls_of(monkeypatch, CrawlClient, "leave", lambda: seen.append(len(checks)))
    async with joined(client) as node:
        node.enqueue("http://a/")
        await eventually(lambda: node.state.new_requests._sent)
        sent = list(node.state.new_requests._sent)
        if ends:  # otherwise it asks by itself, if there is time
            assert node.session._task is not None
            node.session._task.cancel()
            await asyncio.wait({node.session._task})
        await node.scheduler.client.link.close()
        checks.clear()
        seen.clear()
        calls.clear()
        if not ends:
            node.enqueue("http://b/")
            await eventually(lambda: calls)
            await eventually(lambda: len(node.state.new_requests._sent) > 1)
            assert node.state.new_requests._sent[:1] == sent, (
                "it is sent again if that one lacks it"
            )
    assert set(seen) == {1}


@in_simulated_time
async def test_what_a_promoted_server_lacks_is_sent_again() -> None:
    server = SimulatedServer(lease=LEASE_S)
    async with joined_in(server) as node:
        node.enqueue("http://a/", "http://b/")
        await node.has_unfinished(2)
        for part in ("queue", "requests", "seen", "sites", "taken"):
            server.itself.evict_key(node.key(part))
        server.itself.begin_incarnation(server.itself.snapshot())
        await node.has_unfinished(2)
        assert {(await node.start()).url for _ in range(2)} == {"http://a/", "http://b/"}
        assert node.dropped == []


async def test_a_node_that_is_idle_while_its_server_is_away_says_so_once(
    client: Redis, caplog: Logged, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(link, "LONGEST_PAUSE_S", 0.01)
    async with joined(client) as node:
        await node.finds_nothing()
        failures = 0

        async def fail(*_: Any) -> Any:
            nonlocal failures
            failures += 1
            raise ServerUnreachableError("away")

        with monkeypatch.context() as patch:
            patch.setattr(CrawlClient, "idle", fail)
            node.scheduler._spider_idle()
            assert node.scheduler.has_pending_requests()
            await eventually(lambda: failures)
            await eventually(lambda: failures > 5 or not node.scheduler.client.link.problem)
            assert node.scheduler.client.link.problem
            assert caplog.text.count("away. The crawl's requests wait until") == 1
        await node.idles()


async def test_start_requests_let_others_run(client: Redis, monkeypatch: Patch) -> None:
    monkeypatch.setattr(new_requests, "MAX_LOOP_HOLD_S", 0.0)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def start() -> AsyncIterator[str]:
        for url in urls("a", 500):
            yield url

    async with joined(client, start=start()) as node:
        counting = asyncio.create_task(count_turns())
        async for url in node.engine._start:
            node.enqueue(url)
        counting.cancel()
        assert turns > 450
        await node.has_unfinished(500)


@pytest.mark.parametrize("again", [False, True], ids=["first", "again"])
async def test_start_requests_wait_for_the_server(
    client: Redis, server: RedisServer, monkeypatch: Patch, again: bool
) -> None:
    async def start() -> AsyncIterator[Request]:
        await begins.wait()
        for url in urls("a", 200):
            yield Request(url)

    async def read() -> None:
        async for request in node.engine._start:
            assert node.scheduler.enqueue_request(request)
            await asyncio.sleep(0)

    for module in (node_state, new_requests):
        monkeypatch.setattr(module, "MAX_NEW_REQUESTS", 20)
    begins = asyncio.Event()
    async with joined(client, start=start()) as node:
        reading = asyncio.create_task(asyncio.sleep(0) if again else read())
        if again:
            node.engine.start_again = start
            client.flushall()
        node.enqueue("http://b/link")
        await node.has_unfinished(1)
        with server.frozen():
            begins.set()
            for _ in range(500):
                await asyncio.sleep(0)
            assert len(node.state.new_requests) == 2 * 20 + 1
        await reading
        await node.has_unfinished(201)


# A server that is full --------------------------------------------------------------------------


@in_simulated_time
async def test_a_server_that_is_full_is_not_said_to_be_away(
    caplog: Logged, monkeypatch: Patch
) -> None:
    checks = calls_of(monkeypatch, Link, "check_server")
    server = SimulatedServer(lease=LEASE_S)
    server.itself.set_full(True)
    joining = asyncio.ensure_future((node_joins := joined_in(server)).__aenter__())
    await eventually(lambda: "used memory > 'maxmemory'" in caplog.text)
    server.itself.set_full(False)
    node = await joining
    caplog.clear()
    server.itself.set_full(True)
    node.enqueue("http://a/")
    await eventually(lambda: "used memory > 'maxmemory'" in caplog.text)
    lease_end, begin = node.lease_end, len(checks)
    await eventually(lambda: len(checks) > begin + 3)
    assert node.lease_end > lease_end
    server.itself.set_full(False)
    assert await node.start()
    await node_joins.__aexit__(None, None, None)


async def test_a_node_that_leaves_a_full_server_gives_back_what_has_links(client: Redis) -> None:
    async with joined(client) as node:
        node.enqueue("http://a/")
        page = await node.start()
        client.config_set("maxmemory", 1)
        node.enqueue("http://a/link")
        node.finish(page)
    client.config_set("maxmemory", 0)
    assert node.takes_as_other() == ["http://a/"]


# A crawl that the server has lost ---------------------------------------------------------------


@pytest.mark.parametrize(("ago", "begins"), [(3600, True), (-3600, False)])
async def test_a_server_that_goes_back_to_before_the_run_is_one_that_has_lost_it(
    client: Redis, caplog: Logged, ago: int, begins: bool
) -> None:
    async with joined(client) as node:

        async def start() -> AsyncIterator[Request]:
            yield Request("http://a/again")

        node.engine.start_again = start
        client.flushall()
        ended = round(1000 * (time.time() - ago))
        client.hset(node.key("run"), mapping={"id": "an older run", "ended": ended})
        client.hset(node.key("aside"), "a", "request")
        for part in ("run", "aside"):
            client.expire(node.key(part), 3600)
        node.enqueue("http://a/link")
        await eventually(lambda: node.unfinished == 2 or node.state.end.has_come)
        assert node.state.end.has_come != begins
        assert ("starts over" in caplog.text) == begins
        assert node.state.end.has_failed != begins


async def test_the_run_before_is_known_though_its_id_was_lost(client: Redis) -> None:
    async with joined(client) as node:
        await node.visits("http://a/")
        await node.idles()
        run = node.key("run")
    before: Any = {**client.hgetall(run), "ended": round(1000 * (time.time() + 3600))}
    async with joined(client, CRAWL_RUN="new") as node:

        async def start() -> AsyncIterator[Request]:
            yield Request("http://a/again")

        node.engine.start_again = start
        client.delete(run)
        node.enqueue("http://a/link")
        await node.has_unfinished(2)
        client.flushall()
        client.hset(run, mapping=before)
        node.enqueue("http://a/another")
        await node.has_unfinished(2)


async def test_a_loss_in_a_new_start_loses_none(client: Redis, caplog: Logged) -> None:
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
        await eventually(lambda: caplog.text.count("starts over") == 2)
        restart = node.scheduler.restart
        assert before is not None
        assert restart is not None
        await asyncio.wait({before})
        assert node.scheduler.restart is restart is not before
        goes_on.set()
        await restart
        await node.has_unfinished(3)
        assert node.scheduler.restart is None


@pytest.mark.parametrize(("once", "rest"), [(True, []), (False, ["http://a/last"])])
async def test_a_start_that_is_lost_halfway_is_not_read_twice(
    client: Redis, once: bool, rest: list[str]
) -> None:
    async def start() -> AsyncIterator[Request]:
        yield Request("http://a/first")
        yield Request("http://a/last")

    starts = start()
    async with joined(client, starts, CRAWL_START_ONCE=once) as node:
        first = await anext(node.engine._start)
        node.engine.start_again = start
        client.flushall()
        node.enqueue(first.url)
        await node.has_unfinished(2 if once else 1)
        assert [request.url async for request in node.engine._start] == rest


@pytest.mark.parametrize("away_s", [0.5, 2 * CALL_TIMEOUT_S])
@in_simulated_time
async def test_a_node_that_leaves_while_the_crawl_is_lost_hands_on_its_requests(
    caplog: Logged, away_s: float
) -> None:
    async def start() -> AsyncIterator[Request]:
        yield Request("http://a/again")

    def take_over() -> None:
        server.itself.begin_incarnation()
        server.itself.set_lacking_replicas(False)
        server.network.break_all()

    server = SimulatedServer(lease=LEASE_S)
    async with joined_in(server) as node:
        node.engine.start_again = start
        node.enqueue("http://a/started")
        await node.start()
        server.itself.set_lacking_replicas(True)
        node.enqueue("http://a/unsent")
        await node.engine.close_spider_async(reason="shutdown")
        asyncio.get_running_loop().call_later(away_s, take_over)
    assert node.unfinished == 2
    assert caplog.text.count("starts over") == 1
    assert "enough good replicas to write. The crawl's requests wait" in caplog.text


async def test_a_start_that_waits_does_not_outlive_the_crawl(client: Redis) -> None:
    async def start() -> AsyncIterator[Request]:
        await asyncio.Event().wait()
        yield Request("http://a/never")

    async with joined(client, start()) as node:
        node.other().drops()
        node.enqueue("http://a/link")
        await eventually(lambda: node.engine.closed == ["finished"])


async def test_a_node_without_a_start_fails(client: Redis, caplog: Logged) -> None:
    async with joined(client) as node:

        async def start() -> AsyncIterator[Request]:
            yield Request("http://a/first")
            raise ValueError("the list of start URLs is gone")

        node.engine.start_again = start
        client.flushall()
        node.enqueue("http://a/link")
        await eventually(lambda: "the list of start URLs is gone" in caplog.text)
        await eventually(lambda: node.scheduler.restart is None)
        await node.has_unfinished(2)
        assert node.closes("finished")


async def test_a_node_whose_start_has_failed_does_not_end_the_crawl(client: Redis) -> None:
    async def start() -> AsyncIterator[Request]:
        yield Request("http://a/first")
        raise ValueError("the list of start URLs is gone")

    async with joined(client, start()) as node:
        with pytest.raises(ValueError, match="is gone"):
            async for request in node.engine._start:
                await node.visits(request.url)
        await node.idles()
        assert node.closes("start_error")
    async with joined(client) as other:
        assert not other.state.end.has_come
        await other.visits("http://a/second")
        await other.idles()
        assert other.state.end.has_come


@pytest.mark.parametrize("may_close", [True, False], ids=["new Scrapy", "old Scrapy"])
async def test_a_start_that_closes_its_spider(
    client: Redis, monkeypatch: Patch, may_close: bool
) -> None:
    """Scrapy before 2.18 logs that as an error, and goes on without the rest of its requests."""

    async def start() -> AsyncIterator[Request]:
        yield Request("http://a/first")
        raise CloseSpider("enough")

    monkeypatch.setattr(scheduler, "START_MAY_CLOSE", may_close)
    async with joined(client, start()) as node:
        with pytest.raises(CloseSpider):
            async for request in node.engine._start:
                await node.visits(request.url)
        assert node.scheduler.lacks_starts != may_close
        await node.idles()
        assert node.state.end.has_come == may_close


# Leaving ----------------------------------------------------------------------------------------


async def test_a_node_fails_only_if_it_closes_before_the_end(client: Redis) -> None:
    for reason in ("shutdown", "closespider_timeout"):
        async with joined(client) as node:
            assert node.closes(reason)
    async with joined(client) as node:
        await node.visits("http://a/")
        await node.idles()
        assert not node.closes("finished")
    async with joined(client) as node:
        assert not node.closes("finished")


@pytest.mark.parametrize(
    ("differs", "fails"),
    [("CRAWL_VERSION", False), ("spider", True), ("argument shelf", True)],
)
async def test_a_node_that_would_crawl_something_else_fails_after_the_end(
    client: Redis, caplog: Logged, differs: str, fails: bool
) -> None:
    async with joined(client) as node:
        await node.visits("http://a/")
        await node.idles()
        (identity,) = client.hmget(node.key("run"), "identity")
        assert isinstance(identity, bytes)
        ended = json.loads(identity) | {differs: "another"}
        client.hset(node.key("run"), "identity", json.dumps(ended))
    async with joined(client) as node:
        assert not node.scheduler.has_pending_requests()
        assert (f"{differs} is " in caplog.text) == fails
        assert ("there is nothing to do" in caplog.text) != fails
        assert node.closes("finished") == fails


async def test_what_becomes_of_a_stopped_run_is_said(client: Redis, caplog: Logged) -> None:
    async def restarts(run: str) -> str:
        caplog.clear()
        async with joined(client, CRAWL_RUN=run) as node:
            node.enqueue("http://a/")
            await eventually(lambda: node.unfinished == 1)
        return caplog.text

    assert not await restarts("new")
    assert "CRAWL_RUN = 'new' has no effect" in await restarts("new")
    assert "leaves unfinished requests: 1" in await restarts("monday")
    assert not await restarts("monday")
    async with joined(client, CRAWL_RUN="monday") as node:
        async with joined(client, CRAWL_RUN="tuesday") as other:
            assert "Nodes take part in the run 'monday' of the crawl 'books'" in caplog.text
            assert other.closes("another_crawl")
        assert node.closes("shutdown")
        client.hset(node.key("failed"), "place", "data")
    async with joined(client, CRAWL_RUN="tuesday"):
        assert "dead letters and failed requests: 1" in caplog.text
    async with joined(client, CRAWL_RUN="monday") as late:
        assert "The crawl 'books' has ended its run 'monday', so there is nothing" in caplog.text
        assert not late.closes("finished")


async def test_a_run_without_a_page_fails_and_is_begun_anew(client: Redis, caplog: Logged) -> None:
    results: list[Response | Failure] = [Failure(TimeoutError())]  # type: ignore[no-untyped-call]
    results += [Response("http://a/", status=status) for status in (503, 429, 200)]
    for result in results:
        caplog.clear()
        async with joined(client) as node:
            await node.visits("http://a/", result)
            await node.idles()
            fails = result is not results[-1]
            assert ("has fetched nothing" in caplog.text) == fails
            assert node.closes("finished") == fails


async def test_a_page_whose_robots_txt_cannot_be_read_can_be_tried_again(client: Redis) -> None:
    async with joined(client) as node:
        await node.visits("http://a/forbidden", Failure(IgnoreRequest()))  # type: ignore[no-untyped-call]
        await node.visits("http://b/later", Failure(RobotsTxtUnreadableError()))  # type: ignore[no-untyped-call]
        await node.has_unfinished(0)
        (kept,) = client.hvals(node.key("failed"))
        assert isinstance(kept, bytes)
        assert node.state.codec.decode(kept).url == "http://b/later"


async def test_what_comes_after_the_end_is_an_error(client: Redis, caplog: Logged) -> None:
    async with joined(client) as node:
        await node.visits("http://a/")
        await node.idles()
        assert not node.scheduler.enqueue_request(Request("http://a/late"))
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        assert "CRAWL_WAIT" in caplog.text
        assert node.stat("scheduler/dropped_after_end") == 1
        assert node.closes("finished")


async def test_a_node_that_others_keep_open_works(client: Redis) -> None:
    async with joined(client) as node:  # it works at once, not at the next renewal
        other = node.other()
        other.works()
        await node.finds_nothing()
        node.scheduler._spider_idle()
        assert node.scheduler.has_pending_requests()
        await eventually(lambda: client.zcard(node.key("working")) == 1)

        def works() -> bool:  # another receiver raises DontCloseSpider, time after time
            node.scheduler._spider_idle()
            return bool(client.zcard(node.key("working")) == 2)

        await eventually(works)
        assert other.idles().next_step is NextStep.WAIT
        await node.visits("http://a/popped")
        assert not node.state.end.has_come


async def test_a_node_that_others_keep_open_ends_with_the_crawl(
    client: Redis, monkeypatch: Patch
) -> None:
    reasons: list[str] = []

    async def close(*, reason: str) -> None:
        reasons.append(reason)

    async with joined(client) as node:
        monkeypatch.setattr(node.engine, "close_spider_async", close)
        await node.finds_nothing()
        assert result_of(node.other().end(True)) is Ending.NOW
        node.enqueue("http://a/late")
        await eventually(lambda: node.state.end.has_come)
        node.scheduler._spider_idle()
        assert not node.scheduler.has_pending_requests()  # the engine closes the spider itself
        await asyncio.sleep(0)
        assert reasons == []
        node.scheduler._spider_idle()  # another receiver raises DontCloseSpider
        await eventually(lambda: reasons == ["finished"])


async def start(*pages: str, queue: asyncio.Queue[str] | None = None) -> AsyncIterator[Request]:
    """Start requests: these, then those of a queue."""
    for page in pages:
        yield Request(f"http://a/{page}", dont_filter=True)
    while queue is not None:
        yield Request(f"http://a/{await queue.get()}", dont_filter=True)


async def read(node: DrivenNode) -> None:
    async for request in node.engine._start:
        node.scheduler.enqueue_request(request)


async def test_start_requests_that_are_not_filtered_are_fetched_once_a_run(
    client: Redis, caplog: Logged
) -> None:
    async with joined(client, start=start("1", "2", "1")) as node:
        await read(node)
        await node.has_unfinished(3)
        async with joined(client, start=start("1", "2", "3")) as late:
            await read(late)
            await node.has_unfinished(4)
            await eventually(lambda: len(late.dropped) == 2)
        assert "CRAWL_START_ONCE" not in caplog.text, "each node makes the same list"
        node.enqueue("http://a/1")  # a link to it: fetched again, as by Scrapy
        await node.has_unfinished(5)
        async with joined(client, start=start("1"), CRAWL_START_ONCE=False) as each:
            await read(each)
            await node.has_unfinished(6)


@pytest.mark.parametrize(
    ("once", "is_busy", "is_feed"), [(None, False, True), (None, True, False), (True, False, False)]
)
async def test_a_start_that_has_waited_while_its_node_had_nothing_to_do_is_a_feed(
    client: Redis, caplog: Logged, monkeypatch: Patch, once: bool, is_busy: bool, is_feed: bool
) -> None:
    caplog.set_level(logging.INFO, spider_start.__name__)
    async with joined(client, start=start("1", "2")) as before:
        await read(before)
        before.finish(await before.start(), await before.start())
        await before.has_unfinished(0)
    queue: asyncio.Queue[str] = asyncio.Queue()
    settings = {"CRAWL_START_ONCE": once}
    async with joined(client, start=start("1", queue=queue), **settings) as node:
        if is_busy:
            node.enqueue("http://a/link")
            await node.start()
        reading = asyncio.create_task(read(node))
        await eventually(lambda: node.dropped)
        assert caplog.text == "", "each node may make the same list"
        monkeypatch.setattr(spider_start, "FEED_AFTER_S", 0.0)
        await node.finds_nothing()
        queue.put_nowait("2")
        await node.has_unfinished(is_busy + is_feed)
        await eventually(lambda: is_feed or len(node.dropped) == 2)
        reading.cancel()
    levels = [record.levelname for record in caplog.records if "start()" in record.getMessage()]
    assert levels == ["INFO", "WARNING"] * is_feed
    assert caplog.text.count("CRAWL_START_ONCE = False") == is_feed


async def test_a_start_request_that_a_node_makes_again_in_vain_is_warned_of(
    client: Redis, caplog: Logged
) -> None:
    async with (
        joined(client, start=start("1", "1")) as one,
        joined(client, start=start("1", "1", "1", "1")) as two,
    ):
        await read(one)
        await one.has_unfinished(2)
        await read(two)
        await one.has_unfinished(4)
    assert len(two.dropped) == 2
    assert caplog.text.count("CRAWL_START_ONCE = False") == 1


@pytest.mark.parametrize("kind", ["Lifo", "Fifo"])
async def test_the_order_of_a_site_is_that_of_scrapy_s_queue(client: Redis, kind: str) -> None:
    queue = f"scrapy.squeues.{kind}MemoryQueue"
    async with joined(client, SCHEDULER_MEMORY_QUEUE=queue) as node:
        for page in urls("a", 4):
            node.state.start._requests.add(start := Request(page))
            assert node.scheduler.enqueue_request(start)
        node.enqueue(*urls("b", 4))
        node.enqueue("http://a/link", "http://a/link/2")
        await node.has_unfinished(10)
        taken = [url for _ in range(5) for url in node.takes_as_other()]
        step = 1 if kind == "Fifo" else -1
        assert [url for url in taken if "/b/" in url] == urls("b", 4)[::step]
        links = ["http://a/link", "http://a/link/2"][::step]
        assert [url for url in taken if "/a/" in url] == [*links, *urls("a", 4)]


async def test_users_fill_a_key_with_start_requests(client: Redis, caplog: Logged) -> None:
    line = {"url": "http://a/2", "priority": 3, "meta": {"a": [1]}, "callback": "parse"}
    client.rpush(
        "starts", "\ufeffhttp://a/1", json.dumps(line), "no URL", '{"callback": "nothing"}'
    )
    async with joined(client, CRAWL_START_KEY="starts") as node:
        second, first = await node.start(), await node.start()
        assert (first.url, first.callback) == ("http://a/1", None)
        assert (second.url, second.meta["a"], second.priority) == ("http://a/2", [1], 3)
        assert second.callback == node.scheduler.crawler.spider.parse  # type: ignore[union-attr]
        await eventually(lambda: node.stat("scheduler/unreadable_starts") == 2)
        for request in (first, second):
            node.fetch(request, Response(request.url))
        node.finish(first, second)
        await node.idles()
        assert node.closes("finished")
    assert "'nothing' is not a method of the spider" in caplog.text
    assert "has ended without its dead letters: 2. scrapy frontier retry" in caplog.text


async def test_a_start_request_of_a_key_is_filtered_if_it_says_so(client: Redis) -> None:
    lines: list[dict[str, Any]] = [{"url": "http://a/", "dont_filter": False}, {"url": "http://a/"}]
    client.rpush("starts", *(json.dumps(line) for line in lines * 3))
    async with joined(client, CRAWL_START_KEY="starts") as node:
        node.start_all()
        await eventually(lambda: len(node.dropped) == 2)
        await node.has_unfinished(4)


async def test_users_entries_of_another_encoding_become_dead_letters(client: Redis) -> None:
    client.rpush("starts", "http://a/caf\xe9".encode("latin-1"), "http://a/last")
    async with joined(client, CRAWL_START_KEY="starts") as node:
        assert (await node.start()).url == "http://a/last"
        await eventually(lambda: client.hlen(node.key("aside")) == 1)


async def test_users_fill_a_stream_with_start_requests(client: Redis) -> None:
    entry = {"url": "http://a/1", "priority": "3", "meta": '{"a": [1]}', "dont_filter": "true"}
    client.xadd("starts", entry)  # type: ignore[arg-type]
    async with joined(client, CRAWL_START_KEY="starts") as node:
        request = await node.start()
        assert (request.url, request.priority, request.meta["a"]) == ("http://a/1", 3, [1])
        assert request.dont_filter


async def test_a_key_of_another_type_ends_the_node_in_one_line(
    client: Redis, caplog: Logged
) -> None:
    client.set("starts", "http://a/1")
    async with joined(client, CRAWL_START_KEY="starts") as node:
        node.start_now()
        await eventually(lambda: node.scheduler.failed)
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "CRAWL_START_KEY = 'starts'" in line
    assert line.endswith("type of this key is string")


@in_simulated_time
async def test_a_callback_that_blocks_loses_no_request(caplog: Logged) -> None:
    server = SimulatedServer(lease=LEASE_S)
    host, other = BusyHost(server), OtherNode(server)
    async with joined_in(server, host) as node:
        await other.join()
        node.enqueue("http://a/1")
        page = await host.run(node.start())
        with host.stalled():
            for _ in range(60):
                await asyncio.sleep(LEASE_S / 10)
                assert not await other.takes()
        node.fetch(page, Response(page.url))
        node.finish(page)
        await node.has_unfinished(0)
        assert (await other.counts()).pages == 1
    assert "This node was silent for" not in caplog.text


@pytest.mark.parametrize("is_idle", [False, True])
@in_simulated_time
async def test_a_node_that_was_silent_says_so(caplog: Logged, is_idle: bool) -> None:
    server = SimulatedServer(lease=LEASE_S)
    other = OtherNode(server)
    async with joined_in(server, host := BusyHost(server)) as node:
        await other.join()
        node.enqueue("http://a/1")
        page = await host.run(node.start())
        with host.stalled(with_renewal_thread=True):
            while not (taken := await other.takes()):  # noqa: ASYNC110 - simulated time
                await asyncio.sleep(LEASE_S / 10)
        node.fetch(page, Response(page.url))
        node.finish(page)
        if is_idle:
            node.state.on_idle()
        await node.has_unfinished(0)
        await eventually(lambda: "This node was silent for" in caplog.text)
        taken[0].outcome = Outcome.PAGE
        await other.sync(finished=taken, working=True)
        assert (await other.counts()).pages == 1


async def test_a_misspelt_setting_gets_a_warning(client: Redis, caplog: Logged) -> None:
    async with joined(client, CRAWL_MAX_PAGE=9, CRAWL_NAME="shop", CRAWL_DATE="today"):
        pass
    said = [line for line in caplog.messages if "there is no such setting" in line]
    assert said == [
        "CRAWL_MAX_PAGE: there is no such setting; did you mean CRAWL_MAX_PAGES?",
        "CRAWL_NAME: there is no such setting; did you mean CRAWL?",
    ]


async def test_what_a_node_could_not_read_is_said_when_it_leaves(client: Redis) -> None:
    """Otherwise it would not count as a try: more than three nodes would end for one request."""
    async with joined(client) as node:
        node.enqueue("http://a/1")
        await node.start()
        (place,) = client.hkeys(node.key("requests"))
        assert node.session._task
        assert isinstance(place, bytes)
        node.session._task.cancel()  # the process ends before it can report that
        node.state._unreadable.append(RequestInFlight(place, b""))
    assert client.zrange(node.key("suspects"), 0, -1, withscores=True) == [(place, 1)]


async def test_what_the_spider_s_end_cut_short_goes_back_as_stored(client: Redis) -> None:
    closing = Failure(SpiderClosingError())  # type: ignore[no-untyped-call]
    incomplete = Failure(PageIncompleteError())  # type: ignore[no-untyped-call]
    async with joined(client) as node:
        node.enqueue(*urls("a", 3), "http://a/asks", "http://a/done-later", dont_filter=True)
        page, waiting, failing, asks, later = [await node.start() for _ in range(5)]
        waiting.meta["put there by a middleware"] = object()
        node.fetch(page, Response(page.url))
        node.finish(page)
        assert node.start_now() is None
        await node.has_unfinished(4)
        node.fetch(asks, Response(asks.url))
        await node.engine.close_spider_async(reason="finished")
        robots = Request("http://a/robots.txt")  # it comes from no scheduler, and ends as it does
        assert node.fetch(Request("http://a/robots.txt"), robots) is robots
        results = [node.fetch(waiting, waiting.copy()), node.fetch(failing, closing)]
        assert results == [waiting, failing]
        assert [node.engine.crawl(request) for request in (waiting, failing)] == [True, True]
        node.fetch(Request("http://a/image"), incomplete)  # the callback of `asks` may lack it
        node.fetch(later, Response(later.url))
        node.finish(waiting, failing, asks, later)
    assert node.takes_as_other() == ["http://a/1", "http://a/2", "http://a/asks"]


async def test_a_node_leaves_even_if_the_server_does_not_reply(
    client: Redis, server: RedisServer, caplog: Logged, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(session, "CALL_TIMEOUT_S", 0.01)
    monkeypatch.setattr(session, "LONGEST_STOP_S", 0.02)
    async with joined(client) as node:
        server.freeze()
        node.enqueue("http://a/")
    server.thaw()
    assert "Cannot leave the crawl" in caplog.text


async def test_a_node_that_closes_before_it_hears_that_it_has_joined_leaves(
    client: Redis, monkeypatch: Patch
) -> None:
    join = CrawlClient.join

    async def join_unheard(node: CrawlClient, *arguments: Any) -> None:
        await join(node, *arguments)
        node.run = b""
        raise CloseSpider("shutdown")

    monkeypatch.setattr(CrawlClient, "join", join_unheard)
    async with joined(client) as node:
        assert node.lease_end
    assert not client.exists(node.key("working"), node.key("nodes"))


async def test_a_node_that_closes_before_it_has_joined_waits_for_no_server(
    client: Redis, server: RedisServer, caplog: Logged, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(session, "LONGEST_STOP_S", ENDLESS_S)

    async def join_in_vain(*_: Any) -> None:
        server.freeze()
        raise CloseSpider("shutdown")

    monkeypatch.setattr(CrawlClient, "join", join_in_vain)
    async with joined(client):
        pass
    server.thaw()
    assert "if this node has joined" in caplog.text


async def test_a_node_without_work_leaves_at_once(client: Redis, monkeypatch: Patch) -> None:
    monkeypatch.setattr(session, "CALL_TIMEOUT_S", ENDLESS_S)
    monkeypatch.setattr(session, "LONGEST_STOP_S", 2 * ENDLESS_S)
    async with joined(client) as node:
        await node.finds_nothing()


# Filtered, and what cannot be stored ------------------------------------------------------------


async def test_duplicates_are_dropped(client: Redis, caplog: Logged) -> None:
    caplog.set_level(logging.DEBUG)
    async with joined(client) as node:
        node.enqueue("http://a/", "http://a/")
        page = await node.start()
        await node.finds_nothing()
        assert node.dropped == ["http://a/"]
        assert "Filtered duplicate request: <GET http://a/> - no more duplicates" in caplog.text
        node.enqueue("http://a/", dont_filter=True)
        node.finish(page)
        assert await node.start()
        await node.has_unfinished(1)
        assert client.hget(node.key("seen"), "count") == b"1"
        assert node.scheduler.crawler.stats.get_value("scheduler/enqueued/redis") == 2
        assert node.scheduler.crawler.stats.get_value("scheduler/dequeued/redis") == 2


class Unstorable:
    def __repr__(self) -> str:
        raise SystemExit(3)


async def test_what_cannot_be_stored_is_an_error(client: Redis, caplog: Logged) -> None:
    async with joined(client) as node:
        request = Request("http://a/", callback=print)
        assert not node.scheduler.enqueue_request(request)
        (record,) = (record for record in caplog.records if record.levelno == logging.ERROR)
        assert record.name == "books"
        assert record.getMessage().startswith("<GET http://a/> cannot be stored, and is dropped: ")
        assert record.getMessage().endswith("callback and errback are the spider's methods")
        within_itself: list[Any] = []
        within_itself.append(within_itself)
        request = Request("http://a/", meta={"value": within_itself})
        assert not node.scheduler.enqueue_request(request)
        assert "meta['value'] = [[...]]: its lists or dicts are nested too deeply" in caplog.text
        bad: list[Any] = [Unstorable(), 10**5000, {"a": Unstorable()}]
        for value in bad:
            assert not node.scheduler.enqueue_request(Request("http://a/", meta={"value": value}))
            named = "<GET http://a/> cannot be stored, and is dropped: meta['value'] = "
            assert caplog.messages[-1].startswith(named)
        for priority in (math.nan, 10**400):
            request = Request("http://a/")
            request.priority = priority  # type: ignore[assignment]
            assert not node.scheduler.enqueue_request(request)
            assert "is dropped: priority = " in caplog.messages[-1]
        assert node.stat("scheduler/unserializable") == 7
        assert node.closes("finished")
        node.enqueue("http://a/next")
        assert (await node.start()).url == "http://a/next"


async def test_what_cannot_be_read_ends_a_node_that_has_dropped_a_request(
    client: Redis, caplog: Logged
) -> None:
    async with joined(client) as node:
        assert not node.scheduler.enqueue_request(Request("http://a/", callback=print))
        other = Node(client, "books", "other")
        other.joins()
        other.push(b"no JSON")
        node.scheduler.next_request()
        await eventually(lambda: "This node cannot read a request" in caplog.text)


async def test_a_request_of_an_unknown_class_holds_up_no_node(
    client: Redis, caplog: Logged
) -> None:
    async with joined(client) as node:
        other = Node(client, "books", "other")
        other.joins()
        other.push(b'{"url": "http://a/1", "_class": "os.system"}')
        await node.visits("http://a/2")
        await node.idles()
        assert caplog.text.count("'os.system'") == 1
        assert "without its dead letters: 1" in caplog.text
        assert node.stat("scheduler/dead_letters/redis") == 1
        assert node.closes("finished")
    assert other.size.dead_letters == 1
    assert result_of(other.retry()) == 1


async def test_without_the_add_on_a_site_is_a_host(client: Redis) -> None:
    queue = "scrapy.pqueues.ScrapyPriorityQueue"
    async with joined(client, SCHEDULER_PRIORITY_QUEUE=queue) as node:
        node.enqueue("http://a:1/", "http://a:2/", "http://b/")
        await eventually(lambda: node.unfinished == 3)
        assert client.zrange(node.key("sites"), 0, -1) == [b"a", b"b"]
        assert {(await node.start()).url for _ in range(3)}
