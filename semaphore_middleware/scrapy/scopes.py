"""The scopes of a request: the names of the semaphores it needs permits from."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import sha256
from itertools import islice
from typing import Any, TypeAlias
from urllib.parse import SplitResult, urlsplit

from scrapy import Request
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.url import add_http_if_no_scheme

from semaphore_middleware.core.observer import FAILURES
from semaphore_middleware.errors import SettingsError
from semaphore_middleware.link.text import encoded
from semaphore_middleware.model.hosts import (
    ALL,
    ALLOWED_SCOPE,
    HOSTS_REMEMBERED,
    KINDS,
    MAX_SCOPE_CHARS,
    check_scope,
    is_scope,
    kind_of,
    normal_host,
    order_of,
    registered_domain,
    scope_of_proxy,
    scope_via,
    site_index,
)
from semaphore_middleware.model.limits import LIMITLESS, Limit, LimitTable
from semaphore_middleware.model.validation import not_allowed, shown

logger = logging.getLogger(__name__)

SKIP_KEY = "semaphore_skip"
SCOPE_KEY = "semaphore_scope"
OUR_KEYS = frozenset((SKIP_KEY, SCOPE_KEY))
MAX_NAMES = 10
"""The most names of a request, in meta or from a callable: each is a permit to wait for."""
DEFAULT_PORTS = {"http": 80, "https": 443, "socks4": 1080, "socks5": 1080}
ALLOWED_NAMES = f"{ALLOWED_SCOPE}, or a list of 1 to {MAX_NAMES} of them"

MAX_NAME_BYTES = 100
"""The longest scope used unchanged in names of files."""
MAX_QUEUE_KEY_BYTES = 200
"""The longest key of a queue. Scopes without room in it are left out."""
SEPARATOR = " + "
"""Between the scopes in the key of a queue."""

ScopeNames: TypeAlias = "tuple[str, ...]"
"""The names in a queue's key, wide scopes first: so queues that share a wide scope are neighbours
when sorted.
"""

Namer: TypeAlias = Callable[[Request], str | Iterable[str] | None]
"""A user's own function: from a request to the names of its scopes."""


@dataclass(frozen=True, slots=True)
class Scopes:
    """The permits needed by a request, in the order of taking them."""

    limits: tuple[tuple[str, Limit], ...] = ()
    """The scopes and limits of the permits."""
    scope_names: tuple[str, ...] = ()
    """The scopes, by names fit for file names."""
    queue_key: str = ""
    """The key of the queue of such requests: all scope names, as far as there is room."""

    @property
    def site(self) -> int | None:
        """The index of the site's scope, to which its answers and its robots.txt apply."""
        return site_index(tuple([name for name, _ in self.limits]))


NO_SCOPES = Scopes()


class ScopeFinder:
    """Finds the scopes of requests, by the kinds and callables of `SEMAPHORE_SCOPES`.

    Scopes without a limit are left out. The default limit applies to the first kind listed; scopes
    of other kinds have a limit only if `SEMAPHORE_LIMITS` names them.
    """

    def __init__(self, kinds: Sequence[str | Namer], limits: LimitTable) -> None:
        self._kinds = kinds
        self._limits = limits
        self._warned_of: set[str] = set()  # keys of SEMAPHORE_LIMITS
        self._scopes_of_site = lru_cache(HOSTS_REMEMBERED)(self._find_by_site)
        self._with_limits = lru_cache(HOSTS_REMEMBERED)(self._add_limits)
        self._needs_only_host = all(kind in ("host", "domain", ALL) for kind in kinds)

    def scopes_of(self, request: Request) -> Scopes:
        """The scopes of a request; none if `find_scopes` raises, as an error would end the crawl
        where this is called.
        """
        try:
            return self.find_scopes(request)
        except SettingsError:
            return NO_SCOPES

    def find_scopes(self, request: Request) -> Scopes:
        """The scopes of a request, possibly none.

        Raises `SettingsError` if its meta or a callable gives invalid names, or if `semaphore_skip`
        in its meta is neither True nor False.
        """
        meta = request.meta
        url = urlparse_cached(request)
        slot = chosen_slot(request)
        if self._needs_only_host and slot is None and OUR_KEYS.isdisjoint(meta):
            return self._scopes_of_site(url.scheme, url.netloc)
        skip = meta.get(SKIP_KEY)
        given = meta.get(SCOPE_KEY)
        if not isinstance(skip, int | None):  # the text "False" would count as true
            raise not_allowed(skip, f"meta[{SKIP_KEY!r}]", "True or False")
        if given is not None:
            names = _names_by(lambda: given, f"meta[{SCOPE_KEY!r}]", least=1)
        if skip:
            return NO_SCOPES
        if given is not None:
            return self._with_limits(tuple((name, self._has_default(name)) for name in names))
        host = _host_in(url.scheme, url.netloc)
        if not host:
            return NO_SCOPES
        scopes = [*self._names_of(request, host)]
        if slot is not None:
            scopes.append((slot, True))
        return self._with_limits(tuple(scopes))

    def queue_key(self, request: Request) -> str:
        """The key of a request's queue, the same on all nodes: its scopes, otherwise its host."""
        return self.scopes_of(request).queue_key or _scope_name(host_of(request))

    def _names_of(self, request: Request, host: str) -> Iterable[tuple[str, bool]]:
        """The scopes of a request, each with True if the default limit applies to it."""
        for index, kind in enumerate(self._kinds):
            names: Iterable[str | None]
            if not isinstance(kind, str):
                function = getattr(kind, "__qualname__", None) or shown(kind)
                where = f"{function} in SEMAPHORE_SCOPES"
                names = _names_by(partial(kind, request), where, least=0)
            elif kind == "proxy":
                names = (_proxy_of(request),)
            else:
                names = (self._name_of(kind, host),)
            for name in names:
                if name is not None:
                    yield name, index == 0

    def _name_of(self, kind: str | Namer, host: str) -> str:
        if kind == ALL:
            return ALL
        return normal_host(host) if kind == "host" else f"domain:{registered_domain(host)}"

    def _find_by_site(self, scheme: str, netloc: str) -> Scopes:
        host = _host_in(scheme, netloc)
        if not host:
            return NO_SCOPES
        return self._with_limits(
            tuple((self._name_of(kind, host), index == 0) for index, kind in enumerate(self._kinds))
        )

    def _has_default(self, name: str) -> bool:
        """True if the default limit applies to a name in meta: the name counts as one of the first
        kind, unless it is of another kind.
        """
        kind = kind_of(name)
        return kind not in KINDS[1:] or kind == self._kinds[0]

    def _add_limits(self, names: tuple[tuple[str, bool], ...]) -> Scopes:
        limits: dict[str, Limit] = {}
        for name, has_default in names:
            if kind_of(name) == "host" and (above := self._limits.key_above(name)):
                self._warn_of(name, above)
            if name not in limits and (limit := self._limits.of(name, has_default)) is not None:
                limits[name] = limit
        scopes = sorted(limits, key=order_of)
        proxy = next((name for name, _ in names if kind_of(name) == "proxy"), None)
        site = site_index(tuple(scopes))
        if "proxy" in self._kinds and proxy is not None and site is not None:
            # The site through this proxy. It pauses if the site refuses only the proxy, and its
            # permit is taken first: a paused request must hold none that other proxies need.
            via = scope_via(proxy, scopes[site])
            limits[via] = self._limits.of(via, has_default=False) or Limit(LIMITLESS)
            scopes = sorted(limits, key=order_of)
        scope_names = tuple(map(_scope_name, scopes))
        in_order = tuple((name, limits[name]) for name in scopes)
        return Scopes(in_order, scope_names, _queue_key(scope_names))

    def _warn_of(self, host: str, above: str) -> None:
        """Warn, once for each host with a limit, that it is not the limit of a host below it."""
        if above not in self._warned_of:
            self._warned_of.add(above)
            logger.warning(
                "%s has the default limit: SEMAPHORE_LIMITS[%r] is for that host alone. Name %r, "
                "too, for all hosts below it, or %r for this one.",
                host,
                above,
                f"*.{above}",
                host,
            )


def _host_in(scheme: str, netloc: str) -> str | None:
    """The host in a part of a URL; None if it is not a site, as in file://localhost/."""
    return None if scheme == "file" else SplitResult(scheme, netloc, "", "", "").hostname


def _queue_key(scope_names: tuple[str, ...]) -> str:
    key = scope_names[0] if scope_names else ""
    for name in scope_names[1:]:
        longer = f"{key}{SEPARATOR}{name}"
        if len(encoded(longer)) <= MAX_QUEUE_KEY_BYTES:
            key = longer
    return key


def names_in(key: str) -> ScopeNames:
    """The names in a queue's key, which has narrow scopes first."""
    return tuple(reversed(key.split(SEPARATOR)))


def queue_key_of(names: ScopeNames) -> str:
    """The key of the queue with these names."""
    return SEPARATOR.join(reversed(names))


def _scope_name(scope: str) -> str:
    """The scope if it is fit for file names, otherwise its digest: under JOBDIR the files of a
    queue have its key in their names.
    """
    if len(encoded(scope)) <= MAX_NAME_BYTES and scope.isprintable() and "+" not in scope:
        return scope
    return f"scope-{sha256(encoded(scope)).hexdigest()}"


def _names_by(find: Callable[[], Any], where: str, least: int) -> tuple[str, ...]:
    """The names that the user gives, by `find`. Raises `SettingsError`."""
    try:
        given = find()
        if isinstance(given, str) or not isinstance(given, Iterable) or isinstance(given, bytes):
            names: tuple[Any, ...] = (given,)
        else:
            names = tuple(islice(given, MAX_NAMES + 1))
    except FAILURES as error:
        raise SettingsError(f"{where} raised {shown(error)}") from error
    if given is None and least == 0:
        return ()
    if not least <= len(names) <= MAX_NAMES or not all(map(is_scope, names)):
        cut = given[:MAX_SCOPE_CHARS] if isinstance(given, str) else given
        raise not_allowed(cut, where, ALLOWED_NAMES if least else f"None, {ALLOWED_NAMES}")
    return tuple(check_scope(name, where) for name in names)


def _proxy_of(request: Request) -> str | None:
    """The scope of a request's proxy, perhaps set by `HttpProxyMiddleware`; None without one."""
    given = request.meta.get("proxy")
    if not isinstance(given, str) or not given:
        return None
    try:
        url = urlsplit(add_http_if_no_scheme(given))
        host = normal_host(url.hostname or "")
        port = url.port or DEFAULT_PORTS.get(url.scheme, 80)
    except ValueError:  # Scrapy reports the error
        return None
    return scope_of_proxy(host, port)


def origin_of(request: Request) -> str:
    """Scheme, host and port of a request, without a password: one robots.txt covers them (RFC
    9309, 2.3).
    """
    url = urlparse_cached(request)
    authority = url.netloc.rpartition("@")[2].lower()
    return f"{url.scheme}://{authority.removesuffix(f':{DEFAULT_PORTS.get(url.scheme)}')}"


def chosen_slot(request: Request) -> str | None:
    """The user's own name in `meta["download_slot"]`: a further scope of the request. None: there
    is none, or a host. Scrapy puts the host there, and copies of meta bring it to other hosts.
    """
    slot = request.meta.get("download_slot")
    return slot if slot is not None and is_scope(slot) and kind_of(slot) == "name" else None


def drop_scope_of_other_host(new: Request, request: Request) -> None:
    """Remove our keys from a request to another host, returned by the `fetch` of `request`:
    redirects copy meta, but the keys were meant for one host.
    """
    if host_of(new) != host_of(request):
        for key in (SKIP_KEY, SCOPE_KEY):
            if key in new.meta and new.meta[key] is request.meta.get(key):
                del new.meta[key]


def host_of(request: Request) -> str:
    """The host of a request, in its usual spelling; empty without one, as in `data:` URLs."""
    url = urlparse_cached(request)
    return normal_host(_host_in(url.scheme, url.netloc) or "")
