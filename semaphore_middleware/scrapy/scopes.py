"""From a request to its scopes: the names of the semaphores whose permits it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import SplitResult, urlsplit

from scrapy import Request
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.url import add_http_if_no_scheme

from semaphore_middleware.errors import SettingsError
from semaphore_middleware.model.hosts import (
    ALL,
    PREFIXED_KINDS,
    encoded,
    kind_of,
    normal_host,
    order_of,
    site_index,
)
from semaphore_middleware.model.limits import Limit, LimitTable
from semaphore_middleware.model.validation import not_allowed
from semaphore_middleware.scrapy import throttling

if TYPE_CHECKING:
    from semaphore_middleware.scrapy.addresses import Addresses

SKIP_KEY = "semaphore_skip"
SCOPE_KEY = "semaphore_scope"
KINDS = ("host", *PREFIXED_KINDS, ALL)
"""The kinds of scopes for `SEMAPHORE_SCOPES`, besides callables."""
OUR_KEYS = frozenset((SKIP_KEY, SCOPE_KEY, throttling.SKIP_KEY, throttling.SCOPES_KEY))
MAX_SCOPE_CHARS = 1000
"""Of a scope's name: each call sends it, and the server and all nodes keep it."""
MAX_NAMES = 10
"""Of one request, in meta or from a callable: each name is a permit to wait for."""
HOSTS_REMEMBERED = 1024  # with their scopes cached: each request needs them several times
PROXY_PORTS = {"http": 80, "https": 443, "socks4": 1080, "socks5": 1080}
DEFAULT_PORTS = {"http": ":80", "https": ":443"}
ALLOWED_NAMES = (
    f"a text of 1 to {MAX_SCOPE_CHARS} characters, or a list of 1 to {MAX_NAMES} of them"
)

MAX_SLOT_NAME_BYTES = 100
"""The longest scope used unchanged in names of files."""
MAX_SLOT_BYTES = 200
"""The longest name of a slot. Scopes without room in it are left out."""
SEPARATOR = " + "
"""Between the scopes in the name of a slot."""

Namer: TypeAlias = Callable[[Request], str | Iterable[str] | None]
"""A user's own function: from a request to the names of its scopes."""


@dataclass(frozen=True, slots=True)
class Scopes:
    """The permits needed by a request, in the order of taking them."""

    limits: tuple[tuple[str, Limit], ...] = ()
    """The scopes and limits of the permits."""
    slot_names: tuple[str, ...] = ()
    """The scopes, by names fit for file names."""
    slot: str = ""
    """The queue slot of such requests: all slot names but addresses, as far as there is room."""

    @property
    def site(self) -> int | None:
        """The index of the site's scope, for which its robots.txt and its answers speak."""
        return site_index(tuple([name for name, _ in self.limits]))


NO_SCOPES = Scopes()


class ScopeFinder:
    """Finds the scopes of requests, by the kinds and callables of `SEMAPHORE_SCOPES`.

    Scopes without a limit are left out. The default limit applies to the first kind listed; scopes
    of other kinds have a limit only if `SEMAPHORE_LIMITS` names them. `ip` needs `addresses`.
    """

    def __init__(
        self,
        kinds: Sequence[str | Namer],
        limits: LimitTable,
        addresses: Addresses | None = None,
    ) -> None:
        self._kinds = kinds
        self._limits = limits
        self._addresses = addresses
        if "domain" in kinds:
            self._domain_of = lru_cache(HOSTS_REMEMBERED)(_registered_domain_finder())
        self._scopes_of_site = lru_cache(HOSTS_REMEMBERED)(self._find_by_site)
        self._with_limits = lru_cache(HOSTS_REMEMBERED)(self._add_limits)
        self._needs_only_host = all(kind in ("host", "domain", ALL) for kind in kinds)
        self._limits_addresses = "ip" in kinds and limits.names_kind("ip")
        self.looks_up = addresses is not None
        """True if scopes of some requests are known only after `resolve`."""

    def scopes_of(self, request: Request) -> Scopes:
        """The scopes of a request; none if `find` raises. This is also called where an error would
        end the crawl.
        """
        try:
            return self.find(request)
        except SettingsError:
            return NO_SCOPES

    def find(self, request: Request) -> Scopes:
        """The scopes of a request, possibly none.

        Raises `SettingsError` with the request if its meta or a callable gives invalid names, or
        if `semaphore_skip` in its meta is neither True nor False.
        """
        meta = request.meta
        url = urlparse_cached(request)
        if self._needs_only_host and OUR_KEYS.isdisjoint(meta):
            return self._scopes_of_site(url.scheme, url.netloc)
        skip, given, key = meta.get(SKIP_KEY), meta.get(SCOPE_KEY), SCOPE_KEY
        if not isinstance(skip, int | None):  # the text "False" is true
            raise not_allowed(skip, f"{request}: meta[{SKIP_KEY!r}]", "True or False")
        if given is None:
            given, key = meta.get(throttling.SCOPES_KEY), throttling.SCOPES_KEY
        if given is not None:
            names = _check_names(given, f"{request}: meta[{key!r}]", least=1)
        if meta.get(throttling.SKIP_KEY) if skip is None else skip:
            return NO_SCOPES
        if given is not None:
            return self._with_limits(tuple((name, self._has_default(name)) for name in names))
        # The scopes of its URL; after a redirect, `download_slot` in meta is outdated.
        host = _host_in(url.scheme, url.netloc)
        return self._with_limits(tuple(self._names_of(request, host))) if host else NO_SCOPES

    async def resolve(self, request: Request) -> object:
        """Look up the address of a request's host for `find`, if its scopes depend on the address.
        The address is known as long as the result is kept.

        Raises Scrapy's `CannotResolveHostError`.
        """
        if self._addresses is None or not self._has_address(request):
            return None
        return await self._addresses.resolve(_host_of(request))

    def slot_of(self, request: Request) -> str:
        """The queue slot of a request, the same on all nodes: its scopes, as far as they are known
        before its `fetch`. A scope of its address appears as `ip:` and its host.
        """
        slot = self.scopes_of(request).slot
        if slot and not self._limits_addresses:
            return slot
        host = _host_of(request)
        if self._limits_addresses and self._has_address(request):
            return _slot((slot, _slot_name(f"ip:{host}")) if slot else (_slot_name(f"ip:{host}"),))
        return slot or _slot_name(host)

    def names_in(self, slot: str) -> Iterable[str]:
        """The scopes of a slot. `ip:` and a host stand for the scope of the host's address, left
        out if that is not known yet.
        """
        names = slot.split(SEPARATOR)
        if not self._limits_addresses:
            return names
        known = (
            self.address_scope(name.removeprefix("ip:")) if name.startswith("ip:") else name
            for name in names
        )
        return [name for name in known if name is not None]

    def address_scope(self, host: str) -> str | None:
        """The scope of a host's address; None if the address is not known."""
        address = self._addresses.of(host) if self._addresses is not None else None
        return f"ip:{address}" if address else None

    def _has_address(self, request: Request) -> bool:
        """True if the address is one of the request's scopes; never if a proxy looks it up."""
        meta = request.meta
        return (
            "ip" in self._kinds
            and not (meta.get(SKIP_KEY) or meta.get("proxy") or meta.get(SCOPE_KEY) is not None)
            and urlparse_cached(request).scheme in ("http", "https")
        )

    def _names_of(self, request: Request, host: str) -> Iterable[tuple[str, bool]]:
        """Names, each with True if the default limit applies to it."""
        for index, kind in enumerate(self._kinds):
            names: Iterable[str | None]
            if not isinstance(kind, str):
                names = _ask(kind, request)
            elif kind == "ip":
                known = self._has_address(request)
                names = (self.address_scope(normal_host(host)) if known else None,)
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
        return normal_host(host) if kind == "host" else f"domain:{self._domain_of(host)}"

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
            if name not in limits and (limit := self._limits.of(name, has_default)) is not None:
                limits[name] = limit
        in_order = tuple(sorted(limits.items(), key=lambda scope: order_of(scope[0])))
        slot_names = tuple(_slot_name(name) for name, _ in in_order)
        in_slot = (slot_name for slot_name in slot_names if kind_of(slot_name) != "ip")
        return Scopes(in_order, slot_names, _slot(tuple(in_slot)))


def _host_in(scheme: str, netloc: str) -> str | None:
    """The host in a part of a URL; None if it is no site, as in file://localhost/."""
    return None if scheme == "file" else SplitResult(scheme, netloc, "", "", "").hostname


def _slot(slot_names: tuple[str, ...]) -> str:
    """The slot of these scopes."""
    slot = slot_names[0] if slot_names else ""
    for name in slot_names[1:]:
        longer = f"{slot}{SEPARATOR}{name}"
        if len(encoded(longer)) <= MAX_SLOT_BYTES:
            slot = longer
    return slot


def _slot_name(scope: str) -> str:
    """The scope, or a digest if the scope makes no good file name: under JOBDIR the queue names
    its files after slots.
    """
    if len(encoded(scope)) <= MAX_SLOT_NAME_BYTES and scope.isprintable() and "+" not in scope:
        return scope
    return f"scope-{sha256(encoded(scope)).hexdigest()}"


def _check_names(given: Any, where: str, least: int) -> tuple[str, ...]:
    """The names in a user's value. Raises `SettingsError`."""
    if isinstance(given, str):
        names: tuple[Any, ...] = (given,)
    elif isinstance(given, Iterable) and not isinstance(given, bytes):
        names = tuple(islice(given, MAX_NAMES + 1))
    else:
        names = (None,)
    if not least <= len(names) <= MAX_NAMES or not all(map(_is_name, names)):
        shown = given[:MAX_SCOPE_CHARS] if isinstance(given, str) else given
        raise not_allowed(shown, where, ALLOWED_NAMES if least else f"None, {ALLOWED_NAMES}")
    return names


def _is_name(scope: object) -> bool:
    return isinstance(scope, str) and 0 < len(scope) <= MAX_SCOPE_CHARS


def _ask(namer: Namer, request: Request) -> tuple[str, ...]:
    where = f"{request}: {name_of_callable(namer)} in SEMAPHORE_SCOPES"
    try:
        given = namer(request)
        return () if given is None else _check_names(given, where, least=0)
    except SettingsError:
        raise
    except Exception as error:
        raise SettingsError(f"{where} raised {error!r}") from error


def name_of_callable(namer: object) -> str:
    """A callable's name for messages."""
    return getattr(namer, "__qualname__", None) or repr(namer)


def _proxy_of(request: Request) -> str | None:
    """The scope of a request's proxy, perhaps set by `HttpProxyMiddleware`; None without one."""
    given = request.meta.get("proxy")
    if not isinstance(given, str) or not given:
        return None
    try:
        url = urlsplit(add_http_if_no_scheme(given))
        host, port = normal_host(url.hostname or ""), url.port
    except ValueError:  # Scrapy reports the error
        return None
    port = port or PROXY_PORTS.get(url.scheme, 80)
    return f"proxy:[{host}]:{port}" if ":" in host else f"proxy:{host}:{port}"


def origin_of(request: Request) -> str:
    """Scheme, host and port of a request, without a password: one robots.txt covers them (RFC
    9309, 2.3).
    """
    url = urlparse_cached(request)
    authority = url.netloc.rpartition("@")[2].lower()
    return f"{url.scheme}://{authority.removesuffix(DEFAULT_PORTS.get(url.scheme, ''))}"


def drop_scope_of_other_host(new: Request, request: Request) -> None:
    """Remove our keys from a request to another host that the `fetch` of `request` has returned:
    redirects copy meta, but the keys were meant for one host.
    """
    if _host_of(new) != _host_of(request):
        for key in (SKIP_KEY, SCOPE_KEY):
            if key in new.meta and new.meta[key] == request.meta.get(key):
                del new.meta[key]


def _host_of(request: Request) -> str:
    return normal_host(urlparse_cached(request).hostname or "")


def _registered_domain_finder() -> Callable[[str], str]:
    from tldextract import TLDExtract

    # With the bundled list of suffixes: by default tldextract asks the network and writes to disk.
    extract = TLDExtract(cache_dir=None, suffix_list_urls=())

    def registered_domain(host: str) -> str:
        host = normal_host(host)
        return extract.extract_str(host).top_domain_under_public_suffix or host

    return registered_domain
