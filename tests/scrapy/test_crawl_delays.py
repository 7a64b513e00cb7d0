"""Delays that robots.txt asks for: how long, of which host, and beside a limit's own delay."""

from __future__ import annotations

from typing import Any

import pytest
from scrapy import Request
from scrapy.robotstxt import ProtegoRobotParser, PythonRobotParser
from scrapy.settings import Settings

from semaphore_middleware import Limit
from semaphore_middleware.scrapy.crawl_delays import CrawlDelays

PAGE, OTHER = Request("http://a.example/page"), Request("http://b.example/page")
AGENTS = "User-agent: mine\nCrawl-delay: 3\n\nUser-agent: *\nCrawl-delay: 5\n"


def learned(text: str, longest: float = 60, request: Request = PAGE, **settings: Any) -> Any:
    """The limit's delay after this robots.txt, at the host that has it."""
    delays = CrawlDelays(Settings({"USER_AGENT": "bot", **settings}), longest)
    delays.learn(ProtegoRobotParser(text.encode(), None), request)
    assert delays.apply(Limit(2), OTHER) == Limit(2), "of another host it says nothing"
    return delays.apply(Limit(2), PAGE).delay


@pytest.mark.parametrize(
    ("text", "delay"),
    [
        ("Crawl-delay: 5", 5),
        ("Request-rate: 1/5s", 5),
        ("Request-rate: 10/5s", 0.5),
        ("Crawl-delay: 1\nRequest-rate: 1/5s", 5),
        ("Crawl-delay: 600", 60),
        ("Crawl-delay: soon", 0),
        ("Crawl-delay: -5", 0),
        ("Crawl-delay: nan", 0),
        ("Crawl-delay: -inf", 0),
        ("Crawl-delay: inf", 0),  # protego reads these as none
        ("Crawl-delay: 1e309", 0),
        ("Crawl-delay: " + "9" * 400, 0),
        ("Request-rate: 1/" + "9" * 400, 60),
        ("Request-rate: inf/nan", 0),
        ("Disallow: /x", 0),
    ],
)
def test_the_longer_one_counts_up_to_the_longest(text: str, delay: float) -> None:
    assert learned(f"User-agent: *\n{text}") == delay


def test_the_user_agent_of_robots_txt_counts_before_the_request_s_and_the_default() -> None:
    from_request = Request(PAGE.url, headers={"User-Agent": "mine"})
    assert learned(AGENTS) == 5
    assert learned(AGENTS, USER_AGENT="mine") == 3
    assert learned(AGENTS, request=from_request) == 3
    assert learned(AGENTS, request=from_request, ROBOTSTXT_USER_AGENT="bot") == 5
    assert learned(AGENTS, ROBOTSTXT_USER_AGENT="mine") == 3


def test_a_delay_that_no_float_can_be_is_the_longest() -> None:
    delays = CrawlDelays(Settings({"USER_AGENT": "bot"}), 60)
    text = b"User-agent: *\nCrawl-delay: " + b"9" * 400
    assert delays.learn(PythonRobotParser(text, None), PAGE)
    assert delays.apply(Limit(2), PAGE).delay == 60


def test_what_is_read_again_counts_as_new_only_if_it_is_and_is_gone_if_it_is_gone() -> None:
    delays = CrawlDelays(Settings({"USER_AGENT": "bot"}), 60)

    def learn(text: bytes) -> bool:
        return delays.learn(ProtegoRobotParser(b"User-agent: *\n" + text, None), PAGE)

    assert learn(b"Crawl-delay: 5")
    assert not learn(b"Crawl-delay: 5")
    assert learn(b"Crawl-delay: 6")
    assert not learn(b"Disallow: /x")
    assert delays.apply(Limit(2), PAGE) == Limit(2)


@pytest.mark.parametrize(
    ("limit", "then"),
    [
        (Limit(2, 20, 0.5), Limit(2, 20, 0.5)),
        (Limit(2, 8, 0.5), Limit(2, 8, 0.375)),  # never below 5 s
        (Limit(2, 1, rate="1/m"), Limit(2, 5, rate="1/m")),
        (Limit(2, adaptive=True), Limit(2, 5, adaptive=True)),
    ],
)
def test_a_limit_s_own_delay_is_never_lowered(limit: Limit, then: Limit) -> None:
    delays = CrawlDelays(Settings({"USER_AGENT": "bot"}), 60)
    robots = ProtegoRobotParser(b"User-agent: *\nCrawl-delay: 5", None)
    assert delays.learn(robots, PAGE)
    assert delays.apply(limit, PAGE) == then
