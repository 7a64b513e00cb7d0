"""Hosts to limits: what wins over what, how hosts are written, and what is refused."""

import math
from dataclasses import MISSING, fields, replace
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semaphore_middleware import FairSemaphore, Limit, LimitDict, SettingsError
from semaphore_middleware.model import limits as model
from semaphore_middleware.model.hosts import (
    check_scope,
    clean,
    normal_host,
    parse_name,
    scope_name,
)
from semaphore_middleware.model.limits import ALLOWED_LIMIT, LIMITLESS, parse_rate, rate_text
from tests.support.servers import RedisServer

DEFAULT = Limit(8, delay=1, jitter=0.5)
SETTING = "SEMAPHORE_LIMITS"


def limits(settings: dict[Any, Any], slots: dict[Any, Any] | None = None) -> model.LimitTable:
    return model.parse_limits(settings, slots or {}, DEFAULT)


def refused(settings: dict[Any, Any], slots: dict[Any, Any] | None = None) -> str:
    """What is said of it."""
    with pytest.raises(SettingsError) as error:
        limits(settings, slots)
    return str(error.value)


def test_the_exact_host_wins_then_the_longest_pattern_then_the_slot_then_the_default() -> None:
    slot, free = {"concurrency": 5}, {"concurrency": None, "delay": 0}
    hosts = {"a.b.example.org": 1, "*.b.example.org": 2, "*.example.org": 3, "*.org": 4}
    slots = {"a.b.example.org": slot, "www.example.org": slot, "example.com": slot}
    table = limits({**hosts, "free.com": None, "*.free.com": free}, {**slots, "slot.com": free})
    for scope, concurrency in {
        "a.b.example.org": 1,
        "x.b.example.org": 2,
        "x.a.b.example.org": 2,
        "b.example.org": 3,
        "www.example.org": 3,
        "example.org": 4,  # a pattern does not match the host that it ends with
        "notexample.org": 4,
        "org": 8,
        "example.com": 5,
        "www.example.com": 8,
        **dict.fromkeys(("free.com", "www.free.com", "slot.com")),  # None: no limit
    }.items():
        limit = table.of(scope)
        assert (limit.concurrency if limit else None) == concurrency, scope


@pytest.mark.parametrize(
    ("value", "limit"),
    [
        (2, Limit(2, 1, 0.5)),
        ({}, DEFAULT),
        ({"delay": 0}, Limit(8, 0, 0.5)),
        ({"concurrency": 3, "jitter": 0}, Limit(3, 1, 0)),
        ({"adaptive": True}, Limit(8, 1, 0.5, adaptive=True)),
        ({"concurrency": 2, "rate": "10/m"}, Limit(2, 1, 0.5, rate="10/m")),
        ({"rate": "1.5/s", "burst": 4}, Limit(8, 1, 0.5, rate="1.5/s", burst=4)),
        ({"rate": None}, DEFAULT),
        ({"rate": None, "burst": 1, "concurrency": None}, None),
    ],
)
def test_a_dict_takes_what_it_leaves_out_from_the_default(value: Any, limit: Limit | None) -> None:
    assert limits({"a": value}).of("a") == limit


def test_a_burst_goes_with_the_rate_of_its_limit() -> None:
    settings = {"a": 2, "b": {"burst": 9}, "c": {"rate": None}}
    table = model.parse_limits(settings, {}, Limit(8, rate="60/m", burst=5))
    assert table.of("a") == Limit(2, rate="60/m", burst=5)
    assert table.of("b") == Limit(8, rate="60/m", burst=9)
    assert table.of("c") == Limit(8)


def test_download_slots_are_read_as_scrapy_reads_them() -> None:
    table = limits(
        {},
        {
            "a": {"concurrency": 2, "delay": 3, "randomize_delay": False},
            "b": {"randomize_delay": True},
            "c": {"jitter": 0.2, "randomize_delay": True, "throttle": False, "rate": "1/s"},
            "d": {"jitter": 3},
        },
    )
    assert table.of("a") == Limit(2, 3, 0)
    assert table.of("b") == Limit(8, 1, 0.5)
    assert table.of("c") == Limit(8, 1, 0.2)
    assert table.of("d") == Limit(8, 1, 1)


def test_an_entry_says_where_each_part_was_set() -> None:
    sources = {"concurrency": "PER_DOMAIN", "delay": "DELAY", "jitter": "JITTER"}
    settings: dict[Any, Any] = {"a.b": 2, "*.A.b": {"delay": 0, "rate": "9/s"}, "free": None}
    settings["all"] = {"rate": "1/s"}
    slots = {"slot": {"delay": 3}}
    table = model.parse_limits(settings, slots, DEFAULT, sources=sources)
    for scope, text in {
        "a.b": "limit 2 (SEMAPHORE_LIMITS['a.b']), delay 1 s (DELAY), jitter 0.5 (JITTER)",
        "www.a.b": "limit 8 (PER_DOMAIN), rate 9/s (SEMAPHORE_LIMITS['*.A.b'])",
        "free": "no limit (SEMAPHORE_LIMITS['free'])",
        "all": "no limit, rate 1/s (SEMAPHORE_LIMITS['all'])",
        "slot": "limit 8 (PER_DOMAIN), delay 3 s (DOWNLOAD_SLOTS['slot']), jitter 0.5 (JITTER)",
        "else": "limit 8 (PER_DOMAIN), delay 1 s (DELAY), jitter 0.5 (JITTER)",
    }.items():
        assert str(table.entry_of(scope)) == text


@pytest.mark.parametrize(
    ("name", "scopes", "concurrency"),
    [
        ("domain:a.b", ("domain", "host"), 8),
        ("domain:a.b", ("host", "domain"), LIMITLESS),
        ("all", ("all", "host"), 8),
        ("all", ("host", "all"), LIMITLESS),
        ("a.b", ("domain", "host"), 8),
    ],
)
def test_what_a_limit_leaves_out_is_the_default_s_for_hosts_and_the_first_kind(
    name: str, scopes: tuple[str, ...], concurrency: int
) -> None:
    table = model.parse_limits({name: {"rate": "1/s"}}, {}, DEFAULT, scopes)
    limit = table.of(name)
    assert limit is not None
    assert limit.concurrency == concurrency


def test_a_host_may_be_written_in_any_way() -> None:
    for host, spellings in {
        "example.com": ("Example.COM", "example.com.", " example.com "),
        "xn--bcher-kva.example": ("bücher.example", "BÜCHER.example.", "xn--bcher-kva.example"),
        "127.0.0.1": (
            *("127.0.0.1", "127.1", "0x7F.1.", "0177.0x0.01"),
            *("\uff11\uff12\uff17\u30020.0.1", "::ffff:127.0.0.1", "[::FFFF:7f00:1]"),
        ),
        "0.0.0.0": ("0.",),
        "localhost": ("LocalHost", "localhost."),
        "::1": ("::1", "[::1]", "0:0:0:0:0:0:0:1"),
        "2001:db8::1": ("2001:DB8::0:1",),
    }.items():
        for written in spellings:
            assert normal_host(written) == scope_name(written) == host
            assert limits({written: 2}).of(host) == Limit(2, 1, 0.5)
            assert limits({}, {written: {"concurrency": 2}}).of(host) == Limit(2, 1, 0.5)
            assert limits({f"*.{written}": 2}).of(f"www.{host}") == Limit(2, 1, 0.5)


def test_a_name_that_is_no_host_stays_as_it_is() -> None:
    for name in (
        *("127.0.0.1 x", "1.2.3.4.5", "256.1", "0x", "08.1", "1..1", "4294967296", "feed", "x.1"),
        "a:b",
    ):
        assert normal_host(name) == scope_name(name) == name
    for scope in ("My Scope", "ends with a dot.", "ü" * 100, "a..b", "😀"):
        assert limits({scope: 2}).of(scope) == Limit(2, 1, 0.5)


OWN_NAMES = (
    *("API-A", "All", "tenant:Acme", "Example.com, search", "7", "0x7F000001", "Müller & Co."),
)


def test_a_name_of_the_user_s_own_is_no_other_one() -> None:
    assert normal_host("2130706433") == "127.0.0.1", "as http://2130706433/ is sent"
    for name in OWN_NAMES:
        assert check_scope(name) == scope_name(name) == parse_name(name, "here") == name
        assert scope_name(f"via:Proxy.Example:80 {name}") == f"via:proxy.example:80 {name}"
        two = {name.swapcase(): 5, name: 2}
        assert [limits(two).of(own) for own in two] == [Limit(n, 1, 0.5) for n in two.values()]


VIA = "no request has this name; write it like 'via:10.0.0.1:3128 example.org'"
VOID = {
    ".a.test": "no request has this name; write '*.a.test' for each host below it, and 'a.test'",
    "*..a.test": "no request has this name; write '*.a.test' for each host below it",
    "host:C.test": "no request has this name; write 'c.test'",
    "Host:*.c.test": "no request has this name; write '*.c.test'",
    "domain:.d.test": "no request has this name; write 'domain:d.test'",
    "domain:http://d.test/": "no request has this name; write 'domain:d.test'",
    "domain:d.test:80": "no request has this name; write 'domain:d.test'",
    "domain:d.test,e.test": "no request has this name; write it like 'domain:example.org'",
    "proxy:http://u:p@10.0.0.1:3128/": "no request has this name; write 'proxy:10.0.0.1:3128'",
    "proxy:http://[::1]:3128": "no request has this name; write 'proxy:[::1]:3128'",
    "proxy:10.0.0.1": "no request has this name; write it like 'proxy:10.0.0.1:3128'",
    "via:10.0.0.1 a.test": VIA,
    "via:10.0.0.1:3128": VIA,
    "https://b.test/x": "give only the host: 'b.test'",
    "s3://bucket/x": "give only the host: 'bucket'",
    "//b.test": "give only the host: 'b.test'",
    "*.b.test:80": "give only the host: 'b.test'",
    "b.test:80/": "give only the host: 'b.test'",
    "http://b.test,http://c.test/": "write each host by itself: 'b.test' and 'c.test'",
}
OF_FUNCTIONS = {
    "b.test/": "give only the host: 'b.test'",
    "*.b.test//": "give only the host: '*.b.test'",
    "B.test, 127.1": "write each host by itself: 'b.test' and '127.0.0.1'",
    "*.b.test;c.test": "write each host by itself: '*.b.test' and 'c.test'",
}
"""Mistakes, unless a user's function names scopes."""


def test_names_that_no_request_has_are_refused() -> None:
    for name, said in (VOID | OF_FUNCTIONS).items():
        assert refused({name: 2}).startswith(f"{SETTING}[{name!r}]: {said}")
    for name in OF_FUNCTIONS:
        table = model.parse_limits({name: 2}, {}, DEFAULT, [len])
        assert table.of(name) == Limit(2, 1, 0.5)
    for name in (
        *("a/b", "b.test/search", "a, b", "b.test, the API", "all/", "a.b c", "host:A B"),
        *("domain:intranet", "domain:10.0.0.1", "domain:::1", "domain:*", "proxy:*", "via:*"),
        *("proxy:squid:3128", "proxy:[::1]:3128", "via:10.0.0.1:3128 b.test, the API"),
    ):
        assert limits({name: 2}).of(name) is not None, name
    with pytest.raises(SettingsError, match=r"write 'c\.test'"):
        check_scope("host:c.test")


@given(st.text(st.sampled_from("aAbB.:-_ 01xü。\uff11ßI\u200b[]"), min_size=1, max_size=8))
def test_two_scopes_have_two_names(name: str) -> None:
    usual = scope_name(name)
    assert scope_name(usual) == usual
    assert scope_name(host := normal_host(name)) == host, "so a request's own scope is allowed"
    if usual == name:
        assert check_scope(name) == name
        return
    assert usual == normal_host(name)
    with pytest.raises(SettingsError) as error:
        check_scope(name)
    assert str(error.value) == f"the scope = {name!r}: it looks like a host; write {usual!r}"


def test_names_are_cleaned_of_what_terminals_obey() -> None:
    assert clean("bücher.example") == "bücher.example"
    assert clean("a\x1b[2J\u202eb\ud800") == r"a\x1b[2J\u202eb\ud800"


@pytest.mark.parametrize(
    ("rate", "interval", "shown"),
    [
        *(("60/m", 1, "1/s"), ("10/m", 6, "10/m"), ("7/m", 60 / 7, "7/m")),
        *(("1.5/s", 2 / 3, "90/m"), ("2e3/s", 0.0005, "2000/s"), ("24/d", 3600, "1/h")),
        *(("7/d", 86400 / 7, "7/d"), ("8.21917808/m", 60 / 8.21917808, "8.21918/m")),
        *(("0.3/d", 288000, "0.3/d"), ("1000000/s", 1e-6, "1000000/s")),
        *(("86400000000/d", 1e-6, "1000000/s"), ("8.64e-5/d", 1e9, "8.64e-05/d")),
    ],
)
def test_a_rate_is_read_and_shown(rate: str, interval: float, shown: str) -> None:
    assert parse_rate(rate, "here") == Limit(1, rate=rate).interval == interval
    assert rate_text(interval) == shown
    assert Limit(1, delay=5).interval == 0


@given(st.floats(1e-6, 1e9))
def test_a_rate_that_is_shown_can_be_read(interval: float) -> None:
    assert parse_rate(rate_text(interval), "here") == pytest.approx(interval, rel=1e-5)


BAD_RATES: list[Any] = [
    *("", "60", "/m", "60/", "0/m", "-1/s", "+-1/s", "60/x", "60/M", "60/min", "60 /m", "60/m\n"),
    "60 per minute",
    *("1_0/s", "٣/s", "nan/s", "inf/s", "1e400/s", "1e-400/s", "1000001/s", "60000001/m"),
    *("8.63e-5/d", "none", b"60/m", 60, 0, 1.5, True, False, ["60/m"]),
]


HINTS = {
    **dict.fromkeys(("60/M", "60/min", "60 /m", "60/m\n", "60 per minute"), "; write '60/m'"),
    "-1/s": "",
}


def test_a_bad_rate_is_refused() -> None:
    for rate in BAD_RATES:
        with pytest.raises(SettingsError) as error:
            parse_rate(rate, "--rate")
        hint = HINTS.get(rate if isinstance(rate, str) else "", "")
        assert str(error.value) == f"--rate {rate}: allowed is {model.ALLOWED_RATE}{hint}"
        allowed = f"allowed is {model.ALLOWED_RATE}; or None{hint}"
        assert refused({"a": {"rate": rate}}) == f"{SETTING}['a']['rate'] = {rate!r}: {allowed}"
        with pytest.raises(SettingsError) as error:
            Limit(1, rate=rate)
        assert str(error.value) == f"Limit.rate = {rate!r}: {allowed}"


RATES = ("60/m", "1/s", "1.5/s", "10/h", "7/d")
LIMITS = st.builds(
    lambda *parts, rate: Limit(*parts, *rate),
    *(st.integers(1, 100), st.floats(0, 1e9), st.floats(0, 1), st.booleans()),
    rate=st.just(()) | st.tuples(st.sampled_from(RATES), st.integers(1, 10**6)),
)


@given(LIMITS, LIMITS)
def test_the_stricter_of_two_limits_is_one_under_which_both_hold(a: Limit, b: Limit) -> None:
    both = model.strictest(a, b)
    assert both.concurrency == min(a.concurrency, b.concurrency)
    assert both.delay == max(a.delay, b.delay)
    assert both.least_interval == pytest.approx(max(a.least_interval, b.least_interval), abs=1e-6)
    assert both.adaptive == (a.adaptive or b.adaptive)
    assert both.interval == max(a.interval, b.interval)
    assert both.burst == min((limit.burst for limit in (a, b) if limit.rate), default=1)
    for limit in (a, b):
        for same in (limit, Limit(100, jitter=1)):
            assert model.strictest(limit, same) == model.strictest(same, limit) == limit


BAD: list[Any] = [0, -1, 1.5, 2.0, "2", True, False, [], (1,), math.nan]
NEEDS_CONCURRENCY = ": a 'delay', 'adaptive' or 'rate' needs a 'concurrency'"
PART = {part.name: f"allowed is {part.allowed}" for part in model.PARTS}
AT_FAULT: list[tuple[dict[Any, Any], str]] = [
    *(
        ({"concurrency": value}, f"['concurrency'] = {value!r}: {PART['concurrency']}")
        for value in BAD
    ),
    *(
        ({"delay": each}, f"['delay'] = {each!r}: {PART['delay']}")
        for each in (-1, "1", "1s", None, True, math.inf)
    ),
    *(({"jitter": jitter}, f"['jitter'] = {jitter}: {PART['jitter']}") for jitter in (-0.1, 1.1)),
    *(
        ({"rate": "60/m", "burst": burst}, f"['burst'] = {burst!r}: {PART['burst']}")
        for burst in (0, -1, 1.5, 2.0, 10**6 + 1, "2", True, None, math.inf)
    ),
    ({"adaptive": 1}, f"['adaptive'] = 1: {PART['adaptive']}"),
    ({1: 2}, f": unknown key 1; allowed are {', '.join(PART)}"),
    *(
        ({**no_rate, "burst": 5}, ": a 'burst' needs a 'rate'")
        for no_rate in ({}, {"rate": None}, {"concurrency": None})
    ),
    *(
        ({"concurrency": None, **part}, NEEDS_CONCURRENCY)
        for part in ({"rate": "60/m"}, {"delay": 1}, {"adaptive": True})
    ),
]


def test_what_is_no_limit_is_refused_by_the_key_at_fault() -> None:
    for limit, at_fault in AT_FAULT:
        assert refused({"a": limit}) == f"{SETTING}['a']{at_fault}"
    for value in BAD:
        for host in ("example.com", "*.example.com"):
            said = f"{SETTING}[{host!r}] = {value!r}: allowed is {ALLOWED_LIMIT}"
            assert refused({host: value}) == said
    empty: tuple[Any, ...] = ("", " ", ".", None, 1, b"example.com")
    for host in empty:
        what = "empty" if isinstance(host, str) else "not text"
        said = f"{SETTING}[{host!r}]: the host is {what}; allowed is a host or '*.host'"
        assert refused({host: 1}).startswith(said)
    for host in ("*", "*.", "*. ", "*.*.org", "a.*.org", "a*", "**.org"):
        assert refused({host: 1}).startswith(f"{SETTING}[{host!r}]: ")
    for one, other in (("a.example", "A.Example"), ("*.org", "*.ORG.")):
        said = f"{SETTING}[{other!r}]: {one!r} has a limit already, in another spelling"
        assert refused({one: 1, other: 2}) == said
    slots: list[tuple[dict[Any, Any], str]] = [
        ({"a": {"concurrency": 0}}, "['a']['concurrency'] = 0: allowed is"),
        ({"a": {"delay": -1}}, "['a']['delay'] = -1: allowed is"),
        ({"a": 3}, "['a'] = 3: allowed is"),
        ({"a": None}, "['a'] = None: allowed is"),
        ({1: {}}, "[1] = {}: allowed is"),
    ]
    for slot, said in slots:
        assert refused({}, slot).startswith(f"DOWNLOAD_SLOTS{said}")


def test_there_is_no_bad_limit() -> None:
    bad: list[tuple[Any, ...]] = [
        *((0,), (-1,), (1.5,), ("2",), (1, -1), (1, math.inf), (1, 0, 2), (1, 0, 0, 1)),
        *((1, 0, 0, False, "60"), (1, 0, 0, False, "60/m", 0), (1, 0, 0, False, None, 5)),
    ]
    for arguments in bad:
        with pytest.raises(SettingsError, match="Limit"):
            Limit(*arguments)


def test_each_part_of_a_limit_is_a_row() -> None:
    first, *others = fields(Limit)
    assert first.default is MISSING
    rows = [(first.name, None), *((field.name, field.default) for field in others)]
    assert [(part.name, part.default) for part in model.PARTS] == rows
    types = get_type_hints(Limit)
    assert get_type_hints(LimitDict) == types | {"concurrency": int | None}


async def test_a_type_checker_finds_a_misspelt_part(server: RedisServer) -> None:
    """`make lint` finds an error where none is ignored, and here none to be ignored."""
    async with FairSemaphore(server.url) as semaphore:
        for refused in (
            semaphore.acquire("s", {"concurency": 2}),  # type: ignore[arg-type]
            semaphore.acquire_all([("s", {"rate": 60})]),  # type: ignore[list-item]
            semaphore.admin.configure("s", {"dely": 1}),  # type: ignore[arg-type]
        ):
            with pytest.raises(SettingsError, match="the limit of 's'"):
                await refused


@given(LIMITS)
def test_a_limit_survives_the_wire(limit: Limit) -> None:
    again = Limit.unpack(*limit.pack())
    without = {
        part.name: part.default for part in model.PARTS if part.of and not limit.parts[part.of]
    }
    assert 0 <= again.delay - limit.delay <= 0.001 + 1e-6
    assert again.interval == pytest.approx(limit.interval)
    assert again == replace(limit, **{**without, "delay": again.delay, "rate": again.rate})
    for part, number in zip(model.PARTS, limit.pack(), strict=True):
        assert part.least <= number <= part.most
        assert not part.is_whole or number % 1 == 0
