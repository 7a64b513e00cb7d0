"""Short texts for times, names and limits, for terminals."""

from __future__ import annotations

import re
from collections.abc import Sequence

from semaphore_middleware.model.hosts import clean
from semaphore_middleware.model.inspection import Inspection
from semaphore_middleware.model.limits import LIMITLESS
from semaphore_middleware.model.rules import Rule

NOTHING = "-"
NAMES_MAX = 5  # that a line lists
UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def time_of(seconds: float) -> str:
    """Seconds as text: 50 ms, 0.3 s, 12 s, 3 min, 5 h, 4 d."""
    if seconds <= 0:
        return "0 s"
    if seconds < 0.0995:
        return f"{max(1, round(1000 * seconds))} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    for size, unit in UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def time_or_nothing(seconds: float | None) -> str:
    """As `time_of`, but - for None and 0."""
    return time_of(seconds) if seconds else NOTHING


def set_time(seconds: float | None) -> str:
    """A time from a setting, unrounded: 0.25 s; - for None."""
    return NOTHING if seconds is None else f"{seconds:g} s"


def count(number: int, what: str) -> str:
    """1 permit, 2 permits."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def names_of(names: Sequence[str]) -> str:
    """a, b, c; of many the first, and how many more there are."""
    more = len(names) - NAMES_MAX
    return ", ".join(map(clean, names[:NAMES_MAX])) + (f" and {more:,} more" if more > 0 else "")


def who(name: str | None) -> str:
    """Who has set something: a name as it was given, without the random letters added to it."""
    return clean(re.sub(r"-[0-9a-f]{12}$", "", name)) if name else NOTHING


def held_of(seen: Inspection) -> str:
    """4/4; 2/3 (8) where the limit adapts to the site, and may grow to 8."""
    most = f" ({limit_word(seen.limit_max)})" if seen.limit != seen.limit_max else ""
    return f"{seen.held}/{limit_word(seen.limit)}{most}"


def limit_word(limit: int | None) -> str:
    """4; ∞ where an operator has lifted it; - where nobody has set one."""
    return NOTHING if limit is None else "∞" if limit >= LIMITLESS else str(limit)


def rate_word(rate: str | None, burst: int | None) -> str:
    """60/m; 60/m (10) where up to ten may start at once; none where an operator has lifted it."""
    more = f" ({burst})" if burst is not None and burst > 1 else ""
    return (NOTHING if rate is None else rate) + more


def rule_words(rule: Rule | None) -> str:
    """How a rule reads: limit 4, adaptive, delay 0.5 s, jitter 0.5, rate 60/m, burst 3, paused."""
    if rule is None:
        return "nothing is set"
    parts = (
        (rule.concurrency, f"limit {limit_word(rule.concurrency)}"),
        (rule.adaptive, "adaptive" if rule.adaptive else "not adaptive"),
        (rule.delay, f"delay {set_time(rule.delay)}"),
        (rule.jitter, f"jitter {rule.jitter}"),
        (rule.rate, f"rate {rule.rate}"),
        (rule.burst, f"burst {rule.burst}"),
        (rule.paused, "paused" if rule.paused else "not paused"),
    )
    words = [text for value, text in parts if value is not None]
    return ", ".join(words) or "nothing is set"
