"""For how long a site asks to be left alone, in all the ways that sites write it, and in none."""

from __future__ import annotations

import math
import time
from email.utils import formatdate

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scrapy.http import Response

from semaphore_middleware.scrapy.asked_pauses import quota_reset, retry_after

NOW = 1_800_000_000
DATE = formatdate(NOW, usegmt=True)
MEGABYTE = 2**20

Fields = dict[str, str | list[str]]


def response(fields: Fields, date: str | None = DATE) -> Response:
    """A response with these header fields; a list is of several lines of one."""
    lines = {name: [value] if isinstance(value, str) else value for name, value in fields.items()}
    headers = {name: [line.encode("latin-1") for line in each] for name, each in lines.items()}
    return Response("http://a/", headers={**headers, **({"Date": date} if date else {})})


# Retry-After ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("30", 30),
        (" 0 ", 0),
        ("-5", None),
        ("1.5", None),
        ("1e18", None),
        ("NaN", None),
        ("inf", None),
        ("soon", None),
        ("", None),
        ("²", None),
        ("1" + "0" * 18, math.inf),
        ("9" * MEGABYTE, math.inf),
        ("x" * MEGABYTE, None),
        ("Fri, " * MEGABYTE, None),
        (formatdate(NOW + 90, usegmt=True), 90),
        (formatdate(NOW - 90, usegmt=True), 0),
        ("Fri, 99 Foo 2026 00:00:00 GMT", None),
        ("Wed, 01 Jan 99999999999 00:00:00 GMT", None),
        (["5", "60", "7"], 60),
        (["soon", "5"], 5),
    ],
)
def test_retry_after(value: str | list[str], seconds: float | None) -> None:
    assert retry_after(response({"Retry-After": value})) == seconds


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
@pytest.mark.parametrize("form", ["%A, %d-%b-%y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y"])
def test_each_form_of_a_date_is_in_utc(
    form: str, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RFC 9110, 5.6.7: the last one is that of C's asctime."""
    moment = time.strftime(form, time.gmtime(NOW + 90))
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert retry_after(response({"Retry-After": moment})) == 90
    finally:
        monkeypatch.undo()
        time.tzset()


def test_retry_after_date_without_a_date_header() -> None:
    assert retry_after(response({"Retry-After": formatdate(0)}, date=None)) == 0
    far = retry_after(response({"Retry-After": formatdate(2**33)}, date=None))
    assert far is not None
    assert far > 10**9
    assert retry_after(response({})) is None


# Quotas -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        # The examples of the draft, 4.2 and appendix B
        ({"RateLimit": '"default";r=50;t=30'}, None),
        ({"RateLimit": '"default";r=0;t=50'}, 50),
        ({"RateLimit": '"default";r=999;pk=:dHJpYWwxMjEzMjM=:'}, None),
        ({"RateLimit": '"problemPolicy";r=0;t=10'}, 10),
        ({"RateLimit": "quota;t=1", "RateLimit-Policy": "quota;q=100;w=1"}, None),
        (
            {
                "RateLimit": '"day";r=100;t=36000',
                "RateLimit-Policy": '"hour";q=1000;w=3600, "day";q=5000;w=86400',
            },
            None,
        ),
        # What is left out
        ({"RateLimit": '"a";r=0'}, None),
        ({"RateLimit": '"a";r=0', "RateLimit-Policy": '"a";q=9;w=60'}, 60),
        ({"RateLimit": '"a";r=0', "RateLimit-Policy": '"b";q=9;w=60'}, None),
        ({"RateLimit": '"a";r=0;t=5', "RateLimit-Policy": '"a";q=9;w=60'}, 5),
        ({"RateLimit-Policy": '"a";q=9;w=60'}, None),
        (
            {"RateLimit": '"a";r=0;t=5', "RateLimit-Policy": '"a";q=9;qu="concurrent-requests"'},
            None,
        ),
        ({"RateLimit": '"a";r=0;t=5', "RateLimit-Policy": '"a";q=9;qu="content-bytes"'}, 5),
        # Several
        ({"RateLimit": '"a";r=0;t=5, "b";r=0;t=60, "c";r=9;t=900'}, 60),
        ({"RateLimit": ['"a";r=0;t=5', '"b";r=0;t=60']}, 60),
        ({"RateLimit": '"a";r=0;t=5', "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "9"}, 9),
        # From a cache
        ({"RateLimit": '"a";r=0;t=5', "Age": "3"}, None),
        ({"RateLimit": '"a";r=0;t=5', "Age": "0"}, 5),
        # Nonsense
        ({"RateLimit": '"a";r=0;t=5,'}, None),
        ({"RateLimit": '"a";r=0;t=-5'}, None),
        ({"RateLimit": '"a";r=0;t=5.0'}, None),
        ({"RateLimit": '"a";r=0;t="5"'}, None),
        ({"RateLimit": '"a";r;t=5'}, None),
        ({"RateLimit": '"a";r=?0;t=5'}, None),
        ({"RateLimit": '"a";r=0;t=?1'}, None),
        ({"RateLimit": '("a" "b");r=0;t=5'}, None),
        ({"RateLimit": "limit=10, remaining=0, reset=5"}, None),  # as an older draft had it
        ({"RateLimit": '"a";r=0;t=1' + "0" * 18}, None),
        ({"RateLimit": '"' + "a" * MEGABYTE + '";r=0;t=5'}, None),
        ({"RateLimit": ['"a";r=0;t=5'] * MEGABYTE}, None),
        # Older forms
        ({"RateLimit-Remaining": "0", "RateLimit-Reset": "7"}, 7),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "7.5"}, 7.5),
        ({"X-Rate-Limit-Remaining": "0", "X-Rate-Limit-Reset": str(NOW + 7)}, 7),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(NOW - 7)}, 0),
        ({"X-RateLimit-Remaining": "1", "X-RateLimit-Reset": "7"}, None),
        ({"X-RateLimit-Remaining": "0"}, None),
        ({"X-RateLimit-Reset": "7"}, None),
        ({"X-RateLimit-Remaining": "0", "RateLimit-Reset": "7"}, None),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "NaN"}, None),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "-1"}, None),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1e9"}, None),
        ({"X-RateLimit-Remaining": ["0", "5"], "X-RateLimit-Reset": "7"}, None),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "7" * MEGABYTE}, None),
        ({}, None),
    ],
)
def test_when_a_quota_is_exhausted(fields: Fields, seconds: float | None) -> None:
    assert quota_reset(response(fields)) == seconds


values = st.one_of(
    st.text(st.characters(max_codepoint=255), max_size=40),
    st.text('"a=;,rt()?:-0123456789. wqu', max_size=40),
    st.builds('"{}";r={};t={}'.format, st.text("ab", max_size=2), st.integers(), st.integers()),
)


@given(
    st.dictionaries(
        st.sampled_from(
            [
                *("RateLimit", "RateLimit-Policy", "RateLimit-Reset", "RateLimit-Remaining"),
                *("X-RateLimit-Reset", "X-RateLimit-Remaining", "Retry-After", "Date", "Age"),
            ]
        ),
        st.lists(values, max_size=3),
    )
)
@example({"RateLimit": ['"a";r=0;t=5'], "Date": ["\x00"]})
def test_whatever_a_site_says_is_a_time_or_nothing(fields: Fields) -> None:
    seen = response(fields, date=None)
    for seconds in (retry_after(seen), quota_reset(seen)):
        assert seconds is None or seconds >= 0
