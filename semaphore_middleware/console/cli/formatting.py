"""Short texts for times, names and limits, for terminals."""

from __future__ import annotations

import re

from semaphore_middleware.console.snapshot import RuleRow, ScopeRow

NOTHING = "-"
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


def set_time(seconds: float) -> str:
    """A time from a setting, unrounded: 0.25 s."""
    return f"{seconds:g} s"


def time_or_nothing(seconds: float | None) -> str:
    """As `time_of`, but - for None and 0."""
    return time_of(seconds) if seconds else NOTHING


def without_letters(node: str) -> str:
    """A node's name as it was given, without the random letters added to it."""
    return re.sub(r"-[0-9a-f]{12}$", "", node)


def held_of(row: ScopeRow) -> str:
    """4/4; 2/3 (8) where the limit adapts to the site, and may grow to 8."""
    limit = limit_word(row.limit, row.unlimited)
    if row.limit is not None and row.limit != row.limit_max:
        limit += f" ({limit_word(row.limit_max, row.limit_max is None)})"
    return f"{row.held}/{limit}"


def limit_word(limit: int | None, unlimited: bool) -> str:
    """4; ∞ where an operator has lifted it; - where nobody has set one."""
    return "∞" if unlimited else NOTHING if limit is None else str(limit)


def rate_word(rate: str | None, burst: int | None) -> str:
    """60/m; 60/m (10) where up to ten may start at once; none where an operator has lifted it."""
    more = f" ({burst})" if burst is not None and burst > 1 else ""
    return (NOTHING if rate is None else rate) + more


def rule_words(row: RuleRow | None) -> str:
    """How a rule reads: limit 4, adaptive, delay 0.5 s, jitter 0.5, rate 60/m, burst 3, paused."""
    words: list[str] = []
    if row is not None:
        if row.limit is not None or row.unlimited:
            words.append(f"limit {limit_word(row.limit, row.unlimited)}")
        if row.adaptive is not None:
            words.append("adaptive" if row.adaptive else "not adaptive")
        if row.delay is not None:
            words.append(f"delay {set_time(row.delay)}")
        if row.jitter is not None:
            words.append(f"jitter {row.jitter:g}")
        if row.rate is not None:
            words.append(f"rate {row.rate}")
        if row.burst is not None:
            words.append(f"burst {row.burst}")
        if row.paused is not None:
            words.append("paused" if row.paused else "not paused")
    return ", ".join(words) or "nothing is set"


def count(number: int, what: str) -> str:
    """1 permit, 2 permits."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
