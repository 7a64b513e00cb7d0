"""Limits, and the table of them from `SEMAPHORE_LIMITS` and Scrapy's own politeness settings."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, Self, TypeAlias, TypedDict

from semaphore_middleware.errors import SettingsError
from semaphore_middleware.model.hosts import (
    ALL,
    PREFIXED_KINDS,
    is_pattern,
    kind_of,
    parse_name,
    patterns_for,
    refuse_hosts,
    refuse_url,
    scope_name,
)
from semaphore_middleware.model.validation import (
    LONGEST_S,
    UNITS_S,
    check_integer,
    check_number,
    check_truth,
    did_you_mean,
    not_allowed,
)

SHORTEST_INTERVAL_S = 1e-6
LIMITLESS = 10**12
"""The concurrency that means no limit, and the largest number accepted by the server."""
BURST_MAX = 10**6

ALLOWED_RATE = (
    "a number per s, m, h or d, like '60/m', at most 1e6 per second and at least 1 in 1e9 seconds"
)
NONE = "none"
"""The text for no rate, on the command line and in a rule."""


# Parts of a limit --------------------------------------------------------------------------------


def parse_rate(text: Any, where: str, *, allowed: str = ALLOWED_RATE) -> float:
    """The seconds between two starts, on average, at a rate like '60/m'. Raises `SettingsError`."""
    written = re.fullmatch(r"([0-9.eE+-]+)/([smhd])", text) if isinstance(text, str) else None
    if written is None:
        raise not_allowed(text, where, f"{allowed}{_hint_at_rate(text)}")
    number, unit = written.groups()
    try:
        interval_s = UNITS_S[unit] / float(number)
    except (ValueError, ZeroDivisionError):
        raise not_allowed(text, where, allowed) from None
    if not SHORTEST_INTERVAL_S <= interval_s <= LONGEST_S:
        raise not_allowed(text, where, allowed)
    return interval_s


def _hint_at_rate(text: Any) -> str:
    """How to write a rate whose unit is written out: '10/min', '10 per minute'."""
    words = r"\s*([0-9.]+)\s*(?:/|per)\s*([smhd])[a-z]*\s*"
    meant = re.fullmatch(words, text, re.ASCII | re.IGNORECASE) if isinstance(text, str) else None
    return f"; write '{meant[1]}/{meant[2].lower()}'" if meant else ""


def rate_text(interval_s: float) -> str:
    """The rate with these seconds between two starts, as `parse_rate` reads it.

    Its unit is the shortest in which the number is whole; otherwise the shortest in which it is not
    below 1, or a day.
    """
    numbers = {unit: length_s / interval_s for unit, length_s in UNITS_S.items()}
    for unit, number in numbers.items():
        whole = round(number)
        if whole and abs(number - whole) < 1e-9 * whole:  # 60 / (60 / 7) is a little above 7
            return f"{whole}/{unit}"
    unit = next((unit for unit, number in numbers.items() if number >= 1), "d")
    return f"{numbers[unit]:g}/{unit}"


def _check_rate(value: Any, where: str, *, allowed: str, text: bool = False) -> str | None:
    if value is None or (text and value.lower() == NONE):
        return None
    parse_rate(value, where, allowed=allowed)
    return str(value)


def _check_concurrency(value: Any, where: str, *, allowed: str) -> int:
    return min(LIMITLESS, check_integer(value, where, least=1, allowed=allowed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One row for each part of a limit: its check, texts, option and form on the wire."""

    name: str
    """Its name in settings, rules and JSON, and of the field of `Limit`."""
    allowed: str
    check: Callable[..., Any]
    """Takes a value, where it was set, `allowed`, and `text=True` on a command line. Raises
    `SettingsError`.
    """
    type: Callable[[Any], Any]
    """From a number or text kept by the server to the value."""
    default: Any = None
    word: Callable[[Any], str]
    """The value as people read it."""
    of: str = ""
    """The part it modifies: it has no effect without that one."""
    needs_it: bool = False
    """True if it is refused without the part it modifies."""
    lifted: Any = None
    """Its value in a rule after an operator has set None."""
    # On the command line, as in `scrapy semaphore limit SCOPE --delay S`:
    help: str = ""
    """Its option's help; empty: it has no option."""
    letter: str = ""
    """The placeholder of its option's value; empty: a flag, with its opposite `--no-...`."""
    # On the wire:
    wire_name: str = ""
    """Its name on the wire, if different."""
    pack: Callable[[Any], float] = float
    unpack: Callable[[float], Any] = float
    least: float = 0
    most: float = LIMITLESS
    is_whole: bool = False


PARTS = (
    Part(
        name="concurrency",
        allowed="an integer >= 1 or None",
        check=_check_concurrency,
        type=int,
        word=lambda limit: f"limit {limit}" if limit < LIMITLESS else "no limit",
        lifted=LIMITLESS,
        pack=lambda limit: min(limit, LIMITLESS),
        unpack=int,
        least=1,
        is_whole=True,
    ),
    Part(
        name="delay",
        allowed="a number of seconds, 0 to 1e9",
        check=check_number,
        type=float,
        default=0.0,
        word=lambda seconds: f"delay {seconds:g} s",
        letter="S",
        help="seconds from one start to the next",
        pack=lambda seconds: math.ceil(1000 * seconds),
        unpack=lambda ms: ms / 1000,
    ),
    Part(
        name="jitter",
        allowed="a number, 0 to 1",
        check=partial(check_number, most=1),
        type=float,
        default=0.0,
        word=lambda share: f"jitter {round(share, 3):g}",
        of="delay",
        letter="J",
        help="share of the delay by which it varies either way: 0 to 1",
        most=1,
    ),
    Part(
        name="adaptive",
        allowed="True or False",
        check=check_truth,
        type=bool,
        default=False,
        word=lambda is_on: "adaptive" if is_on else "not adaptive",
        help="let the number follow the site's answers, up to N",
        unpack=bool,
        most=1,
        is_whole=True,
    ),
    Part(
        name="rate",
        allowed=f"{ALLOWED_RATE}; or None",
        check=_check_rate,
        type=str,
        word=lambda rate: f"rate {rate}",
        lifted=NONE,
        letter="R",
        help="starts per s, m, h or d, like 60/m; 'none' for no rate",
        wire_name="interval",
        pack=lambda rate: 1000 * parse_rate(rate, "rate") if rate else 0.0,
        unpack=lambda ms: rate_text(ms / 1000) if ms else None,
    ),
    Part(
        name="burst",
        allowed="an integer 1 to 1e6, only with a 'rate'",
        check=partial(check_integer, least=1, most=BURST_MAX),
        type=int,
        default=1,
        word=lambda starts: f"burst {starts}",
        of="rate",
        needs_it=True,
        letter="B",
        help="starts at once after a pause, where there is a rate",
        unpack=int,
        least=1,
        is_whole=True,
    ),
)
"""All parts of a limit. A new part also needs a field of `Limit` and of `LimitDict`, and its effect
in Lua.
"""
BY_NAME: Mapping[str, Part] = {part.name: part for part in PARTS}
ALLOWED_LIMIT = "an integer >= 1, None for no limit, or a dict with any of " + ", ".join(
    f"'{part.name}'" for part in PARTS
)


ALLOWED_IN_LIMIT = "an integer >= 1; None in place of the Limit means no limit at all"


def check_part(name: str, value: Any, where: str, allowed: str = "") -> Any:
    """One part's value as users write it. Raises `SettingsError`."""
    part = BY_NAME[name]
    return part.check(value, where, allowed=allowed or part.allowed)


def _check_needs(parts: Mapping[str, Any], where: str) -> None:
    """Refuse a part without the one it needs, unless it has its default value."""
    for part in PARTS:
        value = parts.get(part.name, part.default)
        if part.needs_it and value != part.default and parts[part.of] is None:
            raise SettingsError(f"{where}: a {part.name!r} needs a {part.of!r}")


# Limits ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Limit:
    """The number of requests at a site at once, the delay between their starts, and their rate.

    All parts hold together. A delay without jitter is a rate with a burst of 1. Raises
    `SettingsError` for an invalid part.

    With `adaptive` the effective limit follows the site's answers, up to `concurrency`: it grows by
    addition and falls by multiplication (D.-M. Chiu and R. Jain, Analysis of the Increase and
    Decrease Algorithms for Congestion Avoidance in Computer Networks, 1989), at once when the site
    refuses a request, and when its latency climbs well above its own (as in TCP Vegas: L. S. Brakmo
    and L. L. Peterson, TCP Vegas: End to End Congestion Avoidance on a Global Internet, 1995).
    `rate` and `burst` are those of the generic cell rate algorithm (ITU-T Recommendation I.371,
    Traffic control and congestion control in B-ISDN, 2004).
    """

    concurrency: int
    """Requests at once, of all nodes together: >= 1."""
    delay: float = 0.0
    """Seconds from one start to the next, on all nodes together: 0 to 1e9."""
    jitter: float = 0.0
    """Variation of the delay either way, as a share of it: 0 to 1."""
    adaptive: bool = False
    """True if the effective limit follows the site's answers, up to `concurrency`."""
    rate: str | None = None
    """Starts per s, m, h or d, of all nodes together, like '60/m'; None: no rate."""
    burst: int = 1
    """Requests that may start at once after idle time, with a rate: 1 to 1e6."""

    def __post_init__(self) -> None:
        for part in PARTS:
            # None is allowed in other places only.
            allowed = ALLOWED_IN_LIMIT if part.name == "concurrency" else ""
            check_part(part.name, getattr(self, part.name), f"Limit.{part.name}", allowed)
        _check_needs(self.parts, "Limit")

    def __str__(self) -> str:
        """As in: limit 4, delay 0.5 s, jitter 0.5, adaptive, rate 60/m, burst 3."""
        return ", ".join(_words(self).values())

    @property
    def further(self) -> str:
        """The text without the concurrency."""
        return ", ".join(list(_words(self).values())[1:])

    @property
    def parts(self) -> dict[str, Any]:
        """All parts, by name."""
        return {part.name: getattr(self, part.name) for part in PARTS}

    @classmethod
    @lru_cache(maxsize=1024)
    def unpack(cls, *numbers: float) -> Self:
        """The limit of these numbers on the wire. A concurrency of 0 is no limit."""
        pairs = zip(PARTS, numbers, strict=True)
        parts = {part.name: part.unpack(number) for part, number in pairs}
        without = {part.name: part.default for part in PARTS if part.of and not parts[part.of]}
        return cls(**{**parts, **without, "concurrency": parts["concurrency"] or LIMITLESS})

    @lru_cache(maxsize=512)  # noqa: B019 - it is frozen
    def pack(self) -> tuple[float, ...]:
        """Its numbers on the wire."""
        return tuple(part.pack(getattr(self, part.name)) for part in PARTS)

    @property
    def interval(self) -> float:
        """Seconds between two starts, on average, at its rate; 0.0 without one."""
        return 0.0 if self.rate is None else parse_rate(self.rate, "Limit.rate")

    @property
    def least_interval(self) -> float:
        """Seconds between two starts, at least: the delay at its shortest."""
        return self.delay * (1 - self.jitter)

    @property
    def strictness(self) -> tuple[float, float, float]:
        """A number for the concurrency, delay and rate: the larger, the stricter."""
        return -self.concurrency, self.delay, self.interval


def _words(limit: Limit) -> dict[str, str]:
    """The words of the parts that have an effect, by name; the concurrency is the first."""
    values = limit.parts
    return {
        part.name: part.word(values[part.name])
        for part in PARTS
        if values[part.name] != part.default and (not part.of or values[part.of])
    }


class LimitDict(TypedDict, total=False):
    """A limit as a dict, for type checkers: any of the parts of a `Limit`, with its meanings.

    What it leaves out is not limited, or in `Admin.configure` stays as it is.
    """

    concurrency: int | None
    delay: float
    jitter: float
    adaptive: bool
    rate: str | None
    burst: int


GivenLimit: TypeAlias = int | Limit | LimitDict | None
"""A limit as programs write it. None: no limit."""


@lru_cache(maxsize=1024)
def strictest(a: Limit, b: Limit) -> Limit:
    """The limit with the stricter parts of both.

    It has the longest delay, and the longest least interval: one limit may vary its delay, while
    the other has that of a robots.txt, which is a minimum.
    """
    slower = max(a, b, key=lambda limit: (limit.delay, -limit.jitter))
    least_interval = max(a.least_interval, b.least_interval)
    is_kept = slower.least_interval >= least_interval
    rated = [limit for limit in (a, b) if limit.rate is not None]
    return Limit(
        concurrency=min(a.concurrency, b.concurrency),
        delay=slower.delay,
        jitter=slower.jitter if is_kept else 1 - least_interval / slower.delay,
        adaptive=a.adaptive or b.adaptive,
        rate=max(rated, key=lambda limit: limit.interval).rate if rated else None,
        burst=min((limit.burst for limit in rated), default=1),
    )


def limit_word(limit: int | None) -> str:
    """The limit as text: 4; ∞ if an operator has lifted it; - if nobody has set one."""
    return "-" if limit is None else "∞" if limit >= LIMITLESS else str(limit)


# The table ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """One limit of a crawl, and where each of its parts was set."""

    limit: Limit | None
    """None: no limit."""
    name: str
    """The scope or the pattern; empty: the default of all that no other entry names."""
    sources: Mapping[str, str]
    """By the name of a part, where it was set: `DOWNLOAD_DELAY`, `SEMAPHORE_LIMITS['a.example']`.
    A part that was set nowhere limits nothing.
    """

    def __str__(self) -> str:
        """As in: limit 8 (Scrapy's default), delay 2 s (DOWNLOAD_DELAY)."""
        if self.limit is None:
            return "no limit" + self._named("concurrency")
        words = _words(self.limit)
        return ", ".join(word + self._named(part) for part, word in words.items())

    def _named(self, part: str) -> str:
        return f" ({self.sources[part]})" if part in self.sources else ""


@dataclass(frozen=True, slots=True)
class LimitTable:
    """All limits of a crawl, by scope.

    `of(scope)` takes the first of: the exact name, the most exact pattern, the slot, the default.
    """

    default: Entry
    exact: Mapping[str, Entry] = field(default_factory=dict)
    patterns: Mapping[str, Entry] = field(default_factory=dict)
    slots: Mapping[str, Entry] = field(default_factory=dict)

    @property
    def largest(self) -> int:
        """The highest concurrency of any limit of a host."""
        hosts = {**self.exact, **self.patterns}
        entries = [self.default, *self.slots.values()]
        entries += [entry for name, entry in hosts.items() if kind_of(name) in ("name", "host")]
        return max(entry.limit.concurrency for entry in entries if entry.limit is not None)

    def of(self, scope: str, has_default: bool = True) -> Limit | None:
        """The limit of `scope`; None: its requests need no permit. Without `has_default` it is None
        unless an entry names the scope.
        """
        entry = self.entry_of(scope)
        return entry.limit if has_default or entry is not self.default else None

    def entry_of(self, scope: str) -> Entry:
        """The entry whose limit holds for `scope`, as set on this node."""
        if scope in self.exact:
            return self.exact[scope]
        if self.patterns:
            for pattern in patterns_for(scope):
                if pattern in self.patterns:
                    return self.patterns[pattern]
        return self.slots.get(scope, self.default)

    def named(self) -> Iterator[Entry]:
        """The entries for scopes and patterns, without slots that another entry overrides."""
        yield from (*self.exact.values(), *self.patterns.values())
        yield from (slot for slot in self.slots.values() if self.entry_of(slot.name) is slot)

    def names_kind(self, kind: str) -> bool:
        """True if an entry is for scopes of this kind."""
        # A pattern like '*.a' is for hosts: '.a' has their form.
        names = (name.removeprefix("*") for name in (*self.exact, *self.patterns))
        return kind in map(kind_of, names)

    def key_above(self, host: str) -> str:
        """The key of a host above this one, if this one has only the default limit: users may think
        that the key is for both. Empty: there is none.
        """
        if self.entry_of(host) is not self.default:
            return ""
        parents = [pattern.removeprefix("*.") for pattern in patterns_for(host)]
        return next((name for name in parents if "." in name and name in self.exact), "")


def _complete(parts: Mapping[str, Any], where: str, default: Limit) -> Limit | None:
    """The limit of these parts, with the missing ones from `default`."""
    whole = {**default.parts, **parts}
    _check_needs({**parts, **{part.of: whole[part.of] for part in PARTS if part.of}}, where)
    for part in PARTS:
        if part.needs_it and whole[part.of] is None:
            whole[part.name] = part.default  # that of `default` is dropped with what it needs
    if whole["concurrency"] is not None:
        return Limit(**whole)
    alone = [part.name for part in PARTS[1:] if not part.of]
    if any(map(parts.get, alone)):
        *names, last = map(repr, alone)
        raise SettingsError(f"{where}: a {', '.join(names)} or {last} needs a 'concurrency'")
    return None


def parse_parts(value: Any, where: str) -> dict[str, Any]:
    """Check a limit as users write it. Returns its parts; a dict may have only some of them."""
    if isinstance(value, Limit):
        return value.parts
    if value is None:
        return {"concurrency": None}
    if not isinstance(value, Mapping):
        return {"concurrency": check_part("concurrency", value, where, ALLOWED_LIMIT)}
    unknown = [key for key in value if key not in BY_NAME]
    if unknown:
        hint = did_you_mean(str(unknown[0]), BY_NAME) or f"; allowed are {', '.join(BY_NAME)}"
        raise SettingsError(f"{where}: unknown key {unknown[0]!r}{hint}")
    parts: dict[str, Any] = {
        key: None
        if key == "concurrency" and part is None
        else check_part(key, part, f"{where}[{key!r}]")
        for key, part in value.items()
    }
    if any(part.needs_it and part.of in parts for part in PARTS):
        _check_needs(parts, where)
    return parts


def parse_limits(
    settings: Mapping[str, Any],
    slots: Mapping[str, Any],
    default: Limit,
    scopes: Sequence[object] = ("host",),
    sources: Mapping[str, str] = MappingProxyType({}),
) -> LimitTable:
    """Build the table from `SEMAPHORE_LIMITS` and Scrapy's own settings.

    `slots` and `scopes` are the values of `DOWNLOAD_SLOTS` and `SEMAPHORE_SCOPES`. `default` is the
    limit of hosts, of names and of the first kind in `scopes`, and `sources` are the settings of
    its parts. In a limit of another kind, what a dict leaves out is not limited.
    """
    has_function = any(map(callable, scopes))
    exact: dict[str, Entry] = {}
    patterns: dict[str, Entry] = {}
    for key, value in settings.items():
        where = f"SEMAPHORE_LIMITS[{key!r}]"
        name = parse_name(key, where)
        if not has_function:
            refuse_hosts(name, where)
        refuse_url(name, where)
        is_unlimited = kind_of(name) in (*PREFIXED_KINDS, ALL) and kind_of(name) != scopes[0]
        base = Limit(LIMITLESS, jitter=default.jitter) if is_unlimited else default
        table = patterns if is_pattern(name) else exact
        if name in table:
            raise SettingsError(f"{where}: {name!r} has a limit already, in another spelling")
        parts = parse_parts(value, where)
        set_by = {**({} if is_unlimited else sources), **dict.fromkeys(parts, where)}
        table[name] = Entry(_complete(parts, where, base), name, set_by)
    of_slots: dict[str, Entry] = {}
    for key, slot in slots.items():
        where = f"DOWNLOAD_SLOTS[{key!r}]"
        parts = parse_parts(_parse_slot(key, slot, where), where)
        name = scope_name(key)
        set_by = {**sources, **dict.fromkeys(parts, where)}
        of_slots[name] = Entry(_complete(parts, where, default), name, set_by)
    return LimitTable(Entry(default, "", sources), exact, patterns, of_slots)


def _parse_slot(name: Any, slot: Any, where: str) -> dict[str, Any]:
    """The parts of a limit in an entry of `DOWNLOAD_SLOTS`, without a rate. Other keys, and the old
    name for jitter, are allowed.
    """
    if not isinstance(name, str) or not isinstance(slot, Mapping):
        allowed = "a host, and a dict like {'concurrency': 2, 'delay': 0.5}"
        raise not_allowed(slot, where, allowed)
    parts = {part: slot[part] for part in ("concurrency", "delay", "jitter") if part in slot}
    if "jitter" not in slot and "randomize_delay" in slot:
        parts["jitter"] = 0.5 if slot["randomize_delay"] else 0.0
    if isinstance(jitter := parts.get("jitter"), int | float) and jitter > 1:
        parts["jitter"] = 1.0  # Scrapy has no maximum, but no delay below 0
    return parts
