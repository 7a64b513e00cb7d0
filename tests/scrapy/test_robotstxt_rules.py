"""What an answer to a request for robots.txt means, and for how long: the tests are the site."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from scrapy import Request, signals
from scrapy.exceptions import CannotResolveHostError, DownloadTimeoutError, IgnoreRequest
from scrapy.http import Response
from scrapy.robotstxt import RobotParser

from semaphore_middleware import AcquireTimeoutError, PermitLostError
from semaphore_middleware.scrapy import robotstxt
from semaphore_middleware.scrapy.robotstxt import RobotsTxtMiddleware
from semaphore_middleware.scrapy.robotstxt_download import origin_of
from semaphore_middleware.scrapy.throttler import NotAllowedError, SpiderClosingError
from tests.scrapy.test_throttler import Scrapy, page, turns
from tests.support.crawls import until
from tests.support.nodes import in_asyncio
from tests.support.servers import RedisServer

FORBIDDING = b"User-agent: *\nDisallow: /\n"
Answer = Response | Exception


class Crawl(Scrapy):
    """A crawl whose middleware asks for robots.txt; each time it gets the next of the answers, and
    after these the last one again.
    """

    def __init__(self, server: RedisServer, *answers: Answer, **settings: Any) -> None:
        alone = {"SEMAPHORE_ROBOTSTXT_SHARED": False}
        super().__init__(server, ROBOTSTXT_OBEY=True, **{**alone, **settings})
        self.crawler.engine.download_async = self._download  # type: ignore[method-assign]
        self.answers = list(answers)
        self.asked: list[Request] = []
        self.gate: asyncio.Event | None = None
        """If there is one, the site answers once it is set."""
        self.middleware = RobotsTxtMiddleware(self.crawler)

    async def _download(self, request: Request) -> Response:
        self.asked.append(request)
        self.middleware._downloader.prepare(request)
        if self.gate is not None:
            await self.gate.wait()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        self.middleware._downloader._limit_size(answer.body, request)
        return answer.replace(url=request.url)

    async def lets_through(self, request: Request) -> bool:
        """Whether the request may go on; False if it is forbidden."""
        self.throttler.backpressure.enter(request)
        try:
            assert await self.middleware.process_request(request) is None
        except IgnoreRequest:
            return False
        finally:
            self.throttler.backpressure.leave(request)
        return True

    def stat(self, name: str) -> int:
        return int(self.crawler.stats.get_value(f"robotstxt/{name}", 0))


@asynccontextmanager
async def opened(server: RedisServer, *answers: Answer, **settings: Any) -> AsyncIterator[Crawl]:
    crawl = Crawl(server, *answers, **settings)
    await crawl.send(signals.spider_opened)
    try:
        yield crawl
    finally:
        await crawl.send(signals.spider_closed)


def answer(status: int = 200, body: bytes = FORBIDDING, **headers: str) -> Answer:
    return Response("http://a/robots.txt", status, headers, body)


def moved(location: str) -> Answer:
    return answer(301, Location=location)


# What an answer means -----------------------------------------------------------------------------


MEANINGS: list[tuple[list[Answer], bool]] = [
    ([answer()], False),
    ([answer(204, b"")], True),
    *[([answer(status)], True) for status in (401, 403, 404, 410, 429)],
    *[([answer(status)], False) for status in (500, 503, 599, 999)],
    ([answer(304)], True),
    ([moved("/1")] * 5 + [answer()], False),
    ([moved("/1")] * 6 + [answer()], True),
    ([moved("file:///etc/passwd")], True),
    ([moved("http://[")], True),
    ([DownloadTimeoutError()], False),
    ([CannotResolveHostError("a")], False),
    ([moved("http://b/"), DownloadTimeoutError()], False),
]
"""Answers of a site, one after another, and whether its pages may be fetched then."""


@in_asyncio
async def test_what_an_answer_means(server: RedisServer) -> None:
    async with opened(server, answer()) as crawl:
        stats = crawl.crawler.stats
        for number, (answers, allowed) in enumerate(MEANINGS):
            stats.clear_stats()
            crawl.answers, crawl.asked = list(answers), []
            assert await crawl.lets_through(page(f"host-{number}")) == allowed, answers
            assert len(crawl.asked) == min(len(answers), 6)
            assert crawl.stat("forbidden") == (not allowed)
            assert crawl.stat("request_count") == 1
            is_error = isinstance(answers[-1], Exception)
            assert crawl.stat("response_count") == (not is_error)
            if is_error:
                assert crawl.stat(f"exception_count/{type(answers[-1])}") == 1


@in_asyncio
async def test_redirects_are_followed_to_other_hosts(server: RedisServer) -> None:
    async with opened(server, moved("//b:8000/robots"), moved("rules"), answer()) as crawl:
        assert not await crawl.lets_through(page())
        urls = [request.url for request in crawl.asked]
        assert urls == ["http://a/robots.txt", "http://b:8000/robots", "http://b:8000/rules"]
        for request in crawl.asked:
            assert request.meta["dont_obey_robotstxt"]
            assert request.meta["dont_redirect"]
            assert request.meta["allow_offsite"]
            assert request.priority == RobotsTxtMiddleware.DOWNLOAD_PRIORITY


@in_asyncio
async def test_an_unreachable_one_may_allow_all(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    allow = {"SEMAPHORE_ROBOTSTXT_UNREACHABLE": "allow"}
    async with opened(server, answer(500), **allow) as crawl:
        assert await crawl.lets_through(page())
        assert "its requests are allowed" in caplog.text


@pytest.mark.parametrize("parser", ["Protego", "Python"])
@in_asyncio
async def test_any_parser_reads_it(server: RedisServer, parser: str) -> None:
    settings = {"ROBOTSTXT_PARSER": f"scrapy.robotstxt.{parser}RobotParser"}
    answers = answer(body=b"User-agent: *\nDisallow: /0"), answer(500)
    async with opened(server, *answers, **settings) as crawl:
        assert not await crawl.lets_through(page())
        assert await crawl.lets_through(page("a", 1))
        assert not await crawl.lets_through(page("b"))


@in_asyncio
async def test_a_parser_that_fails_lets_nothing_through(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    too_long = b"User-agent: *\nCrawl-delay: " + b"9" * 5000  # for Python's integers
    settings = {"ROBOTSTXT_PARSER": "scrapy.robotstxt.PythonRobotParser"}
    async with opened(server, answer(body=too_long), **settings) as crawl:
        checks = asyncio.gather(crawl.middleware.process_request(page()), return_exceptions=True)
        assert [type(result) for result in await checks] == [IgnoreRequest]
        assert "its parser failed: ValueError" in caplog.text


@in_asyncio
async def test_each_scheme_and_port_has_its_own(server: RedisServer) -> None:
    urls = ["http://a/", "https://a/", "http://A:80/", "http://user:secret@a/", "http://a:8080/"]
    async with opened(server, answer(404)) as crawl:
        for url in urls:
            assert await crawl.lets_through(Request(url))
        asked = [request.url for request in crawl.asked]
        assert asked == [
            f"{origin}/robots.txt" for origin in ("http://a", "https://a", "http://a:8080")
        ]
    assert origin_of(Request("https://[::1]:443/")) == "https://[::1]"


@in_asyncio
async def test_robots_parsed_is_sent_for_what_a_site_says(server: RedisServer) -> None:
    heard: list[tuple[RobotParser, Request]] = []

    def hear(robotparser: RobotParser, request: Request) -> None:
        heard.append((robotparser, request))

    async with opened(server, answer(), answer(404), answer(500)) as crawl:
        crawl.crawler.signals.connect(hear, signals.robots_parsed)
        for host in "abc":
            await crawl.lets_through(page(host))
    assert [request.url for _, request in heard] == ["http://a/0", "http://b/0"]
    assert [parser.allowed("http://a/0", "bot") for parser, _ in heard] == [False, True]


# Our own errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [AcquireTimeoutError("late"), PermitLostError("lost")])
@in_asyncio
async def test_our_own_errors_decide_nothing(server: RedisServer, error: Exception) -> None:
    async with opened(server, error, answer()) as crawl:
        crawl.gate = asyncio.Event()
        reads = [asyncio.ensure_future(crawl.lets_through(page("a", n))) for n in range(3)]
        await turns()
        crawl.gate.set()
        for read in reads:  # all of them have waited in vain
            with pytest.raises(type(error)):
                await read
        assert len(crawl.asked) == 1
        assert not await crawl.lets_through(page())


@pytest.mark.parametrize("before", [[], [moved("/rules")]])
@in_asyncio
async def test_a_request_that_is_not_allowed_decides_nothing(
    server: RedisServer, before: list[Answer]
) -> None:
    error = NotAllowedError("by_section in SEMAPHORE_SCOPES raised KeyError('section')")
    async with opened(server, *before, error, answer()) as crawl:
        checks = asyncio.gather(crawl.middleware.process_request(page()), return_exceptions=True)
        assert [type(result) for result in await checks] == [NotAllowedError]
        assert not await crawl.lets_through(page())
        assert crawl.stat("forbidden") == 1


@pytest.mark.parametrize("before", [[], [moved("/rules")]])
@in_asyncio
async def test_the_end_of_the_crawl_decides_nothing(
    server: RedisServer, before: list[Answer]
) -> None:
    async with opened(server, *before, SpiderClosingError("the spider is closing")) as crawl:
        request = page()
        copy = await crawl.middleware.process_request(request)
        assert copy is not None
        assert copy is not request
        assert (copy.url, copy.dont_filter) == (request.url, True)


@in_asyncio
async def test_what_a_middleware_does_not_ask_for_is_allowed_as_in_scrapy(
    server: RedisServer,
) -> None:
    async with opened(server, IgnoreRequest("not in the cache")) as crawl:
        assert await crawl.lets_through(page())
        assert await crawl.lets_through(page())
        assert len(crawl.asked) == 1
        assert crawl.stat("request_count") == 0


@in_asyncio
async def test_if_the_request_that_asks_is_cancelled_another_asks(server: RedisServer) -> None:
    async with opened(server, answer()) as crawl:
        crawl.gate = asyncio.Event()
        reads = [asyncio.ensure_future(crawl.lets_through(page("a", n))) for n in range(3)]
        await turns()
        reads[0].cancel()
        await turns()
        assert len(crawl.asked) == 2
        crawl.gate.set()
        assert [await read for read in reads[1:]] == [False, False]


# For how long -------------------------------------------------------------------------------------


@in_asyncio
async def test_after_a_day_it_is_asked_for_again(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert robotstxt.MAX_AGE_S == 24 * 60 * 60
    async with opened(server, answer(404), answer()) as crawl:
        now = asyncio.get_running_loop().time()
        assert await crawl.lets_through(page())
        assert await crawl.lets_through(page())
        monkeypatch.setattr(crawl.middleware, "_now", lambda: now + robotstxt.MAX_AGE_S - 1)
        assert await crawl.lets_through(page())
        monkeypatch.setattr(crawl.middleware, "_now", lambda: now + robotstxt.MAX_AGE_S + 60)
        assert not await crawl.lets_through(page())
        assert len(crawl.asked) == 2


@in_asyncio
async def test_the_rules_that_were_used_longest_ago_are_forgotten(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(robotstxt, "RULES_MAX", 2)
    async with opened(server, answer()) as crawl:
        for host in "abacab":
            assert not await crawl.lets_through(page(host))
            assert len(crawl.middleware._rules) <= 2
        asked = [request.url for request in crawl.asked]
        assert asked == [f"http://{host}/robots.txt" for host in "abcb"]


@in_asyncio
async def test_the_age_counts_from_the_request(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(server, answer()) as crawl:
        times = iter([1000.0, 1600.0])
        monkeypatch.setattr(crawl.middleware, "_now", lambda: next(times))
        fetched = await crawl.middleware._fetch("http://a", None)
        assert fetched.valid == robotstxt.MAX_AGE_S - 600


@in_asyncio
async def test_an_unreachable_one_is_asked_for_again_after_pauses_that_double(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    backoff = {"SEMAPHORE_BACKOFF_START": 10, "SEMAPHORE_BACKOFF_MAX": 30}
    answers = [*[answer(500)] * 4, answer(404), answer(500)]
    async with opened(server, *answers, **backoff) as crawl:
        now = asyncio.get_running_loop().time()
        monkeypatch.setattr(crawl.middleware, "_now", lambda: now)
        for pause in (10, 20, 30, 30):
            asked = len(crawl.asked)
            for _ in range(2):
                assert not await crawl.lets_through(page())
            now += pause - 0.1
            assert not await crawl.lets_through(page())
            assert len(crawl.asked) == asked + 1
            now += 0.2
        assert await crawl.lets_through(page())
        assert "can be read again" in caplog.text
        now += robotstxt.MAX_AGE_S + 60
        assert not await crawl.lets_through(page())
        now += 10.1
        await crawl.lets_through(page())
        assert len(crawl.asked) == 7
    lines = [line.message for line in caplog.records if "cannot be read" in line.message]
    assert len(lines) == 2
    assert lines[0] == (
        "The robots.txt of http://a cannot be read (500 Internal Server Error). Until it can, its "
        "requests are forbidden (SEMAPHORE_ROBOTSTXT_UNREACHABLE). It is asked for again after "
        "10 s, then after longer times, up to 30 s."
    )


# Sharing ------------------------------------------------------------------------------------------


@in_asyncio
async def test_what_one_node_has_read_another_need_not_ask_for(server: RedisServer) -> None:
    shared = {"SEMAPHORE_ROBOTSTXT_SHARED": True}
    parsed: list[Request] = []

    def hear(request: Request, **_: Any) -> None:
        parsed.append(request)

    async with (
        opened(server, answer(), **shared) as one,
        opened(server, answer(404), **shared) as other,
    ):
        assert not await one.lets_through(page())
        other.crawler.signals.connect(hear, signals.robots_parsed)
        assert not await other.lets_through(page())
        assert other.asked == []
        assert len(parsed) == 1
        assert other.stat("request_count") == other.stat("response_count") == 0
    assert other.crawler.stats.get_value("semaphore/robotstxt_reused") == 1
    assert one.crawler.stats.get_value("semaphore/robotstxt_reused") is None


@in_asyncio
async def test_an_outage_is_one_for_all_nodes(server: RedisServer) -> None:
    shared = {"SEMAPHORE_ROBOTSTXT_SHARED": True, "SEMAPHORE_BACKOFF_START": 0.02}
    async with (
        opened(server, answer(500), **shared) as one,
        opened(server, answer(500), **shared) as other,
    ):
        assert not await one.lets_through(page())
        assert not await other.lets_through(page())
        assert other.asked == []
        await asyncio.sleep(0.03)
        assert not await other.lets_through(page())
        assert len(other.asked) == 1
        assert other.middleware._rules["http://a"].failures == 2


@pytest.mark.parametrize("is_shared", [True, False])
@in_asyncio
async def test_two_nodes_that_begin_at_once(server: RedisServer, is_shared: bool) -> None:
    settings = {"SEMAPHORE_ROBOTSTXT_SHARED": is_shared}
    async with (
        opened(server, answer(), **settings) as one,
        opened(server, answer(), **settings) as other,
    ):
        both = [one.lets_through(page()), other.lets_through(page())]
        assert await asyncio.gather(*both) == [False, False]
        assert len(one.asked + other.asked) == (1 if is_shared else 2)


@in_asyncio
async def test_whoever_is_blocked_elsewhere_takes_no_room(server: RedisServer) -> None:
    backpressure = Scrapy(server).throttler.backpressure
    backpressure.enter(request := page())
    assert backpressure.exempt_from_concurrency == 0
    with backpressure.blocked(request):
        assert backpressure.exempt_from_concurrency == 1
    assert backpressure.exempt_from_concurrency == 0


@in_asyncio
async def test_whoever_waits_for_another_node_s_fetch_takes_no_room(server: RedisServer) -> None:
    shared = {"SEMAPHORE_ROBOTSTXT_SHARED": True}
    async with (
        opened(server, answer(), **shared) as one,
        opened(server, answer(), **shared) as other,
    ):
        one.gate = asyncio.Event()
        first = asyncio.ensure_future(one.lets_through(page()))
        await until(lambda: one.asked)
        waits = asyncio.ensure_future(other.lets_through(page()))
        backpressure = other.throttler.backpressure
        await until(lambda: backpressure.exempt_from_concurrency == 1)
        one.gate.set()
        assert [await first, await waits] == [False, False]
        assert backpressure.exempt_from_concurrency == 0
