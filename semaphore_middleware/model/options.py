"""The checked options of a node, which a session, its store and `FairSemaphore` share."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import partial
from pkgutil import resolve_name
from typing import Any, TypedDict

from semaphore_middleware.errors import SettingsError
from semaphore_middleware.link.environment import LONGEST_NODE, unusable_of_scrapy_redis
from semaphore_middleware.link.lease import LONGEST_LEASE_S
from semaphore_middleware.model.feedback import Backoff
from semaphore_middleware.model.validation import (
    check_number,
    check_prefix,
    check_printable,
    check_timeout,
    hidden,
    not_allowed,
    shown,
)

DEFAULT_PREFIX = "semaphore"
LONGEST_JOB = 100  # characters


def prefix_named(prefix: str) -> str:
    """The prefix of all keys, as text to follow the server's address; empty for the default."""
    return "" if prefix == DEFAULT_PREFIX else f", prefix {prefix!r}"


def unusable_server(settings: Mapping[str, Any]) -> SettingsError | None:
    """The error for a value in scrapy-redis' settings that names no server; None without one."""
    if (unusable := unusable_of_scrapy_redis(settings)) is None:
        return None
    name, allowed = unusable
    value = settings[name]
    may_be_secret = name == "REDIS_PARAMS" or "@" in shown(value)
    return not_allowed(value, name, allowed, may_be_secret=may_be_secret)


def check_job(job: Any, where: str) -> str:
    """The checked name of a job, possibly empty. Raises `SettingsError`."""
    return check_printable(job, where, most=LONGEST_JOB)


def check_node(node: Any, where: str) -> str:
    """The checked name of a node. Raises `SettingsError`."""
    return check_printable(node, where, most=LONGEST_NODE)


def _row(default: Any, check: Callable[[Any, str], Any]) -> Any:
    return field(default=default, metadata={"check": check})


def _check_backoff(value: Any, where: str) -> Backoff:
    if not isinstance(value, Backoff):
        raise not_allowed(value, where, "a Backoff")
    return value


def check_credentials(value: Any, where: str) -> Callable[[], object] | None:
    """A user's function, given itself or by its path. The `SettingsError` it raises shows neither
    the value nor the text of an import's error: a password may have been given instead.
    """
    allowed = "a function that returns a password or a pair of user name and password, or its path"
    function: Callable[[], object] | None = value
    if isinstance(value, str):
        try:
            function = resolve_name(value)
        except Exception as error:
            raise SettingsError(
                f"{where} = {hidden(value)}: {type(error).__name__}; allowed is {allowed}"
            ) from None
    if function is not None and not callable(function):
        raise not_allowed(value, where, allowed, may_be_secret=True)
    return function


def check_redis_options(value: Any, where: str) -> Mapping[str, Any] | None:
    """Options by name, given as a dict or as JSON. Raises `SettingsError`."""
    options = value
    if value is None:
        return None
    if isinstance(value, str):  # from the command line
        with suppress(ValueError):
            options = json.loads(value or "{}")
    if not isinstance(options, Mapping):
        allowed = "a dict of options of TLS, on the command line as JSON"
        raise not_allowed(value, where, allowed, may_be_secret=True)  # `ssl_password` is one
    return options


LOOPBACK = "127.0.0.1"
ADDRESS = re.compile(r"(?:(\[[0-9a-f:.]+\]|[^\s:[\]]+):)?(\d{1,5})", re.IGNORECASE)


def check_address(value: Any, where: str) -> str | None:
    """An address and a port to listen on, like "127.0.0.1:9410"; a port alone is one of 127.0.0.1.
    Raises `SettingsError`.
    """
    if value is None:
        return None
    found = ADDRESS.fullmatch(str(value)) if isinstance(value, str | int) else None
    with suppress(UnicodeError):
        if found and int(found[2]) <= 65535:
            host = found[1] or LOOPBACK
            host.encode("idna")  # as it is looked up
            return f"{host}:{found[2]}"
    allowed = f"an address and a port like '{LOOPBACK}:9410', a port of {LOOPBACK}, or None"
    raise not_allowed(value, where, allowed)


# Each option is also a setting with the same default and check, except for those in `NOT_SETTINGS`
# and `_ROWS` of settings.py.
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """The options of a node, a row each: type, default, check and meaning. Times are in seconds.

    Raises `SettingsError` for an invalid value.
    """

    lease: float = _row(15.0, partial(check_number, least=0.001, most=LONGEST_LEASE_S))
    """Time until a dead node's permits are free; a day at most. Should be the same on all nodes."""
    recovery_wait: float | None = _row(None, check_timeout)
    """Time without grants after the server has lost its data; None: the lease. Should be the same
    on all nodes."""
    reuse_window: float = _row(0.1, check_number)
    """Time for which a permit may serve further requests; 0: it serves one only."""
    prefix: str = _row(DEFAULT_PREFIX, check_prefix)
    """The first part of every key."""
    job: str = _row("", check_job)
    """The job of this node: its permits count in the job's share. Waiting jobs share a scope's
    permits equally, and the nodes of each share its own. All nodes without a job count as one."""
    backoff: Backoff = _row(Backoff(), _check_backoff)  # noqa: RUF009 - it is frozen
    """Pauses after refusals without Retry-After, and the time until a site counts as down (see
    `Permit.refused` and `Permit.failed`)."""
    credentials: Callable[[], object] | None = _row(None, check_credentials)  # noqa: RUF009
    """Called for each connection: returns the password, or the user name and the password. None:
    those in the URL are used."""
    redis_options: Mapping[str, Any] | None = _row(None, check_redis_options)
    """Options of TLS, added to those in the URL."""
    explain_waits: float = _row(60.0, check_number)
    """Time after which the log explains a wait for a permit; 0: it never does."""
    history: float = _row(604800.0, check_number)
    """Time for which the server keeps the history of each site; 0: there is none."""
    metrics: str | int | None = _row(None, check_address)
    """Address and port of this node's metrics for Prometheus, or a port (0: any free one) of
    127.0.0.1; None: not served."""

    def __post_init__(self) -> None:
        for row in fields(NodeOptions):
            value = row.metadata["check"](getattr(self, row.name), row.name)
            object.__setattr__(self, row.name, value)


class GivenOptions(TypedDict, total=False):
    """The options as keyword arguments of a `FairSemaphore`, for type checkers."""

    lease: float
    recovery_wait: float | None
    reuse_window: float
    prefix: str
    job: str
    backoff: Backoff
    credentials: Callable[[], object] | None
    redis_options: Mapping[str, Any] | None
    explain_waits: float
    history: float
    metrics: str | int | None
