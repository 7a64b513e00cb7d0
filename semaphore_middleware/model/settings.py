"""The table of the `SEMAPHORE_*` settings, and the checks of their values."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import partial
from inspect import iscoroutinefunction
from pkgutil import resolve_name
from typing import Any, TypeAlias, cast

from semaphore_middleware.errors import SettingsError
from semaphore_middleware.link.lease import LONGEST_LEASE_S
from semaphore_middleware.model.feedback import MAX_STATUS
from semaphore_middleware.model.hosts import KINDS
from semaphore_middleware.model.limits import BY_NAME
from semaphore_middleware.model.options import (
    NodeOptions,
    check_address,
    check_credentials,
    check_job,
    check_node,
)
from semaphore_middleware.model.validation import (
    check_choice,
    check_integer,
    check_number,
    check_truth,
    checked,
    did_you_mean,
    not_allowed,
    parse_period,
    shown,
)

Function: TypeAlias = Callable[[Any], Any]
"""A user's own function, of a request or of a response."""


@dataclass(frozen=True, slots=True)
class Derived:
    """A default computed when a crawl reads the setting."""

    text: str
    """The default as docs/settings.md shows it."""
    value: Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table: a setting, its default, and the check of its value."""

    name: str
    default: Any
    check: Callable[..., Any]
    """From a value and the setting's name to the checked value. Raises `SettingsError`."""
    unset: tuple[Any, ...] = (None,)
    """Values read as the default."""
    bounds: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda _: {}
    """Arguments of the check derived from other settings."""

    def read(self, settings: Mapping[str, Any]) -> Any:
        """The checked value. Raises `SettingsError` with the name of the setting."""
        return checked(partial(self._read, settings), settings.get(self.name), self.name)

    def _read(self, settings: Mapping[str, Any], value: Any, name: str) -> Any:
        if value in self.unset:
            value = self.default
        if isinstance(value, Derived):
            value = value.value(settings)
        if value is None:
            return None
        return self.check(value, name, **self.bounds(settings))


ALLOWED_SCOPES = (
    f"a list of any of {', '.join(map(repr, KINDS))}, and of functions (or their paths) that take "
    "a request and return None, a name, or several"
)
EMPTY = (None, "")
"""For settings often taken from environment variables: an empty one stands for the default."""


# Checks ------------------------------------------------------------------------------------------


_truth = partial(check_truth, text=True)
_seconds = partial(check_number, text=True)
_count = partial(check_integer, least=0, text=True)
_unreachable = partial(check_choice, choices=("disallow", "allow"))


def _text(value: Any, where: str, may_be_secret: bool = False) -> str:
    if not isinstance(value, str | int):
        raise not_allowed(value, where, "a text", may_be_secret=may_be_secret)
    return str(value)


def _node(value: Any, where: str) -> str:
    return check_node(str(value) if isinstance(value, int) else value, where)


def _scopes(value: Any, where: str) -> tuple[str | Function, ...]:
    given = value.split(",") if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not given:
        raise not_allowed(value, where, ALLOWED_SCOPES)
    kinds = tuple(_scope_kind(kind, where) for kind in given)
    if None in kinds:
        raise not_allowed(value, where, ALLOWED_SCOPES)
    return cast("tuple[str | Function, ...]", kinds)


def _scope_kind(given: Any, where: str) -> str | Function | None:
    """A kind of scopes, or a function, given itself or by its path; None for anything else."""
    found = given.strip() if isinstance(given, str) else given
    if found in KINDS:
        return str(found)
    if isinstance(found, str) and "." in found:
        try:
            found = resolve_name(found)
        except Exception as error:
            raise SettingsError(f"{where}: {given!r} cannot be loaded: {shown(error)}") from error
    return cast("Function", found) if callable(found) and not iscoroutinefunction(found) else None


def check_statuses(value: Any, where: str) -> frozenset[int]:
    """The checked statuses of refusals. Raises `SettingsError`."""
    try:
        given = value
        if isinstance(value, str):  # from the command line
            given = json.loads(value) if value.startswith("[") else value.split(",")
        return frozenset(
            check_integer(status, where, least=100, most=MAX_STATUS, text=True) for status in given
        )
    except (TypeError, ValueError):
        allowed = "a list of HTTP statuses, like [429, 503], or []"
        raise not_allowed(value, where, allowed) from None


def _function_of_response(value: Any, where: str) -> Function:
    allowed = "a function from a response to True, False or seconds, or the path of one"
    try:
        function = resolve_name(value) if isinstance(value, str) else value
    except Exception as error:
        raise SettingsError(f"{where} = {shown(value)}: {error}; allowed is {allowed}") from None
    if not callable(function) or iscoroutinefunction(function):
        raise not_allowed(value, where, allowed)
    return cast("Function", function)


def check_dict(value: Any, where: str) -> Mapping[str, Any]:
    """A dict of limits, on the command line as JSON. Raises `SettingsError`."""
    parsed = value or {}
    if isinstance(parsed, str):  # from the command line
        try:
            parsed = json.loads(parsed)
        except ValueError:
            parsed = None
    if not isinstance(parsed, Mapping):
        allowed = (
            "a dict of hosts to limits, on the command line as JSON, like '{\"example.com\": 2}'"
        )
        raise not_allowed(value, where, allowed)
    return parsed


# The table ---------------------------------------------------------------------------------------


def value_of(name: str, settings: Mapping[str, Any]) -> Any:
    """The checked value of one of our settings. Raises `SettingsError`."""
    return SETTINGS[name].read(settings)


def _backoff_bounds(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"least": value_of("SEMAPHORE_BACKOFF_START", settings)}


LEASE = Derived("the lease", lambda settings: value_of("SEMAPHORE_LEASE", settings))
SPIDER = Derived("the spider's name", lambda _: "")
SPIDER_AND_JOB = Derived("the spider and the job", lambda _: "")
BACKOFF_MAX = Derived("`300.0`", lambda s: max(300.0, value_of("SEMAPHORE_BACKOFF_START", s)))
START_TIMEOUT = Derived(
    "`None`; `5` in `scrapy check`", lambda _: 5.0 if "SCRAPY_CHECK" in os.environ else None
)

CREDENTIALS = "SEMAPHORE_REDIS_CREDENTIALS"
_ROWS = (
    Setting("SEMAPHORE_ENABLED", True, _truth),
    Setting("SEMAPHORE_REDIS_URL", None, partial(_text, may_be_secret=True), EMPTY),
    Setting(CREDENTIALS, None, check_credentials, EMPTY),
    Setting("SEMAPHORE_LIMITS", {}, check_dict),
    Setting("SEMAPHORE_SCOPES", ["host"], _scopes, EMPTY),
    Setting("SEMAPHORE_LEASE", 15.0, partial(_seconds, least=0.1, most=LONGEST_LEASE_S)),
    Setting("SEMAPHORE_ACQUIRE_TIMEOUT", None, partial(_seconds, least=0.001)),
    Setting("SEMAPHORE_START_TIMEOUT", START_TIMEOUT, partial(_seconds, least=0.001)),
    Setting("SEMAPHORE_RECOVERY_WAIT", LEASE, _seconds),
    Setting("SEMAPHORE_NODE", SPIDER_AND_JOB, _node, EMPTY),
    Setting("SEMAPHORE_JOB", SPIDER, check_job, EMPTY),
    Setting("SEMAPHORE_MAX_CRAWL_DELAY", 60.0, _seconds),
    Setting("SEMAPHORE_ROBOTSTXT_UNREACHABLE", "disallow", _unreachable, EMPTY),
    Setting("SEMAPHORE_BACKOFF_CODES", [429, 503], check_statuses),
    Setting("SEMAPHORE_BACKOFF_START", 1.0, partial(_seconds, least=0.001)),
    Setting("SEMAPHORE_BACKOFF_MAX", BACKOFF_MAX, _seconds, bounds=_backoff_bounds),
    Setting("SEMAPHORE_BACKOFF_TIMES", 10, _count),
    Setting("SEMAPHORE_BACKOFF_WHEN", None, _function_of_response, EMPTY),
    Setting("SEMAPHORE_DOWN_AFTER", 60.0, _seconds),
    Setting("SEMAPHORE_HISTORY", "7d", parse_period),
    Setting("SEMAPHORE_METRICS", None, check_address, EMPTY),
)
NOT_SETTINGS = ("backoff", "credentials", "reuse_window", "explain_waits")
"""Options of a node without a setting of their name. The first two are made from settings in
`_ROWS`; the default of the others serves every crawl.
"""
_OF_NODE = (
    Setting(f"SEMAPHORE_{row.name.upper()}", row.default, row.metadata["check"])
    for row in fields(NodeOptions)
    if row.name not in NOT_SETTINGS
)
SETTINGS: Mapping[str, Setting] = {row.name: row for row in (*_OF_NODE, *_ROWS)}


# Unknown names -----------------------------------------------------------------------------------


ENVIRONMENT = ("SEMAPHORE_EMBEDDED_DIRECTORY", "SEMAPHORE_TOKEN")
"""Names read from the environment alone."""


WORD = "SEMAPHORE"
PREFIX = f"{WORD}_"
MEANT = {
    f"{PREFIX}{name}": meant
    for name, meant in {
        **{part.upper(): f"{part!r} in SEMAPHORE_LIMITS" for part in BY_NAME},
        "CONCURRENCY": "CONCURRENT_REQUESTS_PER_DOMAIN",
        "CONCURRENT_REQUESTS": "CONCURRENT_REQUESTS_PER_DOMAIN",
        "DELAY": "DOWNLOAD_DELAY",
        "JITTER": "DOWNLOAD_DELAY_JITTER",
    }.items()
}
"""Names that users try, and what they mean: a setting of Scrapy, or a part of a limit."""


def unknown_names(names: Iterable[str]) -> Iterator[str]:
    """A line for each unknown name with the prefix of our settings."""
    for name in names:
        end = _end_of(name)
        if end is None or name in SETTINGS:
            continue
        hint = did_you_mean(PREFIX + end, (*SETTINGS, *ENVIRONMENT), PREFIX, MEANT)
        if name in ENVIRONMENT:
            hint = "; set it in the environment"
        if hint or name.startswith(PREFIX):  # otherwise it may be another package's
            yield f"{name}: there is no such setting{hint}"


def _end_of(name: str) -> str | None:
    """The name without our prefix, which may be misspelt; None: it has another one."""
    if name.startswith(WORD):
        return name.removeprefix(WORD).lstrip("_")
    word, _, end = name.partition("_")
    return end if get_close_matches(word, [WORD], cutoff=0.8) else None
