"""The `SEMAPHORE_*` settings: their table, and the checked settings of a crawl."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, cast

from scrapy.utils.misc import load_object

from semaphore_middleware.errors import SettingsError
from semaphore_middleware.link.environment import server_of
from semaphore_middleware.link.lease import LONGEST_LEASE_S
from semaphore_middleware.model.feedback import MAX_STATUS, Backoff
from semaphore_middleware.model.hosts import ALL, PREFIXED_KINDS, VIA
from semaphore_middleware.model.limits import Limit, LimitTable, parse_limits
from semaphore_middleware.model.options import (
    NodeOptions,
    check_address,
    check_credentials,
    check_job,
    prefix_named,
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
from semaphore_middleware.scrapy.engine import end_crawl
from semaphore_middleware.scrapy.scopes import KINDS, Namer

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from scrapy.settings import BaseSettings


@dataclass(frozen=True, slots=True)
class Derived:
    """A default computed when a crawl reads the setting."""

    text: str
    """The default as docs/settings.md shows it."""
    value: Callable[[BaseSettings], Any]


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table: a setting, its default, and the check of its value."""

    name: str
    default: Any
    check: Callable[..., Any]
    """From a value and the setting's name to the checked value. Raises `SettingsError`."""
    unset: tuple[Any, ...] = (None,)
    """Values read as the default."""
    bounds: Callable[[BaseSettings], Mapping[str, Any]] = lambda _: {}
    """Arguments of the check derived from other settings."""

    def read(self, settings: BaseSettings) -> Any:
        """The checked value. Raises `SettingsError` with the name of the setting."""
        return checked(partial(self._read, settings), settings.get(self.name), self.name)

    def _read(self, settings: BaseSettings, value: Any, name: str) -> Any:
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


def _scopes(value: Any, where: str) -> tuple[str | Namer, ...]:
    given = value.split(",") if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not given:
        raise not_allowed(value, where, ALLOWED_SCOPES)
    kinds = tuple(_scope_kind(kind, where) for kind in given)
    if None in kinds:
        raise not_allowed(value, where, ALLOWED_SCOPES)
    return cast("tuple[str | Namer, ...]", kinds)


def _scope_kind(given: Any, where: str) -> str | Namer | None:
    """A kind of scopes, or a function, given itself or by its path; None for anything else."""
    found = given.strip() if isinstance(given, str) else given
    if found in KINDS:
        return str(found)
    if isinstance(found, str) and "." in found:
        try:
            found = load_object(found)
        except Exception as error:
            raise SettingsError(f"{where}: {given!r} cannot be loaded: {shown(error)}") from error
    return cast("Namer", found) if callable(found) and not iscoroutinefunction(found) else None


def _statuses(value: Any, where: str) -> frozenset[int]:
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


def _function_of_response(value: Any, where: str) -> Callable[[Response], object]:
    allowed = "a function from a response to True, False or seconds, or the path of one"
    try:
        function = load_object(value)
    except Exception as error:
        raise SettingsError(f"{where} = {shown(value)}: {error}; allowed is {allowed}") from None
    if not callable(function) or iscoroutinefunction(function):
        raise not_allowed(value, where, allowed)
    return cast("Callable[[Response], object]", function)


def _dict(value: Any, where: str) -> Mapping[str, Any]:
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


def value_of(name: str, settings: BaseSettings) -> Any:
    """The checked value of one of our settings. Raises `SettingsError`."""
    return SETTINGS[name].read(settings)


def _backoff_bounds(settings: BaseSettings) -> Mapping[str, Any]:
    return {"least": value_of("SEMAPHORE_BACKOFF_START", settings)}


LEASE = Derived("the lease", lambda settings: value_of("SEMAPHORE_LEASE", settings))
SPIDER = Derived("the spider's name", lambda _: "")
SPIDER_AND_JOB = Derived("the spider and the job", lambda _: "")
MAX = Derived("`300.0`", lambda s: max(300.0, value_of("SEMAPHORE_BACKOFF_START", s)))

CREDENTIALS = "SEMAPHORE_REDIS_CREDENTIALS"
_ROWS = (
    Setting("SEMAPHORE_ENABLED", True, _truth),
    Setting("SEMAPHORE_REDIS_URL", None, partial(_text, may_be_secret=True), EMPTY),
    Setting(CREDENTIALS, None, check_credentials, EMPTY),
    Setting("SEMAPHORE_LIMITS", {}, _dict),
    Setting("SEMAPHORE_SCOPES", ["host"], _scopes, EMPTY),
    Setting("SEMAPHORE_LEASE", 15.0, partial(_seconds, least=0.1, most=LONGEST_LEASE_S)),
    Setting("SEMAPHORE_ACQUIRE_TIMEOUT", None, partial(_seconds, least=0.001)),
    Setting("SEMAPHORE_START_TIMEOUT", None, partial(_seconds, least=0.001)),
    Setting("SEMAPHORE_RECOVERY_WAIT", LEASE, _seconds),
    Setting("SEMAPHORE_NODE", SPIDER_AND_JOB, _text, EMPTY),
    Setting("SEMAPHORE_JOB", SPIDER, check_job, EMPTY),
    Setting("SEMAPHORE_MAX_CRAWL_DELAY", 60.0, _seconds),
    Setting("SEMAPHORE_ROBOTSTXT_UNREACHABLE", "disallow", _unreachable, EMPTY),
    Setting("SEMAPHORE_BACKOFF_CODES", [429, 503], _statuses),
    Setting("SEMAPHORE_BACKOFF_START", 1.0, partial(_seconds, least=0.001)),
    Setting("SEMAPHORE_BACKOFF_MAX", MAX, _seconds, bounds=_backoff_bounds),
    Setting("SEMAPHORE_BACKOFF_TIMES", 10, _count),
    Setting("SEMAPHORE_BACKOFF_WHEN", None, _function_of_response, EMPTY),
    Setting("SEMAPHORE_DOWN_AFTER", 60.0, _seconds),
    Setting("SEMAPHORE_HISTORY", "7d", parse_period),
    Setting("SEMAPHORE_METRICS", None, check_address, EMPTY),
)
NOT_SETTINGS = ("backoff", "credentials", "turn", "explain_waits")
"""Options of a node without a setting of their name. The first two are made from settings in
`_ROWS`; the default of the others serves every crawl.
"""
_OF_NODE = (
    Setting(f"SEMAPHORE_{row.name.upper()}", row.default, row.metadata["check"])
    for row in fields(NodeOptions)
    if row.name not in NOT_SETTINGS
)
SETTINGS: Mapping[str, Setting] = {row.name: row for row in (*_OF_NODE, *_ROWS)}


# The settings of a crawl -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SemaphoreSettings(NodeOptions):
    """All settings of a crawl, checked; `job` is empty where the spider's name counts. Times are in
    seconds; docs/settings.md has the meanings.
    """

    url: str | None
    """The server; None: the embedded one."""
    url_from: str
    """Where `url` was set, for errors."""
    limits: LimitTable
    """From `SEMAPHORE_LIMITS` and Scrapy's own settings."""
    scopes: tuple[str | Namer, ...]
    """Kinds, and the user's own functions."""
    acquire_timeout: float | None
    start_timeout: float | None
    node: str
    """Empty: named after the spider and its job."""
    max_crawl_delay: float
    robotstxt_unreachable: str
    backoff_codes: frozenset[int]
    backoff_times: int
    backoff_when: Callable[[Response], object] | None
    concurrent_requests: int
    """Of this node, at all sites; 0: any number."""

    def semaphore_options(self, spider: str = "") -> dict[str, Any]:
        """The options of `FairSemaphore`, but for its server and its name. The spider's name is the
        job where SEMAPHORE_JOB is not set. Raises `SettingsError` if it cannot be one.
        """
        options = {field.name: getattr(self, field.name) for field in fields(NodeOptions)}
        where = "the spider's name (its job unless SEMAPHORE_JOB is set)"
        return {**options, "job": self.job or check_job(spider, where)}

    @classmethod
    def read(cls, settings: BaseSettings) -> SemaphoreSettings:
        """Read and check the settings. Raises `SettingsError` with the name of the wrong one."""
        ours = {
            name.removeprefix("SEMAPHORE_").lower(): setting.read(settings)
            for name, setting in SETTINGS.items()
        }
        ours["url"], ours["url_from"] = server_of(settings)
        ours["credentials"] = ours["redis_credentials"]
        slots = _dict(settings.get("DOWNLOAD_SLOTS"), "DOWNLOAD_SLOTS")
        default = _default_limit(settings)
        first = ours["scopes"][0]
        first_kind = first if isinstance(first, str) else "name"
        ours["limits"] = parse_limits(
            ours["limits"], slots, default, "SEMAPHORE_LIMITS", first_kind
        )
        at_once = "CONCURRENT_REQUESTS"
        ours["concurrent_requests"] = _count(settings.get(at_once), at_once)
        ours["backoff"] = Backoff(ours["backoff_start"], ours["backoff_max"], ours["down_after"])
        return cls(**{field.name: ours[field.name] for field in fields(cls) if field.name in ours})


def is_enabled(crawler: Crawler) -> bool:
    """True unless `SEMAPHORE_ENABLED` is off. An invalid value ends the crawl."""
    try:
        return bool(value_of("SEMAPHORE_ENABLED", crawler.settings))
    except SettingsError as error:
        end_crawl(error, crawler)


def _default_limit(settings: BaseSettings) -> Limit:
    """The limit in Scrapy's own settings; with the add-on it holds for all nodes together."""
    name = "CONCURRENT_REQUESTS_PER_DOMAIN"
    concurrency = check_integer(settings.get(name), name, least=1, text=True)
    return Limit(concurrency, _number(settings, "DOWNLOAD_DELAY", 0.0), _jitter(settings))


def _jitter(settings: BaseSettings) -> float:
    """The jitter, as in Scrapy 2.19: the older of its two settings counts at a higher priority."""
    old = "RANDOMIZE_DOWNLOAD_DELAY"
    new = "DOWNLOAD_DELAY_JITTER"
    if (settings.getpriority(old) or 0) > (settings.getpriority(new) or 0):
        return 0.5 if check_truth(settings.get(old), old, text=True) else 0.0
    return min(1.0, _number(settings, new, 0.5))


def _number(settings: BaseSettings, name: str, default: float) -> float:
    """One of Scrapy's settings: a number >= 0."""
    value = settings.get(name)
    return check_number(default if value is None else value, name, text=True)


logger = logging.getLogger(__name__)


def log_start(node: str, server: str, prefix: str, is_embedded: bool, limits: LimitTable) -> None:
    """Log this node's name, the server without its password, and the default limit."""
    default = limits.default
    assert default is not None  # CONCURRENT_REQUESTS_PER_DOMAIN has a number
    delay = f", delay {default.delay:g} s" if default.delay else ""
    embedded = " (embedded: only for this user's crawls on this machine)" if is_embedded else ""
    logger.info(
        "Node %s shares its limits with all nodes at %s%s%s. Default limit of a site: concurrency "
        "%d%s.",
        node,
        server,
        prefix_named(prefix),
        embedded,
        default.concurrency,
        delay,
    )


ENVIRONMENT = ("SEMAPHORE_EMBEDDED_DIRECTORY", "SEMAPHORE_TOKEN")
"""Names read from the environment alone."""


OF_SCRAPY = {
    f"SEMAPHORE_{name}": meant
    for name, meant in {
        "CONCURRENCY": "CONCURRENT_REQUESTS_PER_DOMAIN",
        "CONCURRENT_REQUESTS": "CONCURRENT_REQUESTS_PER_DOMAIN",
        "DELAY": "DOWNLOAD_DELAY",
    }.items()
}
"""Names that users try, and the settings of Scrapy that they mean."""


def unknown_names(names: Iterable[str]) -> Iterator[str]:
    """A line for each unknown name with the prefix of our settings."""
    for name in names:
        if name.startswith("SEMAPHORE_") and name not in SETTINGS:
            is_read = name in ENVIRONMENT
            like = did_you_mean(name, SETTINGS, meant=OF_SCRAPY)
            hint = "; set it in the environment" if is_read else like
            yield f"{name}: there is no such setting{hint}"


def warn_of_mistakes(
    settings: BaseSettings, limits: LimitTable, scopes: Sequence[str | Namer]
) -> None:
    """Warn of allowed settings with a probable mistake."""
    for mistake in unknown_names(sorted(settings)):
        logger.warning(mistake)
    for kind in (*PREFIXED_KINDS, ALL):
        listed_as = "proxy" if kind == VIA else kind
        if limits.names_kind(kind) and listed_as not in scopes:
            logger.warning(
                "SEMAPHORE_LIMITS has limits of the kind %r, but SEMAPHORE_SCOPES lacks %r: they "
                "hold only for requests that name such a scope in meta['semaphore_scope'].",
                kind,
                listed_as,
            )
