"""Hosts to limits: what wins over what, how hosts are written, and what is refused."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from semaphore_middleware import Limit, SettingsError
from semaphore_middleware.model.hosts import normal_host
from semaphore_middleware.model.limits import ALLOWED_LIMIT, LimitTable, parse_limit, parse_limits

DEFAULT = Limit(8, delay=1, jitter=0.5)
SETTING = "SEMAPHORE_LIMITS"


def limits(settings: dict[Any, Any], slots: dict[Any, Any] | None = None) -> LimitTable:
    return parse_limits(settings, slots or {}, DEFAULT, SETTING)


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


def test_download_slots_are_read_as_scrapy_reads_them() -> None:
    table = limits(
        {},
        {
            "a": {"concurrency": 2, "delay": 3, "randomize_delay": False},
            "b": {"randomize_delay": True},
            "c": {"jitter": 0.2, "randomize_delay": True, "throttle": False},
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
        ("::1", "::1"),
    ],
)
def test_a_host_may_be_written_in_any_way(written: str, host: str) -> None:
    assert normal_host(written) == host
    assert limits({written: 2}).of(host) == Limit(2, 1, 0.5)
    assert limits({}, {written: {"concurrency": 2}}).of(host) == Limit(2, 1, 0.5)
    assert limits({f"*.{written}": 2}).of(f"www.{host}") == Limit(2, 1, 0.5)


@pytest.mark.parametrize("scope", ["My Scope", "ends with a dot.", "ü" * 100, "a..b", "😀"])
def test_a_scope_that_is_no_host_is_found_as_it_was_written(scope: str) -> None:
    assert limits({scope: 2}).of(scope) == Limit(2, 1, 0.5)


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
    "arguments", [(0,), (-1,), (1.5,), ("2",), (1, -1), (1, math.inf), (1, 0, 2), (1, 0, 0, 1)]
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
