"""Names of hosts, scopes and limits: their kinds and normal forms, as checked, sent and shown."""

from __future__ import annotations

import re
import socket
from functools import cache, lru_cache
from ipaddress import IPv6Address
from typing import TYPE_CHECKING, Any

from semaphore_middleware.errors import SettingsError
from semaphore_middleware.model.validation import not_allowed

if TYPE_CHECKING:
    from tldextract import TLDExtract

VIA = "via"
"""The kind of scopes for one site through one proxy."""
PREFIXED_KINDS = (VIA, "domain", "proxy")
"""Kinds of scopes with their kind as a prefix: `domain:example.org`."""
ALL = "all"
"""The one scope of its kind: every request of all nodes."""
KINDS = ("host", *(kind for kind in PREFIXED_KINDS if kind != VIA), ALL)
"""The kinds of scopes for `SEMAPHORE_SCOPES`, besides functions."""
MAX_SCOPE_CHARS = 1000
"""Of a scope's name: each call sends it, and the server and all nodes keep it."""
ALLOWED_SCOPE = f"a text of 1 to {MAX_SCOPE_CHARS} characters, no control characters"
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""Characters that no name has. All line breaks are among them: they would forge log lines."""
HOSTS_REMEMBERED = 1024  # in caches of values that each request needs several times
PROXY = re.compile(r"(?:\w+://)?(?:[^\s/]*@)?([^\s/@:\[\]]+|\[[0-9a-fA-F:.]+\]):(\d{1,5})/?")
"""A proxy as users write it, with its host and its port."""
EVERY = "*"
"""The pattern for every scope; only operators' rules have it."""
SITES = ("host", "domain", "name")
"""Kinds of scopes for one site, in order of precedence."""
ORDER = (VIA, "name", "host", "domain", "proxy", ALL)
"""Kinds in the order in which a request takes its scopes: narrow ones before wide ones."""


def kind_of(scope: str) -> str:
    """The kind of a scope, one of `ORDER`. It follows from the name alone, so it is the same on all
    nodes. A name unlike a host is the user's own.
    """
    kind, colon, _ = scope.partition(":")
    if (colon and kind in PREFIXED_KINDS) or scope == ALL:
        return kind
    is_host = re.fullmatch(r"localhost|[a-z0-9_-]*[.:][a-z0-9_.:-]*", scope)
    return "host" if is_host else "name"


def order_of(scope: str) -> tuple[int, str]:
    """The sort key of a request's scopes.

    All nodes take scopes in this order, so no two requests wait for each other: a request waiting
    for a scope holds only earlier ones (J. W. Havender, Avoiding Deadlock in Multitasking Systems,
    1968).
    """
    return ORDER.index(kind_of(scope)), scope  # promise: order of scopes


@lru_cache(maxsize=1024)
def site_index(scopes: tuple[str, ...]) -> int | None:
    """Index of the site's scope among a request's scopes: its host, domain or the user's own name,
    in this order. The site's answers and robots.txt concern that scope. None: all scopes
    are of proxies, or of all sites.
    """
    kinds = [kind_of(scope) for scope in scopes]
    return next((kinds.index(kind) for kind in SITES if kind in kinds), None)


def scope_of_proxy(host: str, port: int | str) -> str:
    """The scope of a proxy: `proxy:10.0.0.1:3128`, `proxy:[::1]:3128`."""
    return f"proxy:[{host}]:{port}" if ":" in host else f"proxy:{host}:{port}"


def scope_via(proxy: str, site: str) -> str:
    """The scope of a site through a proxy, by both scopes: `via:10.0.0.1:3128 example.com`."""
    return f"{VIA}:{proxy.removeprefix('proxy:')} {site}"


def parse_name(name: Any, where: str) -> str:
    """The checked name of a limit, as requests have it: a scope; '*.' and a host; or a kind and
    ':*'. Raises `SettingsError` with `where`, the place where the name was set.
    """
    if not isinstance(name, str) or not normal_host(name):
        what = "empty" if isinstance(name, str) else "not text"
        raise SettingsError(f"{where}: the host is {what}; allowed is a host or '*.host'")
    if CONTROL.search(name):
        raise SettingsError(f"{where}: a name has no control characters")
    refuse_void(name.strip(), where)
    if name.startswith("ip:"):
        raise SettingsError(
            f"{where}: there is no limit of an address; limit hosts, domains or names of your own"
        )
    if name.startswith("*."):
        suffix = normal_host(name[2:])
        if not suffix or "*" in suffix:
            raise SettingsError(f"{where}: allowed is a host, or '*.' and a host")
        return f"*.{suffix}"
    if "*" in name and (name == EVERY or not is_pattern(name)):
        raise SettingsError(
            f"{where}: a '*' may only stand first, as in '*.example.org', or alone after a kind, "
            "as in 'domain:*'; the limit of all other hosts is CONCURRENT_REQUESTS_PER_DOMAIN"
        )
    return scope_name(name)


def is_pattern(name: str) -> bool:
    """True for '*.' and a host (all hosts below it), for 'domain:*' and its like (all scopes
    of the kind), and for `EVERY`.
    """
    of_kind = name.endswith(":*") and name[:-2] in PREFIXED_KINDS
    return name.startswith("*.") or of_kind or name == EVERY


def patterns_for(scope: str) -> list[str]:
    """All patterns fitting a scope, or all scopes of a pattern: the most exact first."""
    kind = kind_of(scope)
    if kind in PREFIXED_KINDS:
        return [EVERY] if is_pattern(scope) else [f"{kind}:*", EVERY]
    _, *parents = scope.split(".")
    return [*(f"*.{'.'.join(parents[i:])}" for i in range(len(parents))), EVERY]


@lru_cache(HOSTS_REMEMBERED)
def scope_name(name: str) -> str:
    """The name of a scope or a pattern as requests have it: a host in normal form, also behind a
    kind. A name unlike a host is unchanged: users' own names never become the same scope.
    """
    if name.startswith("*."):
        return f"*.{normal_host(name[2:])}"
    kind, colon, rest = name.partition(":")
    if colon and kind == VIA:
        proxy, blank, site = rest.partition(" ")
        return f"{VIA}:{normal_host(proxy)}{blank}{scope_name(site)}"
    if colon and kind in PREFIXED_KINDS:
        return f"{kind}:{normal_host(rest)}"
    host = normal_host(name)
    # A colon belongs to a user's name, except in an IPv6 address; a number alone is a name.
    looks_like_one = kind_of(host) == "host" and (":" not in host or is_address(host))
    is_number = name.strip().isalnum() and host != "localhost"
    return host if looks_like_one and not is_number else name


def host_within(name: str) -> str | None:
    """The host in a URL, or in a host with a port: users mistake them for names of scopes."""
    url = re.match(
        r"(?:(?:https?|ftp|s3):)?//(?:[^\s/@]*@)?(\[[^\s/]+\]|[^\s/:?#,\[]+)", name, re.IGNORECASE
    )
    url = url or re.fullmatch(r"(localhost|[^\s/:]+\.[^\s/:]+):\d+/?", name, re.IGNORECASE)
    return normal_host(url[1]) if url else None


def refuse_url(name: str, where: str) -> None:
    """Raise `SettingsError` for a URL, or a host with a port: such a scope would limit no site."""
    if host := host_within(name.removeprefix("*.")):
        raise SettingsError(f"{where}: give only the host: {host!r}")


def refuse_hosts(name: str, where: str) -> None:
    """Raise `SettingsError` for several hosts, and for a host with a slash behind it: only a user's
    own function gives scopes such names.
    """
    hosts = [_host_meant(part) for part in re.split(r"[,;|\s]+", name) if part]
    if len(hosts) > 1 and all(hosts):
        names = " and ".join(map(repr, hosts))
        raise SettingsError(f"{where}: write each host by itself: {names}")
    if name.rstrip().endswith("/") and (host := _host_meant(name)):
        raise SettingsError(f"{where}: give only the host: {host!r}")


def refuse_void(name: str, where: str) -> None:
    """Raise `SettingsError` for a name with a host's form, or with a kind, that no request has."""
    if corrected := _corrected(name):
        raise SettingsError(f"{where}: no request has this name; write {corrected}")


def _corrected(name: str) -> str:
    """What to write in place of a name that no request has; empty for any other name."""
    dotted = name.removeprefix("*.")
    if dotted.startswith(".") and (host := normal_host(dotted.lstrip("."))):
        itself = f", and {host!r} for itself" if dotted == name else ""
        return f"{f'*.{host}'!r} for each host below it{itself}"
    kind, colon, rest = name.partition(":")
    if not colon or rest == "*":
        return ""
    if kind.lower() == "host":
        meant = _host_meant(rest.lstrip("."))
        return repr(meant) if meant else ""
    match kind:
        case "domain":
            host = _host_meant(rest.strip().lstrip(".")) or normal_host(rest)
            is_known = re.fullmatch(r"[a-z0-9_.-]+", host) or is_address(host)
            meant, example = f"domain:{host}" if is_known else "", "domain:example.org"
        case "proxy":
            meant, example = _proxy_meant(rest), "proxy:10.0.0.1:3128"
        case "via":
            address, _, site = rest.partition(" ")
            proxy = site and _proxy_meant(address)
            meant = proxy and scope_via(proxy, scope_name(site))
            example = "via:10.0.0.1:3128 example.org"
        case _:
            return ""
    if scope_name(name) == meant:
        return ""
    return repr(meant) if meant else f"it like {example!r}"


def _host_meant(name: str) -> str:
    """The host, or the pattern of hosts, in a text that can mean nothing else; otherwise empty."""
    pattern, rest = ("*.", name[2:]) if name.startswith("*.") else ("", name)
    host = host_within(rest) or normal_host(rest.rstrip("/ "))
    has_dot = re.fullmatch(r"[a-z0-9_-]+(\.[a-z0-9_-]+)+", host)
    return pattern + host if has_dot or host == "localhost" or is_address(host) else ""


def _proxy_meant(name: str) -> str:
    """The scope of a proxy; empty if its host or its port is missing."""
    found = PROXY.fullmatch(name)
    return scope_of_proxy(normal_host(found[1]), found[2]) if found else ""


def domain_hint(name: str) -> str:
    """A line about a limit for a domain that is not a registered one, so that no request has it.
    Empty for any other name.
    """
    kind, _, host = name.partition(":")
    if kind != "domain" or host == "*":
        return ""
    found = _suffixes().extract_str(host)
    domain = f"{found.domain}.{found.suffix}" if found.domain else ""
    if not found.suffix or domain == host:
        return ""
    meant = f"'domain:{domain}', or " if domain else ""
    return (
        f"{name}: {host} is no registered domain, so no request has this name; write "
        f"{meant}{host!r} for the host"
    )


def is_scope(name: object) -> bool:
    """True if a scope may have this name; for a site through a proxy it is made of two names."""
    if not isinstance(name, str):
        return False
    most = MAX_SCOPE_CHARS * (2 if name.startswith(f"{VIA}:") else 1)
    return 0 < len(name) <= most and not CONTROL.search(name)


def check_scope(name: Any, where: str = "the scope") -> str:
    """The checked name of a scope. Raises `SettingsError`, also for a URL, and for a host that is
    not spelt as in requests: it would be a scope of its own, but with the host's rules.
    """
    if not is_scope(name):
        raise not_allowed(name, where, ALLOWED_SCOPE)
    if "://" in name:
        refuse_url(name, f"{where} = {name!r}")
    if name.startswith("host:"):
        refuse_void(name, f"{where} = {name!r}")
    if (usual := scope_name(name)) != name:
        raise SettingsError(f"{where} = {name!r}: it looks like a host; write {usual!r}")
    return str(name)


def normal_host(host: str) -> str:
    """A host as in URLs: lower case, no dot at the end, IDNA instead of non-ASCII letters. All
    spellings of an IP address are one host.
    """
    host = host.strip().lower()
    if not host.isascii():
        try:
            host = host.encode("idna").decode("ascii")
        except UnicodeError:
            return host  # not a host, but the name of a scope
    host = host.strip().rstrip(". ")  # also what IDNA makes of other dots and blanks
    return _normal_address(host) or host


def _normal_address(host: str) -> str | None:
    """An IP address in its usual spelling, also an IPv4 address written as IPv6; None for a name.

    IPv4 is read as the resolver does (`inet_aton`, as in the WHATWG's URL Standard, "IPv4 parser"):
    127.1, 0x7f.1 and 2130706433 are 127.0.0.1. IPv6 is written as in RFC 5952.
    """
    if ":" in host:
        try:
            address = IPv6Address(host.removeprefix("[").removesuffix("]"))
        except ValueError:
            return None
        return str(address.ipv4_mapped or address)
    # Only such texts: `inet_aton` ignores all that follows a blank.
    if host[:1].isdigit() and re.fullmatch(r"[0-9a-fx.]+", host):
        try:
            return socket.inet_ntoa(socket.inet_aton(host))
        except OSError:
            pass
    return None


def is_address(host: str) -> bool:
    """True if a host in its normal form is an IP address."""
    return _normal_address(host) is not None


def clean(name: str) -> str:
    """A name safe to show on a terminal: control characters are written as escapes."""
    if name.isprintable():
        return name
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


@cache
def _suffixes() -> TLDExtract:
    """The public suffixes. Built when it is first needed, as that takes a moment."""
    from tldextract import TLDExtract

    # With the bundled list of suffixes: by default tldextract asks the network and writes to disk.
    return TLDExtract(cache_dir=None, suffix_list_urls=())


@lru_cache(HOSTS_REMEMBERED)
def registered_domain(host: str) -> str:
    """The registered domain of a host: the host itself if it has none."""
    host = normal_host(host)
    found = _suffixes().extract_str(host)
    return f"{found.domain}.{found.suffix}" if found.domain and found.suffix else host
