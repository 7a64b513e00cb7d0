"""What a crawl's nodes must have in common."""

from __future__ import annotations

import re
from typing import Any

import pytest
from scrapy import Spider
from scrapy.settings import Settings

from semaphore_middleware.frontier.identity import differences, identity_of


class Books(Spider):
    name = "books"


def identity(cls: type[Spider] = Books, version: str = "", **arguments: Any) -> dict[str, str]:
    spider = cls(**arguments)
    spider.settings = Settings({"CRAWL_VERSION": version})
    return identity_of(spider)


def test_the_same_spider_and_arguments_are_the_same_crawl() -> None:
    assert identity(shelf="3", tags=["a", "b"]) == identity(tags=["a", "b"], shelf="3")
    assert identity(hosts={"a", "b", "c"}) == identity(hosts={"c", "b", "a"})


@pytest.mark.parametrize("value", ["4", 4, ["3"], re.compile("4"), "x" * 1000])
def test_another_argument_is_another_crawl(value: Any) -> None:
    assert identity(shelf="3") != identity(shelf=value) != identity()


def test_what_is_no_argument_does_not_count() -> None:
    assert identity(_job="1", started=1.5, client=object()) == identity(_job="2", started=2.5)


def test_the_source_of_the_spider_and_its_bases_is_its_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = identity()
    monkeypatch.setattr("inspect.getsource", lambda module: f"# changed {module}")
    assert identity() != before
    assert identity(version="7") == {**before, "CRAWL_VERSION": "7"}


def test_differences_are_told_in_one_line() -> None:
    told = differences({"shelf": "3", "a": "1"}, {"shelf": "4", "a": "1", "b": "2"})
    assert told == "shelf is 3, that of the crawl is 4; b is not set, that of the crawl is 2"
