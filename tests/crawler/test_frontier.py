"""What the scheduler tells the server, and when; the engine is the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from redis.exceptions import ConnectionError as AwayError
from scrapy import Request, Spider
from scrapy.exceptions import DontCloseSpider
from scrapy.utils.test import get_crawler

from crawler.frontier import Scheduler
from crawler.packing import Packing


class Engine:
    """As much of Scrapy's as the scheduler sees."""

    def __init__(self) -> None:
        self.running = False
        self._slot = SimpleNamespace(inprogress=set())

    def begin(self, request: Request | None) -> Request:
        assert request is not None
        self._slot.inprogress.add(request)
        return request

    def finish(self, request: Request) -> None:
        self._slot.inprogress.remove(request)


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def scheduler(engine: Engine, redis_url: str) -> Iterator[Scheduler]:
    crawler = get_crawler(Spider, {"REDIS_URL": redis_url, "CRAWL": "books"})
    crawler.engine = engine  # type: ignore[assignment]
    scheduler = Scheduler.from_crawler(crawler)
    scheduler.packing = Packing(Spider.from_crawler(crawler, name="books"))
    scheduler.crawl.join()
    yield scheduler
    scheduler.server.close()


def test_a_request_is_unfinished_until_the_engine_has_done_with_it(
    scheduler: Scheduler, engine: Engine
) -> None:
    scheduler.enqueue_request(Request("http://a/"))
    page = engine.begin(scheduler.next_request())
    assert scheduler.next_request() is None
    assert scheduler.crawl.counts().unfinished == 1
    engine.finish(page)
    assert scheduler.next_request() is None
    assert scheduler.crawl.counts().unfinished == 0


def test_a_request_takes_with_it_what_the_engine_finished_before(
    scheduler: Scheduler, engine: Engine
) -> None:
    for path in "abc":
        scheduler.enqueue_request(Request(f"http://a/{path}"))
    for unfinished in (3, 2, 1):
        page = engine.begin(scheduler.next_request())
        assert scheduler.crawl.counts().unfinished == unfinished
        engine.finish(page)


def test_nothing_is_finished_before_its_links_are_on_the_server(
    scheduler: Scheduler, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise AwayError

    scheduler.enqueue_request(Request("http://a/"))
    page = engine.begin(scheduler.next_request())
    with monkeypatch.context() as patch:
        patch.setattr(scheduler.crawl, "push", away)
        assert scheduler.enqueue_request(Request("http://a/link"))
    engine.finish(page)
    scheduler.crawl.work()
    scheduler.quiet_until = 0.0
    scheduler._renew()
    assert scheduler.crawl.counts().unfinished == 1
    assert scheduler.has_pending_requests()
    link = engine.begin(scheduler.next_request())
    assert link.url == "http://a/link"
    assert scheduler.crawl.counts().unfinished == 1


def test_a_server_that_is_away_is_not_asked_all_the_time(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def away(*_: object) -> None:
        asked.append(1)
        raise AwayError

    monkeypatch.setattr(scheduler.crawl, "push", away)
    monkeypatch.setattr(scheduler.crawl, "pop", away)
    for number in range(100):
        assert scheduler.enqueue_request(Request(f"http://a/{number}"))
        assert scheduler.next_request() is None
    assert len(asked) < 100
    assert scheduler.has_pending_requests()
    monkeypatch.undo()
    scheduler._look_again()  # the news channel is back
    assert scheduler.next_request() is not None
    assert scheduler.crawl.counts().unfinished == 100


def test_a_node_does_not_rest_while_scrapy_has_lost_sight_of_a_request(
    scheduler: Scheduler, engine: Engine
) -> None:
    scheduler.enqueue_request(Request("http://a/"))
    page = engine.begin(scheduler.next_request())
    with pytest.raises(DontCloseSpider):
        scheduler._spider_idle()
    assert scheduler.crawl.counts().queued == 0
    engine.finish(page)
    scheduler._spider_idle()
    assert scheduler.ended


def test_what_is_filtered_and_what_is_not(scheduler: Scheduler, engine: Engine) -> None:
    assert scheduler.enqueue_request(Request("http://a/"))
    assert not scheduler.enqueue_request(Request("http://a/"))
    page = engine.begin(scheduler.next_request())
    retry = page.replace(dont_filter=True)
    assert scheduler.enqueue_request(retry)
    engine.finish(page)
    assert scheduler.next_request() is not None
    assert scheduler.crawl.counts().unfinished == 1
    assert scheduler.crawl.counts().seen == 1
