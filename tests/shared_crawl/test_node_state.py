"""What a node sends next, and the effects of replies, without a loop or a server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from scrapy import Request
from scrapy.squeues import FifoMemoryQueue

from semaphore_middleware.shared_crawl.client import (
    NO_DEMAND,
    AtWork,
    IdleReply,
    Missing,
    NextStep,
    Outcome,
    Queued,
    RequestInFlight,
    SyncReply,
    WrongTypeError,
)
from semaphore_middleware.shared_crawl.engine import CrawlEngine
from semaphore_middleware.shared_crawl.keys import Places
from semaphore_middleware.shared_crawl.node_state import (
    STARTS_POLL_S,
    CrawlCall,
    IdleCall,
    NodeState,
    StartsCall,
    SyncCall,
)
from semaphore_middleware.shared_crawl.settings import CrawlSettings
from tests.shared_crawl.node import SitesQueue, urls
from tests.support.crawls import ready_crawler

LEASE_S = 9.0


class Engine:
    """The part of the crawl's engine that a node's state uses."""

    def __init__(self) -> None:
        self.in_progress: set[Request] = set()
        self.wakes = 0
        self.dropped: list[str] = []

    def wake(self) -> None:
        self.wakes += 1

    def finish(self) -> None:
        self.wakes += 1

    def send_request_dropped(self, request: Request) -> None:
        self.dropped.append(request.url)

    def leave_out_own_proxy(self, _fields: dict[str, Any]) -> None: ...


class Node:
    """A node's state, and a server that replies as the test says."""

    def __init__(self, **settings: Any) -> None:
        ours: dict[str, Any] = {
            "SCHEDULER_PRIORITY_QUEUE": SitesQueue,
            "SCHEDULER_MEMORY_QUEUE": FifoMemoryQueue,
        }
        crawler = ready_crawler(**ours)
        crawler.spider = crawler._create_spider("books")
        self.engine = Engine()
        self.mismatches: list[Exception] = []
        crawl = CrawlSettings("redis://unused", "books", lease=LEASE_S, **settings)
        self.state = NodeState(
            crawl, crawler, cast("CrawlEngine", self.engine), self.mismatches.append
        )
        self.state.works = True
        self.now = 100.0
        self.exchange()

    def enqueue(self, *urls: str) -> None:
        for url in urls:
            self.state.enqueue(Request(url))

    def call(self) -> CrawlCall | None:
        return self.state.next_call(self.now)

    def syncs(self) -> SyncCall:
        call = self.call()
        assert isinstance(call, SyncCall)
        return call

    def idles(self) -> CrawlCall | None:
        self.state.on_idle()
        return self.call()

    def reply(self, call: CrawlCall | None, reply: Any) -> None:
        assert call is not None
        self.state.on_reply(call, reply, self.now)

    def exchange(self, *taken: RequestInFlight, **fields: Any) -> SyncCall:
        """One call of `sync`, and the reply to it."""
        call = self.syncs()
        queued = [Queued.YES] * len(call.new)
        replied = {"queued": queued, "lease_expired": False, "dead_letters": [], **fields}
        self.reply(call, SyncReply(taken=list(taken), **replied))
        return call

    def asks(self) -> Request | None:
        """The engine asks for a request, and starts it."""
        request = self.state.next_request()
        if request is not None:
            self.engine.in_progress.add(request)
        return request

    def taken(self, url: str) -> RequestInFlight:
        data = self.state.codec.encode(b"", Request(url)).data
        return RequestInFlight(Places().new_place(url.split("/")[2], 0), data)

    def begins(self, *urls: str) -> list[Request]:
        """Take these requests, and start all of them."""
        assert self.asks() is None
        self.exchange(*map(self.taken, urls))
        begun = [self.asks() for _ in urls]
        assert None not in begun
        return [request for request in begun if request is not None]


@pytest.fixture
def node() -> Node:
    return Node()


def test_without_news_the_next_call_renews_the_lease(node: Node) -> None:
    assert node.call() is None
    assert node.now < node.state.call_at <= node.now + LEASE_S / 2
    node.now = node.state.call_at
    assert node.exchange().working
    assert node.call() is None


def test_what_changes_while_a_call_is_under_way_is_told_in_the_next(node: Node) -> None:
    node.reply(node.idles(), IdleReply(NextStep.WAIT, 60.0, [], 0))
    node.now = node.state.call_at
    done = SyncReply([], [], lease_expired=False, dead_letters=[])
    call = node.syncs()
    node.state.on_held_open()
    node.reply(call, done)
    assert (call.working, node.state.call_at) == (False, 0.0)
    call = node.syncs()
    assert call.working
    node.state.on_closing()
    node.reply(call, done)
    assert not call.stopping
    assert node.exchange().stopping
    assert node.call() is None


def test_a_page_is_finished_only_in_the_call_that_brings_the_last_of_its_links(node: Node) -> None:
    node.begins("http://a/")
    node.enqueue(*urls("a", 40))
    node.state.on_timeout(node.syncs())
    node.engine.in_progress.clear()
    calls = [node.exchange(), node.exchange()]
    assert [len(call.new) for call in calls] == [20, 20]
    assert [len(call.finished) for call in calls] == [0, 1]
    assert not node.state.finished()


def test_without_a_reply_the_same_call_is_made_again(node: Node) -> None:
    node.enqueue(*urls("a", 3))
    assert node.syncs() == node.syncs()
    assert len(node.exchange().new) == 3
    assert node.call() is None


def test_after_a_timeout_a_call_has_half_as_many_requests_and_then_one_more_each(
    node: Node,
) -> None:
    node.enqueue(*urls("a", 10))
    node.state.on_timeout(node.syncs())
    assert node.asks() is None
    call = node.exchange()
    assert (len(call.new), call.demand.requests) == (5, 5)
    assert len(node.syncs().new) == 5
    node.enqueue(*urls("b", 10))
    assert len(node.exchange().new) == 6


def test_a_server_without_requests_is_asked_again_when_it_notifies(node: Node) -> None:
    assert node.asks() is None
    assert node.state.has_pending
    assert node.exchange().demand.requests
    assert not node.state.has_pending
    assert node.asks() is None
    assert node.call() is None
    wakes = node.engine.wakes
    node.state.check_again()
    assert node.engine.wakes == wakes + 1
    assert node.exchange().demand.requests


def test_a_notification_during_a_call_counts_after_it(node: Node) -> None:
    assert node.asks() is None
    call = node.syncs()
    node.state.check_again()
    node.reply(call, SyncReply([], [], False, []))
    assert node.state.has_pending
    assert node.asks() is None
    assert node.syncs().demand.requests


def test_new_requests_of_its_own_are_asked_for(node: Node) -> None:
    assert node.asks() is None
    node.exchange()
    node.enqueue("http://a/")
    node.exchange()
    assert node.state.has_pending
    assert node.asks() is None
    assert node.syncs().demand.requests


def test_an_idle_node_reports_what_it_has_finished_and_then_waits(node: Node) -> None:
    node.begins("http://a/")
    assert not isinstance(node.idles(), IdleCall), "Scrapy still has the page"
    node.engine.in_progress.clear()
    call = node.idles()
    assert isinstance(call, IdleCall)
    assert len(call.finished) == 1
    node.reply(call, IdleReply(NextStep.WAIT, 3.0, [], 0))
    assert node.state.call_at <= node.now + 3.0
    assert not node.state.finished()


def test_a_node_that_is_stopping_says_so_at_once_and_takes_no_more(node: Node) -> None:
    node.begins("http://a/")
    node.state.next_request()
    node.state.on_closing()
    assert node.state.has_work.is_set()
    call = node.syncs()
    assert (call.stopping, call.demand) == (True, NO_DEMAND)


def test_an_idle_node_first_sends_its_new_requests(node: Node) -> None:
    node.enqueue("http://a/")
    assert isinstance(node.idles(), SyncCall)
    node.exchange()
    assert node.call() is None, "by then it may have more to do"
    assert isinstance(node.idles(), IdleCall)


def test_when_its_time_to_wait_is_over_a_node_asks_again(node: Node) -> None:
    assert node.asks() is None
    node.exchange()
    node.reply(node.idles(), IdleReply(NextStep.WAIT, 1.0, [], 0))
    node.now += 1.0
    node.state.begin_cycle(node.now)
    assert node.state.has_work.is_set()
    assert node.exchange().demand.requests


@pytest.mark.parametrize(
    ("step", "missing", "has_failed"),
    [
        (NextStep.CLOSE, Missing(left=1), False),
        (NextStep.CLOSE, Missing(failed=1), False),
        (NextStep.CLOSE, Missing(dead_letters=1), True),
        (NextStep.CLOSE_UNDONE, Missing(), True),
        (NextStep.CLOSE_UNDONE, Missing(lost=1), True),
    ],
)
def test_the_last_idle_node_ends_the_crawl(
    node: Node, step: NextStep, missing: Missing, has_failed: bool
) -> None:
    """It has failed without pages, or with dead letters."""
    node.reply(node.idles(), IdleReply(step, 0.0, [], 0, missing=missing))
    assert node.state.end.has_come
    assert node.state.end.has_failed == has_failed
    assert not node.state.has_pending


def test_requests_that_are_not_sent_by_the_end_are_dropped(node: Node) -> None:
    node.enqueue("http://a/")
    node.state.end_crawl()
    assert node.engine.dropped == ["http://a/"]
    assert not node.state.end.has_failed, "the node was at work"
    assert node.call() is None


def test_start_requests_of_users_come_before_the_end() -> None:
    node = Node(start_key="starts")
    call = node.idles()
    assert isinstance(call, StartsCall)
    node.reply(call, [(b"1", b"http://a/"), (b"2", b"no URL")])
    sent = node.exchange()
    assert [new.reservation for new in sent.new] == [b"1", b"2"]
    assert [bool(new.place) for new in sent.new] == [True, False], "the second is a dead letter"
    call = node.idles()
    assert isinstance(call, StartsCall)
    node.reply(call, [])
    assert isinstance(node.call(), IdleCall)


def test_a_node_that_waits_looks_often_for_start_requests() -> None:
    node = Node(start_key="starts")
    node.reply(node.idles(), [])
    node.reply(node.call(), IdleReply(NextStep.WAIT, 10 * STARTS_POLL_S, [], 0))
    assert node.state.call_at == node.now + STARTS_POLL_S


def test_start_requests_of_users_that_are_reserved_are_queued_in_a_new_run() -> None:
    node = Node(start_key="starts")
    node.reply(node.idles(), [(b"1", b"http://a/"), (b"2", b"no URL")])
    node.state.begin_anew()
    assert [(new.reservation, bool(new.place)) for new in node.exchange().new] == [(b"", True)]


def test_the_users_key_is_looked_at_while_a_page_is_slow() -> None:
    node = Node(start_key="starts")
    node.begins("http://a/")
    assert node.asks() is None
    node.exchange()
    node.reply(node.call(), [])
    assert node.call() is None
    node.now += 1.0
    assert node.state.call_at <= node.now
    node.state.begin_cycle(node.now)
    node.exchange()
    assert isinstance(node.call(), StartsCall)


def test_after_the_end_of_its_lease_a_node_says_what_it_has(node: Node) -> None:
    (page,) = node.begins("http://a/")
    assert node.asks() is None
    node.exchange(node.taken("http://b/"), lease_expired=True)
    held = node.syncs().held
    assert held is not None
    assert (len(held.ready), len(held.started)) == (1, 1)
    assert page in node.engine.in_progress


def test_a_node_without_the_users_key_takes_what_another_has_left_of_it(node: Node) -> None:
    assert node.asks() is None
    node.exchange()
    wakes = node.engine.wakes
    node.reply(node.idles(), IdleReply(NextStep.TAKE_STARTS, 0.0, [], 0))
    assert (node.state.has_work.is_set(), node.engine.wakes) == (True, wakes + 1)
    call = node.call()
    assert call == StartsCall(None)
    node.reply(call, [(b"1", b"http://a/")])
    assert [new.reservation for new in node.exchange().new] == [b"1"]


def test_a_key_of_another_type_ends_the_node_and_does_not_stop_it() -> None:
    node = Node(start_key="starts")
    assert isinstance(node.idles(), StartsCall)
    node.state.on_wrong_type(WrongTypeError("string"))
    assert len(node.mismatches) == 1
    assert isinstance(node.call(), IdleCall)


def test_what_a_node_waits_for_is_said_once_a_minute(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for at_work in (AtWork(3, "two:1234", 5), None):
        for _ in range(2):
            node.reply(node.idles(), IdleReply(NextStep.WAIT, 1.0, [], 0, at_work=at_work))
        node.now += 60.0
    assert caplog.messages == [
        "This node waits for others at work (3), such as two:1234; requests in flight there: 5",
        "This node waits for further requests, as CRAWL_WAIT allows",
    ]


def test_a_waiting_node_names_the_key_and_the_server_it_reads(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    node = Node(start_key="shop:starts")
    node.reply(node.idles(), [])
    node.reply(node.call(), IdleReply(NextStep.WAIT, 1.0, [], 0))
    [line] = [line for line in caplog.messages if "waits" in line]
    assert line.endswith("as CRAWL_WAIT allows; it reads 'shop:starts' at redis://unused:6379/0")


def test_an_unreadable_request_goes_back_and_ends_the_node(node: Node) -> None:
    assert node.asks() is None
    unreadable = RequestInFlight(b"place", b"no JSON")
    node.exchange(unreadable, node.taken("http://a/"))
    assert len(node.mismatches) == 1
    assert node.state.has_unsent
    assert node.exchange().unreadable == (unreadable,)
    assert not node.state.has_unsent
    assert node.asks() is not None


def test_a_place_that_is_no_text_ends_the_node_without_further_errors(node: Node) -> None:
    assert node.asks() is None
    hostile = replace(node.taken("http://a/"), place=b"\xff" * 20)
    node.exchange(hostile)
    assert len(node.mismatches) == 1
    assert node.asks() is None
    assert node.exchange().unreadable == (hostile,)


def test_a_request_of_an_unknown_class_becomes_a_dead_letter_and_the_node_goes_on(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    assert node.asks() is None
    refused = RequestInFlight(b"place", b'{"url": "http://a/", "_class": "os.system"}')
    node.exchange(refused, node.taken("http://b/"))
    assert node.mismatches == []
    (line,) = caplog.messages
    assert line.startswith("A request becomes a dead letter: 'os.system' names no subclass of")
    assert node.exchange().unreadable == (refused,)
    assert refused.outcome is Outcome.REFUSED
    assert node.asks() is not None


def test_what_cannot_be_read_is_sent_before_the_node_is_idle(node: Node) -> None:
    assert node.asks() is None
    node.exchange(RequestInFlight(b"place", b'{"url": "http://a/", "_class": "os.system"}'))
    assert isinstance(node.idles(), SyncCall)
    node.exchange()
    assert isinstance(node.idles(), IdleCall)


def test_duplicates_and_requests_over_a_site_s_budget_are_dropped(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    node.enqueue(*urls("a", 4))
    queued = [Queued.DUPLICATE, Queued.YES, Queued.OVER_BUDGET, Queued.OVER_BUDGET]
    node.exchange(queued=queued)
    assert node.engine.dropped == ["http://a/0", "http://a/2", "http://a/3"]
    assert caplog.text.count("<GET http://a/2> is dropped: its site has all") == 1
    assert "http://a/3" not in caplog.text


def test_a_node_whose_lease_has_expired_keeps_only_what_it_has_begun(node: Node) -> None:
    assert node.asks() is None
    node.exchange(*map(node.taken, urls("a", 3)))
    assert node.asks() is not None
    node.enqueue("http://b/")
    node.exchange(lease_expired=True)
    assert node.asks() is None
    node.engine.in_progress.clear()
    assert len(node.state.finished()) == 1


def test_a_node_that_was_silent_until_it_was_idle_says_so(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.now += 2 * LEASE_S
    node.reply(node.idles(), IdleReply(NextStep.WAIT, 1.0, [], 1))
    assert "This node was silent for" in caplog.text


def test_a_promoted_server_is_sent_recent_requests_again(node: Node) -> None:
    node.enqueue("http://a/")
    sent = node.exchange().new
    node.state.new_requests.on_same_server()
    node.state.has_work.clear()
    node.state.on_promoted_server()
    assert node.state.has_work.is_set()
    assert node.exchange().new == sent
    node.state.new_requests.on_same_server()
    node.state.new_requests.on_same_server()
    node.state.on_promoted_server()
    assert node.syncs().new == [], "a server that was looked at twice since has them"


def test_nothing_is_sent_again_after_the_end(node: Node) -> None:
    node.enqueue("http://a/")
    node.exchange()
    node.state.end_crawl()
    node.state.on_promoted_server()
    assert not node.state.has_unsent


def test_a_new_run_is_given_the_requests_of_the_lost_one(node: Node) -> None:
    node.begins("http://a/", "http://b/")
    node.state.begin_anew()
    assert len(node.syncs().new) == 2
    assert not node.state.prefetch.has_poison


def test_a_node_is_not_idle_before_the_start_requests_of_a_new_run(node: Node) -> None:
    node.state.on_idle()
    assert isinstance(node.call(), IdleCall)
    node.state.begin_anew()
    assert not isinstance(node.call(), IdleCall)


def test_a_node_that_leaves_takes_nothing(node: Node) -> None:
    assert node.asks() is None
    assert node.state.prefetch.wants_more
    node.state.on_idle()
    node.state.leave()
    assert node.call() is None


def test_numbers_are_sent_once_an_interval_if_they_have_changed(node: Node) -> None:
    stats = node.state._stats
    stats.inc_value("item_scraped_count")
    stats.inc_value("shop/products")  # the project's own
    node.enqueue("http://a/")
    assert node.exchange().stats == {}
    node.now += LEASE_S
    sums = {"item_scraped_count": 1, "scheduler/enqueued/redis": 1}
    assert node.exchange().stats == sums
    node.now += LEASE_S
    assert node.exchange().stats == {}


def test_a_server_without_the_numbers_is_sent_them_again(node: Node) -> None:
    node.state._stats.inc_value("item_scraped_count")
    node.now += LEASE_S
    assert node.exchange().stats == {"item_scraped_count": 1}
    for lost in (node.state.on_promoted_server, node.state.begin_anew):
        node.enqueue("http://a/")
        assert node.exchange().stats == {}
        lost()
        node.enqueue("http://a/")
        assert node.exchange().stats["item_scraped_count"] == 1
