"""Requests as they are stored: what comes back, and what cannot be stored."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from redis import Redis
from scrapy import FormRequest, Request, Spider
from scrapy.http import Response
from scrapy.utils.test import get_crawler

from semaphore_middleware.frontier.codec import SERIALIZERS, Codec
from tests.frontier.node import joined
from tests.support.crawls import asyncio_test


class Books(Spider):
    name = "books"

    def parse_book(self, response: Response) -> None: ...


class ByPath:
    """A fingerprinter that knows no hosts."""

    def fingerprint(self, request: Request) -> bytes:
        return request.url.partition("//")[2].partition("/")[2].encode()


def codec(serializer: str = "json", **settings: Any) -> Codec:
    crawler = get_crawler(Books, settings)
    return Codec(crawler._create_spider(), serializer)


def stored(request: Request, serializer: str = "json") -> Request:
    books = codec(serializer)
    return books.decode(books.encode(b"place", request).data)


@pytest.mark.parametrize("serializer", SERIALIZERS)
def test_what_comes_back_is_the_request(serializer: str) -> None:
    request = FormRequest(
        "http://a/b?c=\xe9",
        method="POST",
        formdata={"d": "e"},
        headers={"X": ["1", "\xff"]},
        cookies={"f": "g"},
        meta={"depth": 2, "tags": ["h", None, 1.5, {"i": True}]},
        cb_kwargs={"j": "k"},
        priority=3,
        dont_filter=True,
        flags=["l"],
    )
    back = stored(request, serializer)
    assert type(back) is FormRequest
    assert back.to_dict() == request.to_dict()
    books = codec(serializer)
    parse_book = getattr(books._spider, "parse_book")  # noqa: B009 - the class says Spider
    called_back = Request("http://a/", callback=parse_book)
    assert books.decode(books.encode(b"", called_back).data).callback == parse_book


def test_json_runs_no_code() -> None:
    with pytest.raises(ValueError, match=r"utf-8|Expecting value"):
        codec("json").decode(codec("pickle").encode(b"", Request("http://a/")).data)


@pytest.mark.parametrize("value", [(1, 2), {1: 2}, b"bytes", object(), float("nan")])
def test_what_json_would_change_is_refused(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        stored(Request("http://a/", meta={"value": value}))


def test_duplicates_are_what_scrapy_takes_for_them() -> None:
    own = codec(REQUEST_FINGERPRINTER_CLASS=ByPath)
    urls = ("http://a/1", "http://b/1", "http://b/2")
    assert [own.encode(b"", Request(url)).fingerprint for url in urls] == [b"1", b"1", b"2"]


@asyncio_test
async def test_a_request_that_cannot_be_stored_is_an_error_at_once(
    client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async with joined(client) as node:
        request = Request("http://a/", callback=print)
        assert not node.scheduler.enqueue_request(request)
        (record,) = (record for record in caplog.records if record.levelno == logging.ERROR)
        assert record.name == "books"
        assert record.getMessage().startswith("<GET http://a/> cannot be shared, and is dropped: ")
        node.enqueue("http://a/next")
        assert (await node.start()).url == "http://a/next"
