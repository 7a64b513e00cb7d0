"""Short texts for times, names and limits, for terminals."""

from __future__ import annotations

import re
from collections.abc import Sequence

from semaphore_middleware.link.text import digits, time_of
from semaphore_middleware.model.hosts import clean
from semaphore_middleware.model.inspection import Inspection
from semaphore_middleware.model.limits import PARTS, limit_word
from semaphore_middleware.model.rules import Rule

NOTHING = "-"
NAMES_MAX = 5  # names in a line


def time_or_nothing(seconds: float | None) -> str:
    """`time_of`, or - for None and 0."""
    return time_of(seconds) if seconds else NOTHING


def delay_word(seconds: float | None, jitter: float | None) -> str:
    """A delay, unrounded: 0.25 s; 1.5 s ±50 % if it varies; - for None."""
    more = f" ±{digits(100 * jitter)} %" if seconds and jitter else ""
    return NOTHING if seconds is None else f"{seconds:g} s{more}"


def count(number: int, what: str) -> str:
    """A number of things: 1 permit, 2 permits."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def names_of(names: Sequence[str]) -> str:
    """a, b, c; of many names the first, and how many more there are."""
    more = len(names) - NAMES_MAX
    return ", ".join(map(clean, names[:NAMES_MAX])) + (f" and {more:,} more" if more > 0 else "")


def short_name(name: str | None) -> str:
    """The name of a node or an operator, without the random letters added to it."""
    return clean(re.sub(r"-[0-9a-f]{12}$", "", name)) if name else NOTHING


def state_of(seen: Inspection) -> str:
    """A scope's state, with the time left if it is known: open; backoff, 30 s."""
    return seen.state if seen.wait is None else f"{seen.state}, {time_of(seen.wait)}"


def held_of(seen: Inspection) -> str:
    """Permits held, of the limit: 4/4; 2/3 (8) if the limit is adaptive, and may grow to 8."""
    most = f" ({limit_word(seen.limit_max)})" if seen.limit != seen.limit_max else ""
    return f"{seen.held}/{limit_word(seen.limit)}{most}"


def rate_word(rate: str | None, burst: int | None) -> str:
    """60/m; 60/m (10) if up to ten may start at once; none if an operator has lifted the rate."""
    more = f" ({burst})" if burst is not None and burst > 1 else ""
    return (NOTHING if rate is None else rate) + more


def rule_words(rule: Rule | None) -> str:
    """A rule in words: limit 4, delay 0.5 s, jitter 0.5, adaptive, rate 60/m, burst 3, paused."""
    if rule is None:
        return "nothing is set"
    words = [part.word(rule.limit[part.name]) for part in PARTS if part.name in rule.limit]
    if rule.paused is not None:
        words.append("paused" if rule.paused else "not paused")
    return ", ".join(words) or "nothing is set"
