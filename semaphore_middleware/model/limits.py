"""Limits, and the table of them from `SEMAPHORE_LIMITS` and Scrapy's own politeness settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from semaphore_middleware.errors import SettingsError
from semaphore_middleware.model.hosts import normal_host, parse_name
from semaphore_middleware.model.validation import (
    check_integer,
    check_number,
    check_truth,
    not_allowed,
)

ALLOWED_LIMIT = (
    "an integer >= 1, None for no limit, or a dict with any of "
    "'concurrency' (an integer >= 1 or None), 'delay' (0 to 1e9 seconds), 'jitter' (0 to 1) and "
    "'adaptive' (True or False)"
)


def check_concurrency(value: Any, where: str) -> int:
    """How many requests may run at once. Raises `SettingsError`."""
    return check_integer(value, where, least=1, allowed=ALLOWED_LIMIT)


CHECKS: Mapping[str, Callable[[Any, str], Any]] = {
    "concurrency": check_concurrency,
    "delay": partial(check_number, allowed=ALLOWED_LIMIT),
    "jitter": partial(check_number, most=1, allowed=ALLOWED_LIMIT),
    "adaptive": partial(check_truth, allowed=ALLOWED_LIMIT),
}
"""For each part of a limit, the check of its value."""


@dataclass(frozen=True, slots=True)
class Limit:
    """How many requests may run at a site at once, and how far apart they start.

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

    def __post_init__(self) -> None:
        for part, check in CHECKS.items():
            check(getattr(self, part), f"Limit.{part}")


@dataclass(frozen=True, slots=True)
class LimitTable:
    """All limits of a crawl, by scope.

    `of(scope)` takes the first of: the exact name, the longest `*.` pattern, the slot, the default.
    """

    default: Limit | None
    exact: Mapping[str, Limit | None] = field(default_factory=dict)
    patterns: Mapping[str, Limit | None] = field(default_factory=dict)
    slots: Mapping[str, Limit | None] = field(default_factory=dict)

    @property
    def largest(self) -> int:
        """The highest concurrency of any limit."""
        limits = [self.default, *self.exact.values(), *self.patterns.values(), *self.slots.values()]
        return max(limit.concurrency for limit in limits if limit is not None)

    def of(self, scope: str) -> Limit | None:
        """The limit of `scope`; None: its requests need no permit."""
        if scope in self.exact:
            return self.exact[scope]
        if self.patterns:
            _, *parents = scope.split(".")
            while parents:  # the longest suffix first
                suffix = ".".join(parents)
                if suffix in self.patterns:
                    return self.patterns[suffix]
                del parents[0]
        return self.slots.get(scope, self.default)


def parse_limit(value: Any, where: str, default: Limit) -> Limit | None:
    """Check one limit as users write it; what a dict leaves out is taken from `default`."""
    parts = parse_parts(value, where)
    if parts.get("concurrency", 1) is not None:
        return replace(default, **parts)
    if parts.get("delay") or parts.get("adaptive"):
        raise SettingsError(
            f"{where}: a 'delay' or 'adaptive' needs a 'concurrency'; allowed is {ALLOWED_LIMIT}"
        )
    return None


def parse_parts(value: Any, where: str) -> dict[str, Any]:
    """Check a limit as users write it. Returns its parts; a dict may have only some of them."""
    if value is None:
        return {"concurrency": None}
    if not isinstance(value, Mapping):
        return {"concurrency": check_concurrency(value, where)}
    unknown = [key for key in value if key not in CHECKS]
    if unknown:
        raise SettingsError(f"{where}: unknown key {unknown[0]!r}; allowed is {ALLOWED_LIMIT}")
    return {
        key: None
        if key == "concurrency" and part is None
        else CHECKS[key](part, f"{where}[{key!r}]")
        for key, part in value.items()
    }


def parse_limits(
    settings: Mapping[str, Any], slots: Mapping[str, Any], default: Limit, setting: str
) -> LimitTable:
    """Build the table from `SEMAPHORE_LIMITS` and `DOWNLOAD_SLOTS`."""
    exact: dict[str, Limit | None] = {}
    patterns: dict[str, Limit | None] = {}
    for key, value in settings.items():
        where = f"{setting}[{key!r}]"
        name = parse_name(key, where)
        limit = parse_limit(value, where, default)
        if name.startswith("*."):
            patterns[name[2:]] = limit
        else:
            exact[name] = exact[normal_host(name)] = limit
    return LimitTable(default, exact, patterns, _parse_slots(slots, default))


def _parse_slots(slots: Mapping[str, Any], default: Limit) -> dict[str, Limit | None]:
    """`DOWNLOAD_SLOTS` is Scrapy's: its other keys and its old name for jitter are no mistakes."""
    parsed = {}
    for host, slot in slots.items():
        where = f"DOWNLOAD_SLOTS[{host!r}]"
        if not isinstance(host, str) or not isinstance(slot, Mapping):
            allowed = "a host, and a dict like {'concurrency': 2, 'delay': 0.5}"
            raise not_allowed(slot, where, allowed)
        jitter = slot.get("jitter", default.jitter)
        if "jitter" not in slot and "randomize_delay" in slot:
            jitter = 0.5 if slot["randomize_delay"] else 0.0
        known = {
            "concurrency": slot.get("concurrency", default.concurrency),
            "delay": slot.get("delay", default.delay),
            "jitter": jitter,
        }
        parsed[normal_host(host)] = parse_limit(known, where, default)
    return parsed
