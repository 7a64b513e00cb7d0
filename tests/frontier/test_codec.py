"""Requests as they are stored: what comes back, and what cannot be stored."""

from __future__ import annotations

from typing import Any

import pytest
from scrapy import FormRequest, Request, Spider
from scrapy.http import Response
from scrapy.utils.test import get_crawler

from semaphore_middleware.frontier.codec import SERIALIZERS, Codec


class Books(Spider):
    name = "books"

    def parse_book(self, response: Response) -> None: ...


class ByPath:
    """A fingerprinter that knows no hosts."""

    def fingerprint(self, request: Request) -> bytes:
        return request.url.partition("//")[2].partition("/")[2].encode()


def codec(serializer: str = "json", **settings: Any) -> Codec:
    return Codec(get_crawler(Books, settings)._create_spider(), serializer)


@pytest.mark.parametrize("serializer", SERIALIZERS)
def test_what_comes_back_is_the_request(serializer: str) -> None:
    books = codec(serializer)
    request = FormRequest(
        "http://a/b?c=\xe9",
        method="POST",
        callback=getattr(books._spider, "parse_book"),  # noqa: B009 - the class says Spider
        formdata={"d": "e"},
        headers={"X": ["1", "\xff"]},
        cookies={"f": "g"},
        meta={"depth": 2, "tags": ["h", None, 1.5, {"i": True}]},
        cb_kwargs={"j": "k"},
        priority=3,
        dont_filter=True,
        flags=["l"],
    )
    back = books.decode(books.encode(b"place", request).data)
    assert type(back) is FormRequest
    assert back.to_dict(spider=books._spider) == request.to_dict(spider=books._spider)
    assert back.callback == request.callback


def test_json_runs_no_code() -> None:
    with pytest.raises(ValueError, match=r"utf-8|Expecting value"):
        codec("json").decode(codec("pickle").encode(b"", Request("http://a/")).data)


@pytest.mark.parametrize("value", [(1, 2), {1: 2}, b"bytes", object(), float("nan")])
def test_what_json_would_change_is_refused(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        codec().encode(b"", Request("http://a/", meta={"value": value}))


def test_duplicates_are_what_scrapy_takes_for_them() -> None:
    own = codec(REQUEST_FINGERPRINTER_CLASS=ByPath)
    urls = ("http://a/1", "http://b/1", "http://b/2")
    assert [own.encode(b"", Request(url)).fingerprint for url in urls] == [b"1", b"1", b"2"]
