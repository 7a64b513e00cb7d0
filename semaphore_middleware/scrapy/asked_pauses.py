"""Pauses that a site requests by `Retry-After`, `RateLimit`, and its older forms.

A site's headers may hold anything: an invalid field counts as missing. A field that should name a
time, but names no credible one, is added to the list `ignored`. No function here raises an error.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

from http_sf import parse

if TYPE_CHECKING:
    from scrapy.http import Response

FIELD_BYTES_MAX = 8192  # of one field: a longer one counts as missing
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


def retry_after(response: Response, ignored: list[str]) -> float | None:
    """Seconds of pause in a response's `Retry-After` (RFC 9110, 10.2.3): the longest of several;
    None without a valid one.
    """
    values = [value.decode("latin-1") for value in response.headers.getlist(b"Retry-After")]
    delays = (_seconds(response, "Retry-After", value, ignored) for value in values)
    return max((delay for delay in delays if delay is not None), default=None)


def quota_reset(response: Response, ignored: list[str]) -> float | None:
    """Seconds until all exhausted quotas in a response have been reset; None if there are none.

    Quotas are in `RateLimit` (draft-ietf-httpapi-ratelimit-headers-10, or -07), or in `-Remaining`
    and `-Reset`. A response from a cache does not show the present quota.
    """
    if _number(response, "Age"):
        return None
    resets = chain(_resets(response, ignored), _older_resets(response, ignored))
    return max((reset for reset in resets if reset is not None), default=None)


def quota_interval(response: Response, ignored: list[str]) -> float:
    """Seconds between requests by the quotas in `RateLimit-Policy`: the longest of several; 0
    without a quota. If `RateLimit` names exhausted quotas, only those count.
    """
    exhausted = {name for name, _ in _exhausted(response)}
    intervals = [0.0]
    for name, policy in _policies(response):
        quota, window = _integer(policy.get("q")), _integer(policy.get("w"))
        is_of_requests = policy.get("qu", "requests") == "requests"
        if quota and window and is_of_requests and (not exhausted or name in exhausted):
            seconds = _seconds(response, "RateLimit-Policy", str(window), ignored)
            intervals.append((seconds or 0.0) / quota)
    return max(intervals)


def _seconds(response: Response, field: str, value: str, ignored: list[str]) -> float | None:
    """Seconds until a time that a site has written as a number or a date, by the response's `Date`
    or, without one, our clock. None unless the time is from a day ago to a year ahead.
    """
    text = value.strip()
    if NUMBER.fullmatch(text):
        seconds = float(text)
        for least, parts in UNIX_TIMES:
            if seconds >= least:
                seconds = seconds / parts - _now(response)
                break
    else:
        moment = _timestamp(text)
        seconds = math.inf if moment is None else moment - _now(response)
    if -DAY_S <= seconds <= YEAR_S:
        return max(0.0, seconds)
    ignored.append(f"{field}: {text[:DATE_CHARS_MAX]}")
    return None


def _resets(response: Response, ignored: list[str]) -> Iterator[float | None]:
    """The resets in `RateLimit`; where it lacks one, the window in `RateLimit-Policy`."""
    policies = dict(_policies(response))
    for name, limit in _exhausted(response):
        policy = policies.get(name, {})
        reset = _integer(limit.get("t", policy.get("w")))
        if reset is not None and policy.get("qu") != "concurrent-requests":
            yield _seconds(response, "RateLimit", str(reset), ignored)


def _exhausted(response: Response) -> Iterator[tuple[str, dict[str, Any]]]:
    """The exhausted quotas in `RateLimit`, each with its parameters."""
    for name, limit in _items(response, "RateLimit") or _draft_7(response):
        if _integer(limit.get("r")) == 0:
            yield str(name), limit


def _draft_7(response: Response) -> list[tuple[Any, dict[str, Any]]]:
    """The quota in `RateLimit: limit=10, remaining=0, reset=5`, in the form of later drafts."""
    members = dict(_parsed(response, "RateLimit", "dictionary"))
    quota = {name: value for name, (value, _) in members.items()}
    reset = {"t": quota["reset"]} if "reset" in quota else {}
    return [(quota.get("limit"), {"r": quota.get("remaining"), **reset})]


def _policies(response: Response) -> Iterator[tuple[str, dict[str, Any]]]:
    """The policies in `RateLimit-Policy`, by name. In draft 7 a name is the number of requests."""
    for name, policy in _items(response, "RateLimit-Policy"):
        yield str(name), {"q": name, **policy}


def _items(response: Response, name: str) -> list[tuple[Any, dict[str, Any]]]:
    """The items of a list field, each with its parameters."""
    return [item for item in _parsed(response, name, "list") if not isinstance(item[0], list)]


def _parsed(response: Response, name: str, structure: str) -> Any:
    """A structured field (RFC 9651); empty if it is invalid."""
    field = _field(response, name)
    try:
        return parse(field, tltype=structure) if field else ()
    except ValueError:
        return ()


def _older_resets(response: Response, ignored: list[str]) -> Iterator[float | None]:
    for prefix in OLDER_PREFIXES:
        if _number(response, f"{prefix}Remaining") != 0:
            continue
        for reset in RESETS:
            if field := _field(response, f"{prefix}{reset}"):
                yield _seconds(response, f"{prefix}{reset}", field.decode("latin-1"), ignored)
                break


def _field(response: Response, name: str) -> bytes:
    """All lines of a field, joined; empty if they are too long."""
    field = b", ".join(response.headers.getlist(name))
    return field if len(field) <= FIELD_BYTES_MAX else b""


def _number(response: Response, name: str) -> float | None:
    field = _field(response, name).decode("latin-1").strip()
    return float(field) if NUMBER.fullmatch(field) else None


def _integer(value: object) -> int | None:
    """The parameter if it is an integer >= 0; None for anything else."""
    return value if type(value) is int and value >= 0 else None


def _now(response: Response) -> float:
    """The site's time in `Date`, or without it our time."""
    date = _timestamp((response.headers.get(b"Date") or b"").decode("latin-1"))
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
