"""What people read: times, names and limits in few characters, and nothing a terminal obeys."""

from __future__ import annotations

import re

from semaphore_middleware.model.inspection import Inspection
from semaphore_middleware.model.rules import LIMITLESS

NOTHING = "-"
UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def time_of(seconds: float) -> str:
    """50 ms, 0.3 s, 12 s, 3 min, 5 h, 4 d: below what it is by less than one of these."""
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
    """What somebody has set, as it was set: 0.25 s."""
    return f"{seconds:g} s"


def time_or_nothing(seconds: float | None) -> str:
    return time_of(seconds) if seconds else NOTHING


def clean(name: str) -> str:
    """A name is what anybody chose: what a terminal would obey is written out."""
    if name.isprintable():
        return name
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def without_letters(node: str) -> str:
    """A node's name as it was given, without the random letters that were added."""
    return re.sub(r"-[0-9a-f]{12}$", "", node)


def held_of(seen: Inspection) -> str:
    """4/4; 2/3 (8) where the limit adapts to the site, and may grow to 8."""
    return f"{len(seen.holders)}/{limit_of(seen)}"


def limit_of(seen: Inspection) -> str:
    if seen.limit is None:
        return NOTHING
    limit = limit_word(seen.limit)
    if seen.limit_max is not None and seen.limit_max > seen.limit:
        return f"{limit} ({limit_word(seen.limit_max)})"
    return limit


def limit_word(limit: int) -> str:
    return "∞" if limit >= LIMITLESS else str(limit)


def count(number: int, what: str) -> str:
    """1 permit, 2 permits."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
