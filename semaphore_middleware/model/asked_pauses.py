"""Pauses that a site requests by `Retry-After`, `RateLimit`, and its older forms.

A site's headers may hold anything: an invalid field counts as missing. A field that should name a
time, but names no credible one, is added to the list `ignored`. No function here raises an error.
Crawls and the clients of `clients/` use the same ones.
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import chain
from typing import Any

from http_sf import parse

logger = logging.getLogger(__name__)

Fields = Callable[[str], Sequence[str]]
"""From the name of a header field to its lines in a response; empty without one."""
FIELD_CHARS_MAX = 8192  # of one field: a longer one counts as missing
DATE_CHARS_MAX = 64
OLDER_PREFIXES = ("RateLimit-", "X-RateLimit-", "X-Rate-Limit-")
RESETS = ("Reset-After", "Reset")
"""Ends of the older fields' names; first the one whose value needs no clock."""
FIELDS = frozenset(
    name.title().encode()
    for name in (
        *("Retry-After", "RateLimit"),
        *(f"{prefix}{reset}" for prefix in OLDER_PREFIXES for reset in RESETS),
    )
)
"""Names of the fields read here, as Scrapy spells them. Most responses have none of them."""
NUMBER = re.compile(r"[0-9]{1,30}(\.[0-9]{1,9})?")
UNIX_TIMES = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3), (1e9, 1.0))
"""The least numbers read as Unix times, with their parts of a second: nanoseconds, microseconds,
milliseconds, seconds. Smaller numbers are seconds from now.
"""
DAY_S, YEAR_S = 24 * 60 * 60.0, 365 * 24 * 60 * 60.0
HOSTS_MAX = 10_000
"""The number of hosts that are remembered after a warning."""


class IgnoredPauses:
    """Warns once a host that it asks for a pause which is ignored."""

    def __init__(self) -> None:
        self._hosts: dict[str, None] = {}

    def warn(self, host: str, ignored: list[str]) -> None:
        """Warn of the ignored fields of a response of this host, if there are any."""
        if not ignored or host in self._hosts:
            return
        if len(self._hosts) == HOSTS_MAX:
            del self._hosts[next(iter(self._hosts))]
        self._hosts[host] = None
        logger.warning(
            "%s asks for a pause that is ignored, as it is no number of seconds or time from a day "
            "ago to a year ahead: %r.",
            host,
            ", ".join(ignored),
        )


def pause_asked(fields: Fields, is_refused: bool, ignored: list[str]) -> float | None:
    """Seconds of pause that a site asks for; None if it does not. `Retry-After` counts at a
    refusal, and in place of the reset of an exhausted quota.
    """
    pause = quota_reset(fields, ignored)
    if is_refused or pause is not None:
        asked = retry_after(fields, ignored)
        pause = pause if asked is None else asked
    return pause


def retry_after(fields: Fields, ignored: list[str]) -> float | None:
    """Seconds of pause in a response's `Retry-After` (RFC 9110, 10.2.3): the longest of several;
    None without a valid one.
    """
    values = fields("Retry-After")
    delays = (_seconds(fields, "Retry-After", value, ignored) for value in values)
    return max((delay for delay in delays if delay is not None), default=None)


def quota_reset(fields: Fields, ignored: list[str]) -> float | None:
    """Seconds until all exhausted quotas in a response have been reset; None if there are none.

    Quotas are in `RateLimit` (draft-ietf-httpapi-ratelimit-headers-10, or -07), or in `-Remaining`
    and `-Reset`. A response from a cache does not show the present quota.
    """
    if _number(fields, "Age"):
        return None
    resets = chain(_resets(fields, ignored), _older_resets(fields, ignored))
    return max((reset for reset in resets if reset is not None), default=None)


def quota_interval(fields: Fields, ignored: list[str]) -> float:
    """Seconds between requests by the quotas in `RateLimit-Policy`: the longest of several; 0
    without a quota. If `RateLimit` names exhausted quotas, only those count.
    """
    exhausted = {name for name, _ in _exhausted(fields)}
    intervals = [0.0]
    for name, policy in _policies(fields):
        quota, window = _integer(policy.get("q")), _integer(policy.get("w"))
        is_of_requests = policy.get("qu", "requests") == "requests"
        if quota and window and is_of_requests and (not exhausted or name in exhausted):
            seconds = _seconds(fields, "RateLimit-Policy", str(window), ignored)
            intervals.append((seconds or 0.0) / quota)
    return max(intervals)


def _seconds(fields: Fields, field: str, value: str, ignored: list[str]) -> float | None:
    """Seconds until a time that a site has written as a number or a date, by the response's `Date`
    or, without one, our clock. None unless the time is from a day ago to a year ahead.
    """
    text = value.strip()
    if NUMBER.fullmatch(text):
        seconds = float(text)
        for least, parts in UNIX_TIMES:
            if seconds >= least:
                seconds = seconds / parts - _now(fields)
                break
    else:
        moment = _timestamp(text)
        seconds = math.inf if moment is None else moment - _now(fields)
    if -DAY_S <= seconds <= YEAR_S:
        return max(0.0, seconds)
    ignored.append(f"{field}: {text[:DATE_CHARS_MAX]}")
    return None


def _resets(fields: Fields, ignored: list[str]) -> Iterator[float | None]:
    """The resets in `RateLimit`; where it lacks one, the window in `RateLimit-Policy`."""
    policies = dict(_policies(fields))
    for name, limit in _exhausted(fields):
        policy = policies.get(name, {})
        reset = _integer(limit.get("t", policy.get("w")))
        if reset is not None and policy.get("qu") != "concurrent-requests":
            yield _seconds(fields, "RateLimit", str(reset), ignored)


def _exhausted(fields: Fields) -> Iterator[tuple[str, dict[str, Any]]]:
    """The exhausted quotas in `RateLimit`, each with its parameters."""
    for name, limit in _items(fields, "RateLimit") or _draft_7(fields):
        if _integer(limit.get("r")) == 0:
            yield str(name), limit


def _draft_7(fields: Fields) -> list[tuple[Any, dict[str, Any]]]:
    """The quota in `RateLimit: limit=10, remaining=0, reset=5`, in the form of later drafts."""
    members = dict(_parsed(fields, "RateLimit", "dictionary"))
    quota = {name: value for name, (value, _) in members.items()}
    reset = {"t": quota["reset"]} if "reset" in quota else {}
    return [(quota.get("limit"), {"r": quota.get("remaining"), **reset})]


def _policies(fields: Fields) -> Iterator[tuple[str, dict[str, Any]]]:
    """The policies in `RateLimit-Policy`, by name. In draft 7 a name is the number of requests."""
    for name, policy in _items(fields, "RateLimit-Policy"):
        yield str(name), {"q": name, **policy}


def _items(fields: Fields, name: str) -> list[tuple[Any, dict[str, Any]]]:
    """The items of a list field, each with its parameters."""
    return [item for item in _parsed(fields, name, "list") if not isinstance(item[0], list)]


def _parsed(fields: Fields, name: str, structure: str) -> Any:
    """A structured field (RFC 9651); empty if it is invalid."""
    field = _field(fields, name)
    try:
        return parse(field.encode(), tltype=structure) if field else ()
    except ValueError:
        return ()


def _older_resets(fields: Fields, ignored: list[str]) -> Iterator[float | None]:
    for prefix in OLDER_PREFIXES:
        if _number(fields, f"{prefix}Remaining") != 0:
            continue
        for reset in RESETS:
            if field := _field(fields, f"{prefix}{reset}"):
                yield _seconds(fields, f"{prefix}{reset}", field, ignored)
                break


def _field(fields: Fields, name: str) -> str:
    """All lines of a field, joined; empty if they are too long."""
    field = ", ".join(fields(name))
    return field if len(field) <= FIELD_CHARS_MAX else ""


def _number(fields: Fields, name: str) -> float | None:
    field = _field(fields, name).strip()
    return float(field) if NUMBER.fullmatch(field) else None


def _integer(value: object) -> int | None:
    """The parameter if it is an integer >= 0; None for anything else."""
    return value if type(value) is int and value >= 0 else None


def _now(fields: Fields) -> float:
    """The site's time in `Date`, or without it our time."""
    date = _timestamp("".join(fields("Date")[-1:]))
    return time.time() if date is None else date


def _timestamp(date: str) -> float | None:
    """The Unix time of a date, as HTTP or ISO 8601 writes it."""
    if len(date) > DATE_CHARS_MAX:
        return None
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        with suppress(TypeError, ValueError, OverflowError):
            moment = read(date.removesuffix(" UTC"))
            # All dates in HTTP are in UTC (RFC 9110, 5.6.7); asctime's form has no time zone.
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return None
