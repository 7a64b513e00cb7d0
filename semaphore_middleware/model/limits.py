"""Limits, and the table of them from `SEMAPHORE_LIMITS` and Scrapy's own politeness settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

from semaphore_middleware.errors import SettingsError
from semaphore_middleware.model.hosts import (
    ALL,
    PREFIXED_KINDS,
    is_pattern,
    kind_of,
    normal_host,
    normal_name,
    parse_name,
    patterns_for,
    refuse_url,
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
"""A concurrency that stands for no limit: the server takes no larger number."""
BURST_MAX = 10**6

ALLOWED_RATE = (
    "a number per s, m, h or d, like '60/m', at most 1e6 per second and at least 1 in 1e9 seconds"
)
ALLOWED_LIMIT = (
    "an integer >= 1, None for no limit, or a dict with any of "
    "'concurrency' (an integer >= 1 or None), 'delay' (0 to 1e9 seconds), 'jitter' (0 to 1), "
    f"'adaptive' (True or False), 'rate' ({ALLOWED_RATE}; or None) and "
    "'burst' (an integer 1 to 1e6, only with a 'rate')"
)


# Parts of a limit --------------------------------------------------------------------------------


def check_concurrency(value: Any, where: str) -> int:
    """How many requests may run at once. Raises `SettingsError`."""
    return check_integer(value, where, least=1, allowed=ALLOWED_LIMIT)


def parse_rate(text: Any, where: str, *, allowed: str = ALLOWED_RATE) -> float:
    """The seconds between two starts, on average, at a rate like '60/m'. Raises `SettingsError`."""
    written = re.fullmatch(r"([0-9.eE+-]+)/([smhd])", text) if isinstance(text, str) else None
    if written is None:
        raise not_allowed(text, where, allowed)
    number, unit = written.groups()
    try:
        interval_s = UNITS_S[unit] / float(number)
    except (ValueError, ZeroDivisionError):
        raise not_allowed(text, where, allowed) from None
    if not SHORTEST_INTERVAL_S <= interval_s <= LONGEST_S:
        raise not_allowed(text, where, allowed)
    return interval_s


def rate_text(interval_s: float) -> str:
    """The rate with these seconds between two starts, as `parse_rate` reads it.

    Its unit is the shortest in which the number is whole; else the shortest in which it is not
    below 1; else a day.
    """
    numbers = {unit: length_s / interval_s for unit, length_s in UNITS_S.items()}
    for unit, number in numbers.items():
        whole = round(number)
        if whole and abs(number - whole) < 1e-9 * whole:  # 60 / (60 / 7) is a little above 7
            return f"{whole}/{unit}"
    unit = next((unit for unit, number in numbers.items() if number >= 1), "d")
    return f"{numbers[unit]:g}/{unit}"


def _check_rate(value: Any, where: str) -> str | None:
    if value is None:
        return None
    parse_rate(value, where, allowed=ALLOWED_LIMIT)
    return str(value)


def _check_burst(burst: int, rate: str | None, where: str) -> None:
    if burst > 1 and rate is None:
        raise SettingsError(f"{where}: a 'burst' needs a 'rate'; allowed is {ALLOWED_LIMIT}")


CHECKS: Mapping[str, Callable[[Any, str], Any]] = {
    "concurrency": check_concurrency,
    "delay": partial(check_number, allowed=ALLOWED_LIMIT),
    "jitter": partial(check_number, most=1, allowed=ALLOWED_LIMIT),
    "adaptive": partial(check_truth, allowed=ALLOWED_LIMIT),
    "rate": _check_rate,
    "burst": partial(check_integer, least=1, most=BURST_MAX, allowed=ALLOWED_LIMIT),
}
"""For each part of a limit, the check of its value."""


# Limits ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Limit:
    """How many requests may run at a site at once, how far apart they start, and at which rate.

    All parts hold together. `rate` and `burst` are those of the generic cell rate algorithm (ITU-T
    Recommendation I.371, Traffic control and congestion control in B-ISDN, 2004); a delay without
    jitter is a rate with a burst of 1.

    With `adaptive` the limit in force follows the site's answers, up to `concurrency`: it grows by
    addition and falls by multiplication (D.-M. Chiu and R. Jain, Analysis of the Increase and
    Decrease Algorithms for Congestion Avoidance in Computer Networks, 1989), at once when the site
    refuses a request, and when its latency climbs well above its own (as in TCP Vegas: L. S. Brakmo
    and L. L. Peterson, TCP Vegas: End to End Congestion Avoidance on a Global Internet, 1995).

    Raises `SettingsError` for what is not allowed.
    """

    concurrency: int
    """Requests at once, of all nodes together: >= 1."""
    delay: float = 0.0
    """Seconds from one start to the next, on all nodes together: 0 to 1e9."""
    jitter: float = 0.0
    """Share of the delay by which it varies either way: 0 to 1."""
    adaptive: bool = False
    """Whether the limit in force is lower than `concurrency` if the site's answers ask for it."""
    rate: str | None = None
    """Starts per s, m, h or d, of all nodes together, like '60/m'; None: no rate."""
    burst: int = 1
    """How many may start at once after idle time, at that rate: 1 to 1e6."""

    def __post_init__(self) -> None:
        for part, check in CHECKS.items():
            check(getattr(self, part), f"Limit.{part}")
        _check_burst(self.burst, self.rate, "Limit")

    def __str__(self) -> str:
        """As in: limit 4, adaptive, delay 0.5 s, jitter 0.5, rate 60/m, burst 3."""
        parts = (
            (self.concurrency < LIMITLESS, f"limit {self.concurrency}"),
            (self.concurrency >= LIMITLESS, "no limit"),
            (self.adaptive, "adaptive"),
            (self.delay > 0, f"delay {self.delay:g} s"),
            (self.delay > 0 and self.jitter > 0, f"jitter {self.jitter:g}"),
            (self.rate is not None, f"rate {self.rate}"),
            (self.burst > 1, f"burst {self.burst}"),
        )
        return ", ".join(text for applies, text in parts if applies)

    @property
    def interval(self) -> float:
        """Seconds between two starts, on average, at its rate; 0.0 without one."""
        return 0.0 if self.rate is None else parse_rate(self.rate, "Limit.rate")

    @property
    def least_gap(self) -> float:
        """Seconds between two starts, at least: the delay at its shortest."""
        return self.delay * (1 - self.jitter)

    @property
    def strictness(self) -> tuple[float, float, float]:
        """How strict each part is that may differ between nodes: the larger, the stricter."""
        return -self.concurrency, self.delay, self.interval


@lru_cache(maxsize=1024)
def strictest(a: Limit, b: Limit) -> Limit:
    """The limit under which both hold.

    It has the longest delay, and the longest least gap: one limit may vary its delay, while the
    other has that of a robots.txt, which is a minimum.
    """
    slower = max(a, b, key=lambda limit: (limit.delay, -limit.jitter))
    least_gap = max(a.least_gap, b.least_gap)
    is_kept = slower.least_gap >= least_gap
    rated = [limit for limit in (a, b) if limit.rate is not None]
    return Limit(
        concurrency=min(a.concurrency, b.concurrency),
        delay=slower.delay,
        jitter=slower.jitter if is_kept else 1 - least_gap / slower.delay,
        adaptive=a.adaptive or b.adaptive,
        rate=max(rated, key=lambda limit: limit.interval).rate if rated else None,
        burst=min((limit.burst for limit in rated), default=1),
    )


# The table ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LimitTable:
    """All limits of a crawl, by scope.

    `of(scope)` takes the first of: the exact name, the most exact pattern, the slot, the default.
    """

    default: Limit | None
    exact: Mapping[str, Limit | None] = field(default_factory=dict)
    patterns: Mapping[str, Limit | None] = field(default_factory=dict)
    slots: Mapping[str, Limit | None] = field(default_factory=dict)

    @property
    def largest(self) -> int:
        """The highest concurrency of any limit of a host."""
        hosts = {**self.exact, **self.patterns}
        limits = [self.default, *self.slots.values()]
        limits += [limit for name, limit in hosts.items() if kind_of(name) in ("name", "host")]
        return max(limit.concurrency for limit in limits if limit is not None)

    def of(self, scope: str, has_default: bool = True) -> Limit | None:
        """The limit of `scope`; None: its requests need no permit. Without `has_default` that is so
        wherever no entry names it.
        """
        if scope in self.exact:
            return self.exact[scope]
        if self.patterns:
            for pattern in patterns_for(scope):
                if pattern in self.patterns:
                    return self.patterns[pattern]
        return self.slots.get(scope, self.default if has_default else None)

    def names_kind(self, kind: str) -> bool:
        """Whether an entry is for scopes of this kind."""
        return any(kind_of(name) == kind for name in (*self.exact, *self.patterns))


def parse_limit(value: Any, where: str, default: Limit) -> Limit | None:
    """Check one limit as users write it; what a dict leaves out is taken from `default`."""
    parts = parse_parts(value, where)
    rate = parts.get("rate", default.rate)
    _check_burst(parts.get("burst", 1), rate, where)
    if rate is None:
        parts["burst"] = 1  # the default's goes with its rate
    if parts.get("concurrency", 1) is not None:
        return replace(default, **parts)
    if parts.get("delay") or parts.get("adaptive") or parts.get("rate"):
        raise SettingsError(
            f"{where}: a 'delay', 'rate' or 'adaptive' needs a 'concurrency'; "
            f"allowed is {ALLOWED_LIMIT}"
        )
    return None


def parse_parts(value: Any, where: str) -> dict[str, Any]:
    """Check a limit as users write it. Returns its parts; a dict may have only some of them."""
    if isinstance(value, Limit):
        return {part: getattr(value, part) for part in CHECKS}
    if value is None:
        return {"concurrency": None}
    if not isinstance(value, Mapping):
        return {"concurrency": check_concurrency(value, where)}
    unknown = [key for key in value if key not in CHECKS]
    if unknown:
        hint = did_you_mean(str(unknown[0]), CHECKS) or f"; allowed is {ALLOWED_LIMIT}"
        raise SettingsError(f"{where}: unknown key {unknown[0]!r}{hint}")
    parts: dict[str, Any] = {
        key: None
        if key == "concurrency" and part is None
        else CHECKS[key](part, f"{where}[{key!r}]")
        for key, part in value.items()
    }
    if "rate" in parts:
        _check_burst(parts.get("burst", 1), parts["rate"], where)
    return parts


def parse_limits(
    settings: Mapping[str, Any],
    slots: Mapping[str, Mapping[str, Any]],
    default: Limit,
    setting: str,
    first_kind: str = "host",
) -> LimitTable:
    """Build the table from `SEMAPHORE_LIMITS` and Scrapy's own settings.

    `slots` has the values of `DOWNLOAD_SLOTS` and the like, by setting; of two entries for one name
    the later wins. `default` is the limit of hosts, of names and of `first_kind`. In a limit of
    another kind, what a dict leaves out is not limited. `setting` is the name of `SEMAPHORE_LIMITS`
    in errors.
    """
    exact: dict[str, Limit | None] = {}
    patterns: dict[str, Limit | None] = {}
    for key, value in settings.items():
        where = f"{setting}[{key!r}]"
        name = parse_name(key, where)
        refuse_url(name, where)
        is_open = kind_of(name) in (*PREFIXED_KINDS, ALL) and kind_of(name) != first_kind
        base = Limit(LIMITLESS, jitter=default.jitter) if is_open else default
        limit = parse_limit(value, where, base)
        if is_pattern(name):
            patterns[name] = limit
        else:
            exact[name] = exact[normal_name(name)] = limit
    of_slots: dict[str, Limit | None] = {}
    for slots_setting, given in slots.items():
        for name, slot in given.items():
            limit = _parse_slot(name, slot, f"{slots_setting}[{name!r}]", default)
            of_slots[name] = of_slots[normal_host(name)] = limit
    return LimitTable(default, exact, patterns, of_slots)


def _parse_slot(name: Any, slot: Any, where: str, default: Limit) -> Limit | None:
    """The limit in an entry of one of Scrapy's settings. It has no rate; its other keys and its old
    name for jitter are no mistakes.
    """
    if not isinstance(name, str) or not isinstance(slot, Mapping):
        allowed = "a host, and a dict like {'concurrency': 2, 'delay': 0.5}"
        raise not_allowed(slot, where, allowed)
    jitter = slot.get("jitter", default.jitter)
    if "jitter" not in slot and "randomize_delay" in slot:
        jitter = 0.5 if slot["randomize_delay"] else 0.0
    if isinstance(jitter, int | float) and jitter > 1:
        jitter = 1.0  # Scrapy has no maximum, but no delay below 0
    known = {
        "concurrency": slot.get("concurrency", default.concurrency),
        "delay": slot.get("delay", default.delay),
        "jitter": jitter,
    }
    return parse_limit(known, where, default)
