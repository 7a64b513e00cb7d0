"""Checks of users' numbers, truth values and choices, in settings, arguments and commands.

Each check takes the value and where it was set (`SEMAPHORE_LEASE`, `--port`). It returns the value
in its own type, or raises `SettingsError` with the value, its place and the allowed values. With
`text=True` a number or truth value may also be written as text, as on a command line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from functools import cache, partial
from types import MappingProxyType
from typing import Any, TypeVar

from semaphore_middleware.errors import SettingsError

T = TypeVar("T")

SHOWN_CHARS = 2000
ALLOWED_PREFIX = "a text of printable characters, not empty, without '{' and '}'"
LONGEST_S = 1e9
"""The longest time allowed anywhere, in seconds: Redis counts milliseconds in 64 bits."""
UNITS_S: Mapping[str, float] = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
"""The units of rates and periods, shortest first, in seconds."""


def check_number(
    value: Any,
    where: str,
    *,
    least: float = 0.0,
    most: float = LONGEST_S,
    allowed: str = "",
    text: bool = False,
) -> float:
    """A number from `least` to `most`."""
    number = _number(value, text)
    if number is None or not least <= number <= most:
        raise not_allowed(value, where, allowed or f"a number {_range(least, most)}")
    return float(number)


def check_timeout(value: Any, where: str) -> float | None:
    """Seconds, or None for no timeout."""
    allowed = f"None, or a number {_range(0.0, LONGEST_S)}"
    return None if value is None else check_number(value, where, allowed=allowed)


def check_priority(value: Any, where: str) -> float:
    """A finite number; the highest is served first."""
    return check_number(value, where, least=-1e300, most=1e300, allowed="a finite number")


def check_integer(
    value: Any,
    where: str,
    *,
    least: int,
    most: float = math.inf,
    allowed: str = "",
    text: bool = False,
) -> int:
    """An integer from `least` to `most`. Only with `text` may it be written as 2.0."""
    number = _number(value, text)
    is_integer = isinstance(number, int) or (text and number is not None and number % 1 == 0)
    if number is None or not is_integer or not least <= number <= most:
        raise not_allowed(value, where, allowed or f"an integer {_range(least, most)}")
    return int(number)


def check_truth(
    value: Any, where: str, *, allowed: str = "True or False", text: bool = False
) -> bool:
    """True or False. With `text` also 1, 0, and these four as text, in upper or lower case."""
    if text:
        value_of = {"true": True, "1": True, "false": False, "0": False}
        truth = value_of.get(str(value).strip().lower())
    else:
        truth = value if isinstance(value, bool) else None
    if truth is None:
        raise not_allowed(value, where, allowed)
    return truth


def check_period(
    value: Any, where: str, *, allowed: str, most: float = LONGEST_S, needs_unit: bool = False
) -> float:
    """The seconds of a period like '7d', at most `most`. Without a unit, a number is of seconds, or
    refused unless it is 0.
    """
    text = str(value).strip()
    unit = text[-1:] if text[-1:] in UNITS_S else ""
    number = _number(text.removesuffix(unit), text=True)
    if number is None or (number and needs_unit and not unit):
        raise not_allowed(value, where, allowed)
    seconds = number * UNITS_S.get(unit, 1.0)
    if not 0 <= seconds <= most:
        raise not_allowed(value, where, allowed)
    return seconds


parse_period = partial(
    check_period,
    most=366 * UNITS_S["d"],
    allowed="'0', or a number of s, m, h or d, like '7d', of at most 366 days",
    needs_unit=True,
)
"""The seconds of a history's period. Raises `SettingsError`."""


def check_choice(value: Any, where: str, choices: Collection[str], *, allowed: str = "") -> str:
    """One of a few texts."""
    if not isinstance(value, str) or value not in choices:
        raise not_allowed(value, where, allowed or " or ".join(map(repr, choices)))
    return value


def check_prefix(prefix: Any, where: str) -> str:
    """The first part of every key: braces would move a scope's keys to different slots."""
    if not isinstance(prefix, str) or not prefix or re.search("[{}]", prefix):
        raise not_allowed(prefix, where, ALLOWED_PREFIX)
    return check_printable(prefix, where, ALLOWED_PREFIX)


def check_printable(text: Any, where: str, allowed: str = "", most: int = 0) -> str:
    """A name for keys and logs, without line breaks: they would forge log lines. It has at most
    `most` characters; 0: any number.
    """
    if not isinstance(text, str) or not text.isprintable() or (most and len(text) > most):
        length = f"at most {most} " if most else ""
        raise not_allowed(text, where, allowed or f"a text of {length}printable characters")
    return text


def not_allowed(
    value: Any, where: str, allowed: str, *, may_be_secret: bool = False
) -> SettingsError:
    """The error for an invalid value. A command's option is shown as typed."""
    text = hidden(value) if may_be_secret else shown(value)
    what = f"{where} {value}" if where.startswith("--") else f"{where} = {text}"
    return SettingsError(f"{what}: allowed is {allowed}")


def hidden(value: object) -> str:
    """A value that may hold a password, for a message: its type alone."""
    return f"<{type(value).__name__}, not shown>"


def shown(value: object) -> str:
    """A user's value or error for a message, whatever its `repr` does."""
    try:
        text = repr(value)
    except (Exception, SystemExit):
        return f"<{type(value).__name__}, which cannot be shown>"
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."


def checked(check: Callable[[Any, str], T], value: Any, where: str) -> T:
    """The value as a check returns it. An error of the value's own methods is one, too."""
    try:
        return check(value, where)
    except SettingsError:
        raise
    except Exception as error:
        raise SettingsError(f"{where} = {shown(value)} raised {shown(error)}") from error


def did_you_mean(
    name: str,
    known: Iterable[str],
    prefix: str = "",
    meant: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """A hint at the known name closest to a misspelt one; empty if none is close. A common `prefix`
    does not count as likeness. `meant` has other names that people try, with what they mean.
    """
    if name in meant:
        return f"; did you mean {meant[name]}?"
    ends = [candidate.removeprefix(prefix) for candidate in (*known, *meant)]
    alike = get_close_matches(name.removeprefix(prefix), ends, 1, cutoff=0.7)
    found = prefix + alike[0] if alike else ""
    return f"; did you mean {meant.get(found, found)}?" if found else ""


def _number(value: Any, text: bool) -> float | None:
    """The value as a number; None if it is not a number."""
    if text and isinstance(value, str):
        for read in (int, float):
            try:
                return read(value)
            except ValueError:
                pass
        return None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


@cache
def _range(least: float, most: float) -> str:
    text = f">= {least:g}" + (f" and <= {most:g}" if most < math.inf else "")
    return text.replace("e+0", "e")
