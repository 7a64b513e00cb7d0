"""Hosts to limits: what wins over what, how hosts are written, and what is refused."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semaphore_middleware import Limit, SettingsError
from semaphore_middleware.model.hosts import normal_host
from semaphore_middleware.model.limits import (
    ALLOWED_LIMIT,
    ALLOWED_RATE,
    LimitTable,
    parse_limit,
    parse_limits,
    parse_rate,
    rate_text,
    strictest,
)

DEFAULT = Limit(8, delay=1, jitter=0.5)
SETTING = "SEMAPHORE_LIMITS"


def limits(settings: dict[Any, Any], slots: dict[Any, Any] | None = None) -> LimitTable:
    return parse_limits(settings, {"DOWNLOAD_SLOTS": slots or {}}, DEFAULT, SETTING)


# Which limit ------------------------------------------------------------------------------------


def test_the_exact_host_wins_then_the_longest_pattern_then_the_slot_then_the_default() -> None:
    table = limits(
        {"a.b.example.org": 1, "*.b.example.org": 2, "*.example.org": 3, "*.org": 4},
        {
            "a.b.example.org": {"concurrency": 5},
            "www.example.org": {"concurrency": 5},
            "example.com": {"concurrency": 5},
        },
    )
    found = {
        "a.b.example.org": 1,
        "x.b.example.org": 2,
        "x.a.b.example.org": 2,
        "b.example.org": 3,
        "www.example.org": 3,
        "example.org": 4,
        "org": 8,
        "example.com": 5,
        "www.example.com": 8,
    }
    for scope, concurrency in found.items():
        limit = table.of(scope)
        assert limit is not None
        assert limit.concurrency == concurrency, scope


def test_a_pattern_does_not_match_the_host_it_ends_with() -> None:
    table = limits({"*.example.org": 2})
    assert table.of("example.org") == DEFAULT
    assert table.of("notexample.org") == DEFAULT
    assert table.of("www.example.org") != DEFAULT


def test_none_at_any_level_means_no_limit() -> None:
    table = limits(
        {"a.example.org": None, "*.example.org": {"concurrency": None, "delay": 0}, "b.org": 1},
        {"c.org": {"concurrency": None, "delay": 0}},
    )
    for scope in ("a.example.org", "b.example.org", "c.org"):
        assert table.of(scope) is None
    assert table.of("b.org") is not None


def test_a_dict_takes_what_it_leaves_out_from_the_default() -> None:
    table = limits({"a": 2, "b": {}, "c": {"delay": 0}, "d": {"concurrency": 3, "jitter": 0}})
    assert table.of("a") == Limit(2, 1, 0.5)
    assert table.of("b") == DEFAULT
    assert table.of("c") == Limit(8, 0, 0.5)
    assert table.of("d") == Limit(3, 1, 0)


def test_a_dict_may_have_a_rate_and_a_burst() -> None:
    table = limits(
        {
            "a": {"concurrency": 2, "rate": "10/m"},
            "b": {"rate": "1.5/s", "burst": 4},
            "c": {"rate": None},
            "d": {"rate": None, "burst": 1, "concurrency": None},
        }
    )
    assert table.of("a") == Limit(2, 1, 0.5, rate="10/m")
    assert table.of("b") == Limit(8, 1, 0.5, rate="1.5/s", burst=4)
    assert table.of("c") == DEFAULT
    assert table.of("d") is None


def test_a_burst_goes_with_the_rate_of_its_limit() -> None:
    default = Limit(8, rate="60/m", burst=5)
    assert parse_limit(2, "here", default) == Limit(2, rate="60/m", burst=5)
    assert parse_limit({"burst": 9}, "here", default) == Limit(8, rate="60/m", burst=9)
    assert parse_limit({"rate": None}, "here", default) == Limit(8)


def test_download_slots_are_read_as_scrapy_reads_them() -> None:
    table = limits(
        {},
        {
            "a": {"concurrency": 2, "delay": 3, "randomize_delay": False},
            "b": {"randomize_delay": True},
            "c": {"jitter": 0.2, "randomize_delay": True, "throttle": False, "rate": "1/s"},
        },
    )
    assert table.of("a") == Limit(2, 3, 0)
    assert table.of("b") == Limit(8, 1, 0.5)
    assert table.of("c") == Limit(8, 1, 0.2)


# How hosts are written --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "host"),
    [
        ("Example.COM", "example.com"),
        ("example.com.", "example.com"),
        (" example.com ", "example.com"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("BÜCHER.example.", "xn--bcher-kva.example"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("127.0.0.1", "127.0.0.1"),
        ("127.1", "127.0.0.1"),
        ("0x7F.1.", "127.0.0.1"),
        ("2130706433", "127.0.0.1"),
        ("0177.0x0.01", "127.0.0.1"),
        ("\uff11\uff12\uff17\u30020.0.1", "127.0.0.1"),
        ("0", "0.0.0.0"),
        ("::1", "::1"),
        ("[::1]", "::1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("2001:DB8::0:1", "2001:db8::1"),
        ("::ffff:127.0.0.1", "127.0.0.1"),
        ("[::FFFF:7f00:1]", "127.0.0.1"),
    ],
)
def test_a_host_may_be_written_in_any_way(written: str, host: str) -> None:
    assert normal_host(written) == host
    assert limits({written: 2}).of(host) == Limit(2, 1, 0.5)
    assert limits({}, {written: {"concurrency": 2}}).of(host) == Limit(2, 1, 0.5)
    assert limits({f"*.{written}": 2}).of(f"www.{host}") == Limit(2, 1, 0.5)


@pytest.mark.parametrize(
    "name",
    ["127.0.0.1 x", "1.2.3.4.5", "256.1", "0x", "08.1", "1..1", "4294967296", "feed", "x.1", "a:b"],
)
def test_a_name_that_is_no_address_stays_as_it_is(name: str) -> None:
    assert normal_host(name) == name


@pytest.mark.parametrize("scope", ["My Scope", "ends with a dot.", "ü" * 100, "a..b", "😀"])
def test_a_scope_that_is_no_host_is_found_as_it_was_written(scope: str) -> None:
    assert limits({scope: 2}).of(scope) == Limit(2, 1, 0.5)


# Rates -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "interval"),
    [
        ("60/m", 1),
        ("1/s", 1),
        ("10/m", 6),
        ("1.5/s", 2 / 3),
        ("2e3/s", 0.0005),
        ("3/h", 1200),
        ("7/d", 86400 / 7),
        ("0.5/d", 172800),
        ("1000000/s", 1e-6),
        ("60000000/m", 1e-6),
        ("8.64e-5/d", 1e9),
    ],
)
def test_a_rate_is_a_number_per_unit(rate: str, interval: float) -> None:
    assert parse_rate(rate, "here") == interval
    assert Limit(1, rate=rate).interval == interval


def test_without_a_rate_there_is_no_interval() -> None:
    assert Limit(1, delay=5).interval == 0


@pytest.mark.parametrize(
    ("rate", "shown"),
    [
        ("60/m", "1/s"),
        ("10/m", "10/m"),
        ("7/m", "7/m"),
        ("1.5/s", "90/m"),
        ("24/d", "1/h"),
        ("7/d", "7/d"),
        ("8.21917808/m", "8.21918/m"),
        ("0.3/d", "0.3/d"),
        ("1000000/s", "1000000/s"),
        ("86400000000/d", "1000000/s"),
        ("8.64e-5/d", "8.64e-05/d"),
    ],
)
def test_a_rate_is_shown_in_the_shortest_unit_in_which_it_is_whole(rate: str, shown: str) -> None:
    assert rate_text(parse_rate(rate, "here")) == shown


@given(st.floats(1e-6, 1e9))
def test_a_rate_that_is_shown_can_be_read(interval: float) -> None:
    assert parse_rate(rate_text(interval), "here") == pytest.approx(interval, rel=1e-5)


BAD_RATES = [
    "",
    "60",
    "/m",
    "60/",
    "0/m",
    "-1/s",
    "+-1/s",
    "60/x",
    "60/M",
    "60/min",
    "60 /m",
    "60/m\n",
    "1_0/s",
    "٣/s",
    "nan/s",
    "inf/s",
    "1e400/s",
    "1e-400/s",
    "1000001/s",
    "60000001/m",
    "8.63e-5/d",
    "none",
    b"60/m",
    60,
    0,
    1.5,
    True,
    False,
    ["60/m"],
]


@pytest.mark.parametrize("rate", BAD_RATES)
def test_a_bad_rate_is_refused(rate: Any) -> None:
    with pytest.raises(SettingsError) as error:
        parse_rate(rate, "--rate")
    assert str(error.value) == f"--rate {rate}: allowed is {ALLOWED_RATE}"
    with pytest.raises(SettingsError) as error:
        limits({"a": {"rate": rate}})
    assert str(error.value) == f"{SETTING}['a']['rate'] = {rate!r}: allowed is {ALLOWED_LIMIT}"
    with pytest.raises(SettingsError) as error:
        Limit(1, rate=rate)
    assert str(error.value) == f"Limit.rate = {rate!r}: allowed is {ALLOWED_LIMIT}"


@pytest.mark.parametrize("burst", [0, -1, 1.5, 2.0, 10**6 + 1, "2", True, None, math.inf])
def test_a_bad_burst_is_refused(burst: Any) -> None:
    with pytest.raises(SettingsError) as error:
        limits({"a": {"rate": "60/m", "burst": burst}})
    assert str(error.value) == f"{SETTING}['a']['burst'] = {burst!r}: allowed is {ALLOWED_LIMIT}"
    with pytest.raises(SettingsError, match=re.escape(f"Limit.burst = {burst!r}: allowed is")):
        Limit(1, rate="60/m", burst=burst)


# The stricter of two -----------------------------------------------------------------------------

RATES = st.one_of(
    st.just({}),
    st.builds(
        lambda rate, burst: {"rate": rate, "burst": burst},
        st.sampled_from(["60/m", "1/s", "1.5/s", "10/h", "7/d"]),
        st.integers(1, 10**6),
    ),
)
LIMITS = st.builds(
    lambda parts, rate: Limit(**parts, **rate),
    st.fixed_dictionaries(
        {
            "concurrency": st.integers(1, 100),
            "delay": st.floats(0, 1e9),
            "jitter": st.floats(0, 1),
            "adaptive": st.booleans(),
        }
    ),
    RATES,
)


@given(LIMITS, LIMITS)
def test_the_stricter_of_two_limits_is_one_under_which_both_hold(a: Limit, b: Limit) -> None:
    both = strictest(a, b)
    assert both.concurrency == min(a.concurrency, b.concurrency)
    assert both.delay == max(a.delay, b.delay)
    assert both.least_gap == pytest.approx(max(a.least_gap, b.least_gap), abs=1e-6)
    assert both.adaptive == (a.adaptive or b.adaptive)
    assert both.interval == max(a.interval, b.interval)
    assert both.burst == min((limit.burst for limit in (a, b) if limit.rate), default=1)


@given(LIMITS)
def test_a_limit_is_the_stricter_of_itself_and_none_that_is_stricter(limit: Limit) -> None:
    assert strictest(limit, limit) == limit
    assert strictest(limit, Limit(100, jitter=1)) == limit
    assert strictest(Limit(100, jitter=1), limit) == limit


def test_a_rate_and_its_burst_hold_beside_a_limit_without_one() -> None:
    rated = Limit(4, rate="60/m", burst=10)
    assert strictest(rated, Limit(2, delay=5)) == Limit(2, delay=5, rate="60/m", burst=10)
    slow = Limit(4, rate="30/m", burst=20)
    assert strictest(rated, slow) == Limit(4, rate="30/m", burst=10)


# What is refused --------------------------------------------------------------------------------

BAD = [0, -1, 1.5, 2.0, "2", True, False, [], (1,), math.nan]


@pytest.mark.parametrize("value", BAD)
def test_a_value_that_is_no_limit_is_refused(value: Any) -> None:
    message = re.escape(f"{SETTING}['example.com'] = {value!r}: allowed is {ALLOWED_LIMIT}")
    with pytest.raises(SettingsError, match=message):
        limits({"example.com": value})
    with pytest.raises(SettingsError, match=re.escape(f"{SETTING}['*.example.com'] = {value!r}")):
        limits({"*.example.com": value})
    message = re.escape(f"{SETTING}['a']['concurrency'] = {value!r}: allowed is {ALLOWED_LIMIT}")
    with pytest.raises(SettingsError, match=message):
        limits({"a": {"concurrency": value}})


@pytest.mark.parametrize(
    ("limit", "at_fault"),
    [
        ({"delay": -1}, "['delay'] = -1: "),
        ({"delay": "1"}, "['delay'] = '1': "),
        ({"delay": None}, "['delay'] = None: "),
        ({"delay": True}, "['delay'] = True: "),
        ({"delay": math.inf}, "['delay'] = inf: "),
        ({"delay": math.nan}, "['delay'] = nan: "),
        ({"jitter": -0.1}, "['jitter'] = -0.1: "),
        ({"jitter": 1.1}, "['jitter'] = 1.1: "),
        ({"concurency": 2}, ": unknown key 'concurency'; "),
        ({1: 2}, ": unknown key 1; "),
        ({"adaptive": 1}, "['adaptive'] = 1: "),
        ({"burst": 5}, ": a 'burst' needs a 'rate'; "),
        ({"rate": None, "burst": 5}, ": a 'burst' needs a 'rate'; "),
        ({"concurrency": None, "burst": 5}, ": a 'burst' needs a 'rate'; "),
        (
            {"concurrency": None, "rate": "60/m"},
            ": a 'delay', 'rate' or 'adaptive' needs a 'concurrency'; ",
        ),
        (
            {"concurrency": None, "delay": 1},
            ": a 'delay', 'rate' or 'adaptive' needs a 'concurrency'; ",
        ),
        (
            {"concurrency": None, "adaptive": True},
            ": a 'delay', 'rate' or 'adaptive' needs a 'concurrency'; ",
        ),
    ],
)
def test_a_dict_with_a_mistake_is_refused_by_the_key_at_fault(
    limit: dict[Any, Any], at_fault: str
) -> None:
    with pytest.raises(
        SettingsError, match=re.escape(f"{SETTING}['a']{at_fault}allowed is {ALLOWED_LIMIT}")
    ):
        limits({"a": limit})


@pytest.mark.parametrize("host", ["", " ", ".", None, 1, b"example.com"])
def test_an_empty_host_is_refused(host: Any) -> None:
    message = re.escape(f"{SETTING}[{host!r}]: the host is empty; allowed is a host or '*.host'")
    with pytest.raises(SettingsError, match=message):
        limits({host: 1})


@pytest.mark.parametrize("host", ["*", "*.", "*. ", "*.*.org", "a.*.org", "a*", "**.org"])
def test_a_star_anywhere_else_is_refused(host: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(f"{SETTING}[{host!r}]: ")):
        limits({host: 1})


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        ({"a": {"concurrency": 0}}, "DOWNLOAD_SLOTS['a']['concurrency'] = 0: allowed is"),
        ({"a": {"delay": -1}}, "DOWNLOAD_SLOTS['a']['delay'] = -1: allowed is"),
        ({"a": 3}, "DOWNLOAD_SLOTS['a'] = 3: allowed is"),
        ({"a": None}, "DOWNLOAD_SLOTS['a'] = None: allowed is"),
        ({1: {}}, "DOWNLOAD_SLOTS[1] = {}: allowed is"),
    ],
)
def test_a_bad_slot_is_refused(slots: dict[Any, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        limits({}, slots)


@pytest.mark.parametrize(
    "arguments",
    [
        (0,),
        (-1,),
        (1.5,),
        ("2",),
        (1, -1),
        (1, math.inf),
        (1, 0, 2),
        (1, 0, 0, 1),
        (1, 0, 0, False, "60"),
        (1, 0, 0, False, "60/m", 0),
        (1, 0, 0, False, None, 5),
    ],
)
def test_there_is_no_bad_limit(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(SettingsError, match="Limit"):
        Limit(*arguments)


def test_one_limit_is_read_like_those_of_the_table() -> None:
    assert parse_limit(None, "here", DEFAULT) is None
    assert parse_limit(3, "here", DEFAULT) == Limit(3, 1, 0.5)
    assert parse_limit({"adaptive": True}, "here", DEFAULT) == Limit(8, 1, 0.5, adaptive=True)
    assert parse_limit({"concurrency": None}, "here", DEFAULT) is None
    with pytest.raises(SettingsError, match=re.escape(f"here = 0: allowed is {ALLOWED_LIMIT}")):
        parse_limit(0, "here", DEFAULT)
