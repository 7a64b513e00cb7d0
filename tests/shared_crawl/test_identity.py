"""What a crawl's nodes must have in common."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from scrapy import Request, Spider
from scrapy.core.scheduler import BaseScheduler
from scrapy.utils.defer import maybe_deferred_to_future

from semaphore_middleware.scrapy.engine import Engine, keep_spider_arguments
from semaphore_middleware.shared_crawl.identity import differences, identity_of
from semaphore_middleware.shared_crawl.settings import CrawlSettings
from tests.support.crawls import ready_crawler


class Books(Spider):
    name = "books"

    def __init__(self, *_: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.started = uuid4().hex  # another one on each node


class Music(Books):
    name = "music"


def identity(cls: type[Spider] = Books, version: str = "", **arguments: Any) -> dict[str, str]:
    return identity_of(
        cls(**arguments), arguments, CrawlSettings("redis://unused", version=version)
    )


def test_the_same_spider_and_arguments_are_the_same_crawl() -> None:
    assert identity(shelf="3", tags=["a", "b"]) == identity(tags=["a", "b"], shelf="3")
    assert identity(_job="1", client=object()) == identity(_job="2")
    for other in ("4", 4, ["3"], 3.5, "x" * 1000):
        assert identity(shelf="3") != identity(shelf=other) != identity()


@pytest.mark.parametrize("name", ["spider", "CRAWL_VERSION"])
def test_an_argument_hides_nothing_else_whatever_its_name(name: str) -> None:
    given: dict[str, Any] = {name: "x"}
    one, other = identity(version="1", **given), identity(Music, version="2", **given)
    assert differences(one, other) == (
        "spider is books, that of the crawl is music; CRAWL_VERSION is 1, that of the crawl is 2"
    )
    assert differences(one, identity(version="1")) == (
        f'argument {name} is "x", that of the crawl is not set'
    )
    assert differences(identity(version="1"), one) == (
        f'argument {name} is not set, that of the crawl is "x"'
    )


class GivenArguments(BaseScheduler):
    """Ends the crawl with the arguments of its spider as the reason."""

    def open(self, spider: Spider) -> None:
        raise LookupError(Engine(spider.crawler).spider_arguments())

    def has_pending_requests(self) -> bool:
        return False

    def enqueue_request(self, _: Request) -> bool:
        return False

    def next_request(self) -> None:
        return None


@pytest.mark.parametrize("is_async", [True, False])
async def test_arguments_are_those_that_the_user_gave(is_async: bool) -> None:
    keep_spider_arguments()
    crawler = ready_crawler(Books, SCHEDULER=GivenArguments)
    with pytest.raises(LookupError) as told:
        if is_async:
            await crawler.crawl_async("first", shelf="3")
        else:
            await maybe_deferred_to_future(crawler.crawl("first", shelf="3"))
    assert told.value.args == ({"1": "first", "shelf": "3"},)


def test_without_the_add_on_nobody_knows_the_arguments() -> None:
    assert Engine(ready_crawler(Books)).spider_arguments() is None


def test_the_source_of_a_spider_is_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity()
    monkeypatch.setattr("inspect.getsource", lambda module: f"# changed {module}")
    assert identity() != before
    assert identity(version="7") == {**before, "CRAWL_VERSION": "7"}
