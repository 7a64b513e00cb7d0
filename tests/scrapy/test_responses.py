"""`Retry-After` in all the ways that sites write it."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from scrapy.http import Response

from semaphore_middleware.scrapy.responses import retry_after

NOW = 1_800_000_000


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("30", 30),
        (" 0 ", 0),
        ("-5", 0),
        ("1.5", 0),
        ("soon", 0),
        ("", 0),
        ("²", 0),
        ("9" * 5000, float("inf")),
        (formatdate(NOW + 90, usegmt=True), 90),
        (formatdate(NOW - 90, usegmt=True), 0),
        ("Fri, 99 Foo 2026 00:00:00 GMT", 0),
        ("Wed, 01 Jan 99999999999 00:00:00 GMT", 0),
    ],
)
def test_retry_after(value: str, seconds: float) -> None:
    headers = {"Retry-After": value.encode("latin-1"), "Date": formatdate(NOW, usegmt=True)}
    assert retry_after(Response("http://a/", headers=headers)) == seconds


def test_retry_after_date_without_a_date_header() -> None:
    assert retry_after(Response("http://a/", headers={"Retry-After": formatdate(0)})) == 0
    far = Response("http://a/", headers={"Retry-After": formatdate(2**33)})
    assert retry_after(far) > 10**9
    assert retry_after(Response("http://a/")) == 0
