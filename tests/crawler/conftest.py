"""A site to crawl, and nodes that crawl it as processes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis import Redis

from lab.demo.judging import Visit
from lab.demo.site import ExampleSite
from tests.support.blocking import result_of
from tests.support.scrapy_process import ScrapyProcess
from tests.support.servers import RedisServer, wait_until
from tests.support.shared_crawl import Node, looking_at
from tests.support.times import ENDLESS_S

HOST = "127.0.0.1"  # the example site's
LIMIT = 8
FAST = ("-s", f"CONCURRENT_REQUESTS_PER_DOMAIN={LIMIT}")
LASTING = ("-s", f"CRAWL_LEASE={ENDLESS_S}", "-s", f"SEMAPHORE_LEASE={ENDLESS_S}")


class ClosedSite(ExampleSite):
    """Answers the first `answered` pages immediately, and the others when it is `open`."""

    def __init__(self, answered: int = 0, pages: int = 60, latency: float = 0.01) -> None:
        super().__init__(pages, latency)
        self.answered = answered
        self.open = False

    async def _page(self, visit: Visit) -> bytes:
        while pages_asked_for(self) > self.answered and not self.open:  # noqa: ASYNC110 - by a thread
            await asyncio.sleep(0.01)
        return await super()._page(visit)


@contextmanager
def in_a_thread(site: ExampleSite) -> Iterator[None]:
    running = site.running()
    result_of(running.__aenter__())
    try:
        yield
    finally:
        result_of(running.__aexit__(None, None, None))


@contextmanager
def serving(pages: int = 60, latency: float = 0.01) -> Iterator[ExampleSite]:
    """An example site in a thread of its own; its records may be read from the test."""
    site = ExampleSite(pages, latency)
    with in_a_thread(site):
        yield site


def spider_of(name: str, *urls: str) -> str:
    """The module of a spider that follows all links from these pages."""
    return f"""
from scrapy import Spider


class Pages(Spider):
    name = "{name}"
    start_urls = {[*urls]}

    def parse(self, response):
        yield {{"url": response.url}}
        yield from response.follow_all(css="a")
"""


@pytest.fixture
def site() -> Iterator[ExampleSite]:
    with serving() as site:
        yield site


class Scrapy(ScrapyProcess):
    """A `scrapy` process of the project `crawler/`, in the test's own directory."""

    def __init__(self, directory: Path, number: int, arguments: tuple[str, ...], url: str) -> None:
        super().__init__(
            *arguments,
            directory=directory,
            log_file=directory / f"scrapy-{number}.log",
            SCRAPY_SETTINGS_MODULE="crawler.settings",
            REDIS_URL=url,
        )

    def finishes(self) -> bool:
        """Wait for its end; True if it ended by itself with all work done."""
        return self.wait() == 0 and "'finish_reason': 'finished'" in self.log

    def fails_with(self, *texts: str) -> bool:
        """Wait for its end; True if it failed with one line for each of these, no traceback."""
        assert self.wait() == 1
        assert "Traceback" not in self.log
        assert len(self.errors) == len(texts)
        return all(text in line for text, line in zip(texts, self.errors, strict=True))

    def interrupt(self) -> None:
        self.send(signal.SIGINT)


StartScrapy = Callable[..., Scrapy]


@pytest.fixture
def scrapy(tmp_path: Path, redis_url: str) -> Iterator[StartScrapy]:
    """Start `scrapy` with these arguments, on the test's server unless another is given."""
    started: list[Scrapy] = []

    def start(*arguments: str, url: str = redis_url) -> Scrapy:
        started.append(Scrapy(tmp_path, len(started), arguments, url))
        return started[-1]

    yield start
    for process in started:
        if process.running:
            process.kill()


@pytest.fixture
def client(server: RedisServer) -> Iterator[Redis]:
    """The test's own connection to the server."""
    with looking_at(server) as client:
        yield client


def crawl(site: ExampleSite, *more: str) -> tuple[str, ...]:
    return ("crawl", "site", "-a", f"url={site.url}", *FAST, *LASTING, *more)


def start_together(
    scrapy: StartScrapy, client: Redis, count: int, arguments: tuple[str, ...], name: str
) -> list[Scrapy]:
    """Start nodes of one crawl, which does not end before all have joined."""
    crawl = Node(client, name, "test", lease=3600)
    crawl.joins()
    crawl.works()
    nodes = [scrapy(*arguments, "-s", f"CRAWL={name}") for _ in range(count)]
    wait_until(lambda: crawl.size.nodes == count + 1)
    crawl.leaves()
    return nodes


def pages_asked_for(site: ExampleSite) -> int:
    return site.record(HOST).pages.total()


def assert_each_page_was_asked_for_once(site: ExampleSite) -> None:
    assert site.record(HOST).missed == []
    assert site.record(HOST).twice == []
    assert site.record(HOST).forbidden == 0
