"""Pauses at a site's request: `Retry-After`, `RateLimit`, and its older forms.

A site's headers may hold anything: an invalid field counts as missing. No function here raises.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from http_sf import parse

if TYPE_CHECKING:
    from scrapy.http import Response

FIELD_BYTES_MAX = 8192  # of one field: a longer one counts as missing
DATE_CHARS_MAX = 64
OLDER_PREFIXES = ("RateLimit-", "X-RateLimit-", "X-Rate-Limit-")
FIELDS = frozenset(
    name.title().encode()
    for name in ("Retry-After", "RateLimit", *(f"{prefix}Reset" for prefix in OLDER_PREFIXES))
)
"""Names of the fields read here, as spelled in Scrapy's headers: most responses have none."""
UNIX_TIME_FROM = 1e9
"""An older form's reset from this number on is a Unix time (of 2001 or later), below it seconds."""
NUMBER = re.compile(rb"\d{1,15}(\.\d{1,9})?")


def retry_after(response: Response) -> float | None:
    """Seconds of pause in a response's `Retry-After` (RFC 9110, 10.2.3); None without a valid one.
    A date is compared with the response's `Date` if there is one, else with our clock. Of several
    pauses the longest counts.
    """
    values = response.headers.getlist(b"Retry-After")
    delays = [_delay(value.decode("latin-1").strip(), response) for value in values]
    return max((delay for delay in delays if delay is not None), default=None)


def quota_reset(response: Response) -> float | None:
    """Seconds until the reset of an exhausted quota in a response; None without one. Of several
    exhausted quotas the last reset counts.

    Quotas are in `RateLimit` (draft-ietf-httpapi-ratelimit-headers-10), or in `-Remaining` and
    `-Reset`. A response from a cache does not show the present quota.
    """
    if _number(response, "Age"):
        return None
    return max((*_resets(response), *_older_resets(response)), default=None)


def quota_gap(response: Response) -> float:
    """Seconds between requests by the quotas in `RateLimit-Policy`, the longest of several; 0: none
    is named. If `RateLimit` names exhausted quotas, no others count.
    """
    exhausted = {name for name, _ in _exhausted(response)}
    gaps = [0.0]
    for name, policy in _items(response, "RateLimit-Policy"):
        quota, window = _integer(policy.get("q")), _integer(policy.get("w"))
        is_of_requests = policy.get("qu", "requests") == "requests"
        if quota and window and is_of_requests and (not exhausted or name in exhausted):
            gaps.append(window / quota)
    return max(gaps)


def _delay(text: str, response: Response) -> float | None:
    if text.isascii() and text.isdigit():
        return float(text)
    date = _timestamp(text)
    return None if date is None else max(0.0, date - _now(response))


def _resets(response: Response) -> Iterator[float]:
    """The resets in `RateLimit`; where it lacks one, the window in `RateLimit-Policy`."""
    policies = dict(_items(response, "RateLimit-Policy"))
    for name, limit in _exhausted(response):
        policy = policies.get(name, {})
        reset = _integer(limit.get("t", policy.get("w")))
        if reset is not None and policy.get("qu") != "concurrent-requests":
            yield reset


def _exhausted(response: Response) -> Iterator[tuple[str, dict[str, Any]]]:
    """The quotas in `RateLimit` of which nothing is left, each with its parameters."""
    for name, limit in _items(response, "RateLimit"):
        if _integer(limit.get("r")) == 0:
            yield name, limit


def _items(response: Response, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The named items of a list field, each with its parameters (RFC 9651)."""
    field = _field(response, name)
    try:
        members: Any = parse(field, tltype="list") if field else []
    except ValueError:
        return
    for value, parameters in members:
        if not isinstance(value, list):
            yield str(value), parameters


def _older_resets(response: Response) -> Iterator[float]:
    for prefix in OLDER_PREFIXES:
        reset = _number(response, f"{prefix}Reset")
        if reset is not None and _number(response, f"{prefix}Remaining") == 0:
            is_time = reset >= UNIX_TIME_FROM
            yield max(0.0, reset - _now(response)) if is_time else reset


def _field(response: Response, name: str) -> bytes:
    """All lines of a field; nothing if it is too long."""
    field = b", ".join(response.headers.getlist(name))
    return field if len(field) <= FIELD_BYTES_MAX else b""


def _number(response: Response, name: str) -> float | None:
    field = _field(response, name).strip()
    return float(field) if NUMBER.fullmatch(field) else None


def _integer(value: object) -> int | None:
    """The parameter if it is an integer >= 0; None for anything else."""
    return value if type(value) is int and value >= 0 else None


def _now(response: Response) -> float:
    """The site's own time in `Date`, else our time."""
    date = _timestamp((response.headers.get(b"Date") or b"").decode("latin-1"))
    return time.time() if date is None else date


def _timestamp(date: str) -> float | None:
    if len(date) > DATE_CHARS_MAX:
        return None
    try:
        moment = parsedate_to_datetime(date)
        # All dates in HTTP are in UTC (RFC 9110, 5.6.7); asctime's form has no time zone.
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
