"""The pauses that sites request, in all the forms that they use, and in invalid ones."""

import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from semaphore_middleware.model.asked_pauses import quota_interval, quota_reset, retry_after
from tests.support.crawls import Patch

NOW = 1_800_000_000
DATE = formatdate(NOW, usegmt=True)
MEGABYTE = 2**20

Fields = dict[str, str | list[str]]


def response(fields: Fields, date: str | None = DATE) -> Callable[[str], list[str]]:
    """A response with these header fields; a list holds several lines of one field."""
    lines = {name: [value] if isinstance(value, str) else value for name, value in fields.items()}
    lines |= {"Date": [date]} if date else {}
    return lambda name: lines.get(name, [])


DAY, YEAR = 24 * 60 * 60, 365 * 24 * 60 * 60
ISO = "2027-01-15T08:01:30"  # 90 s after NOW
TIMES: list[tuple[str, float]] = [
    *(("30", 30), (" 0 ", 0), ("7.5", 7.5), (str(YEAR), YEAR)),
    *((str(NOW + 90), 90), (f"{NOW + 90}.5", 90.5), (str(NOW - DAY), 0), (str(NOW + YEAR), YEAR)),
    *((f"{NOW + 90}000", 90), (f"{NOW + 90}000000", 90), (f"{NOW + 90}000000000", 90)),
    *((formatdate(NOW + 90, usegmt=True), 90), (formatdate(NOW - 90, usegmt=True), 0)),
    *((ISO, 90), (f"{ISO}Z", 90), (f"{ISO}.5+00:00", 90.5), ("2027-01-15T10:01:30+02:00", 90)),
    *((f"{ISO.replace('T', ' ')} UTC", 90), ("2027-01-15", 0)),
]
NOT_CREDIBLE = [
    *(str(YEAR + 1), "999999999", "1" + "0" * 18, "9" * 25, "9" * MEGABYTE),
    *(str(NOW - DAY - 1), str(NOW + YEAR + 1), f"{NOW + 2 * YEAR}000", "1764374400"),
    *(formatdate(0), formatdate(2**33), "2026-01-15T08:00:00Z", "2999-01-01"),
]
NO_TIMES = [
    *("-5", "1e18", "NaN", "soon", "²", "x" * MEGABYTE, "Fri, " * MEGABYTE),
    *("Fri, 99 Foo 2026 00:00:00 GMT", "Wed, 01 Jan 99999999999 00:00:00 GMT"),
]


def test_each_field_takes_each_form_of_a_time() -> None:
    for value, seconds in TIMES:
        ignored: list[str] = []
        for field in ("Reset", "Reset-After"):
            fields: Fields = {LEFT: "0", f"X-RateLimit-{field}": value}
            assert quota_reset(response(fields), ignored) == pytest.approx(seconds), value
        asked = retry_after(response({"Retry-After": value}), ignored)
        assert asked == pytest.approx(seconds), value
        assert ignored == []


def test_what_is_no_credible_time_is_ignored_with_a_line() -> None:
    for value in (*NOT_CREDIBLE, *NO_TIMES):
        ignored: list[str] = []
        assert quota_reset(response({LEFT: "0", RESET: value}), ignored) is None
        assert retry_after(response({"Retry-After": value}), ignored) is None
        fields = [line.partition(": ")[0] for line in ignored]
        is_short = len(value) < MEGABYTE  # a field that is too long counts as missing
        assert fields == [RESET, "Retry-After"][not is_short :]
        assert max(map(len, ignored)) < 100


def test_of_several_times_the_longest_counts() -> None:
    ignored: list[str] = []
    assert retry_after(response({"Retry-After": ["5", "60", "7"]}), ignored) == 60
    assert ignored == []
    assert retry_after(response({"Retry-After": ["soon", "5"]}), ignored) == 5
    assert ignored == ["Retry-After: soon"]
    assert retry_after(response({}), []) is None


def test_without_a_date_of_the_site_s_our_clock_counts() -> None:
    for value in (
        str(time.time() + 90),
        formatdate(time.time() + 90),
        f"{time.time() + 90:.0f}000",
    ):
        seconds = retry_after(response({"Retry-After": value}, date=None), [])
        assert seconds is not None
        assert 60 < seconds < 95


@pytest.mark.parametrize("form", ["%A, %d-%b-%y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y"])
def test_each_form_of_a_date_is_in_utc(form: str, monkeypatch: Patch) -> None:
    """RFC 9110, 5.6.7: the last one is that of C's asctime."""
    moment = time.strftime(form, time.gmtime(NOW + 90))
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert retry_after(response({"Retry-After": moment}), []) == 90
    finally:
        monkeypatch.undo()
        time.tzset()


RATE, POLICY = "RateLimit", "RateLimit-Policy"
LEFT, RESET = "X-RateLimit-Remaining", "X-RateLimit-Reset"
EXHAUSTED: list[tuple[Fields, float]] = [
    ({RATE: '"default";r=0;t=50'}, 50),
    ({RATE: '"a";r=0', POLICY: '"a";q=9;w=60'}, 60),
    ({RATE: '"a";r=0;t=5', POLICY: '"a";q=9;w=60'}, 5),
    ({RATE: '"a";r=0;t=5', POLICY: '"a";q=9;qu="content-bytes"'}, 5),
    ({RATE: '"a";r=0;t=5, "b";r=0;t=60, "c";r=9;t=900'}, 60),
    ({RATE: ['"a";r=0;t=5', '"b";r=0;t=60']}, 60),
    ({RATE: '"a";r=0;t=5', LEFT: "0", RESET: "9"}, 9),
    ({RATE: '"a";r=0;t=5', "Age": "0"}, 5),
    # Older forms
    ({"RateLimit-Remaining": "0", "RateLimit-Reset": "7"}, 7),
    ({LEFT: "0", RESET: "7.5"}, 7.5),
    ({"X-Rate-Limit-Remaining": "0", "X-Rate-Limit-Reset": str(NOW + 7)}, 7),
    ({LEFT: "0", RESET: str(NOW - 7)}, 0),
    ({LEFT: "0", RESET: str(NOW + 9), "X-RateLimit-Reset-After": "8.5"}, 8.5),
    # Draft 7
    ({RATE: "limit=10, remaining=0, reset=5"}, 5),
    ({RATE: "limit=10, remaining=0", POLICY: "10;w=60, 99;w=3600"}, 60),
]
NOT_EXHAUSTED: list[dict[str, Any]] = [
    {},
    {RATE: '"default";r=50;t=30'},
    {RATE: '"default";r=999;pk=:dHJpYWwxMjEzMjM=:'},
    {RATE: "quota;t=1", POLICY: "quota;q=100;w=1"},
    {RATE: '"a";r=0'},
    {RATE: '"a";r=0', POLICY: '"b";q=9;w=60'},
    {POLICY: '"a";q=9;w=60'},
    {RATE: '"a";r=0;t=5', POLICY: '"a";q=9;qu="concurrent-requests"'},
    {RATE: '"a";r=0;t=5', "Age": "3"},  # from a cache
    *({RATE: f'"a";r=0;t={nonsense}'} for nonsense in ("5,", "-5", "5.0", '"5"', "?1", "1" * 19)),
    *({RATE: text} for text in ('"a";r;t=5', '"a";r=?0;t=5', '("a" "b");r=0;t=5')),
    *({RATE: f"limit=10, {rest}"} for rest in ("remaining=1, reset=5", "remaining=0, reset=-5")),
    {RATE: f'"a";r=0;t={YEAR + 1}'},
    {RATE: '"' + "a" * MEGABYTE + '";r=0;t=5'},
    {RATE: ['"a";r=0;t=5'] * MEGABYTE},
    {LEFT: "1", RESET: "7"},
    *({LEFT: "0"}, {RESET: "7"}, {LEFT: "0", "RateLimit-Reset": "7"}),
    *({LEFT: "0", RESET: nonsense} for nonsense in ("NaN", "-1", "1e9", "7" * MEGABYTE)),
    {LEFT: ["0", "5"], RESET: "7"},
]


def test_when_a_quota_is_exhausted() -> None:
    for fields, seconds in EXHAUSTED:
        assert quota_reset(response(fields), []) == seconds, fields
    for fields in NOT_EXHAUSTED:
        assert quota_reset(response(fields), []) is None, str(fields)[:80]


BOTH = '"minute";q=10;w=60, "day";q=1000;w=86400'


@pytest.mark.parametrize(
    ("rate", "interval"),
    [
        ("", 86.4),
        ('"minute";r=9;t=60, "day";r=5;t=900', 86.4),  # no exhausted quota is named
        ('"minute";r=0;t=60', 6),
        ('"minute";r=0;t=60, "day";r=5;t=900', 6),
        ('"minute";r=9;t=60, "day";r=0;t=900', 86.4),
        ('"minute";r=0;t=60, "day";r=0;t=900', 86.4),
        ('"hour";r=0;t=900', 0),
    ],
)
def test_the_interval_is_of_the_quotas_that_are_exhausted(rate: str, interval: float) -> None:
    assert quota_interval(response({POLICY: BOTH, RATE: rate}), []) == interval


@pytest.mark.parametrize(
    ("policy", "interval"),
    [
        ('"a";q=100;w=60', 0.6),
        ('"burst";q=10;w=1, "hour";q=1000;w=3600', 3.6),
        ('"a";q=100;w=60;qu="requests"', 0.6),
        ('"a";q=100;w=60;qu="content-bytes"', 0),
        *(('"a";q=0;w=60', 0), ('"a";q=5', 0), ('"a";w=5', 0), ('"a";q=-1;w=5', 0), ("100", 0)),
        ('10;w=60;comment="sliding window"', 6),
        *((f'"a";q=1;w={YEAR + 1}', 0), ("10", 0), ('"' + "9" * 5000 + '";w=1', 0)),
        *(("", 0), ("\x00", 0), ('"a";q=1.5;w=60', 0)),
    ],
)
def test_the_interval_of_a_quota(policy: str, interval: float) -> None:
    assert quota_interval(response({POLICY: policy}), []) == interval


def test_the_interval_of_a_quota_in_draft_7() -> None:
    fields: Fields = {POLICY: "10;w=5, 100;w=3600", RATE: "limit=10, remaining=0, reset=5"}
    assert quota_interval(response(fields), []) == 0.5
    assert quota_interval(response(fields | {RATE: "limit=100, remaining=0, reset=5"}), []) == 36


values = st.one_of(
    st.text(st.characters(max_codepoint=255), max_size=40),
    st.text('"a=;,rt()?:-0123456789. wqu', max_size=40),
    st.builds("{}{}".format, st.integers(), st.sampled_from(["", "s", " UTC", "-01-01"])),
    st.builds('"{}";r={};t={}'.format, st.text("ab", max_size=2), st.integers(), st.integers()),
)
fields = st.sampled_from([RATE, POLICY, LEFT, RESET, "Retry-After", "Date", "Age"])


@given(st.dictionaries(fields, st.lists(values, max_size=3)))
@example({RATE: ['"a";r=0;t=5'], "Date": ["\x00"]})
def test_whatever_a_site_says_is_a_time_or_nothing(fields: Fields) -> None:
    seen = response(fields, date=None)
    assert quota_interval(seen, []) >= 0
    for seconds in (retry_after(seen, []), quota_reset(seen, [])):
        assert seconds is None or 0 <= seconds <= YEAR
