"""From a request to its scope: the name of the semaphore that it needs a permit of."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from scrapy import Request
from scrapy.utils.httpobj import urlparse_cached

from semaphore_middleware.model.hosts import normal_host
from semaphore_middleware.model.validation import not_allowed

if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T")

SKIP_KEY = "semaphore_skip"
SCOPE_KEY = "semaphore_scope"
MAX_SCOPE_CHARS = 1000
"""Of a name in meta: each call sends it, and the server and all nodes keep it."""
HOSTS_REMEMBERED = 1024  # whose scopes need not be found anew, several times for each request


def scope_finder(kind: str) -> Callable[[Request], str | None]:
    """The function that finds a request's scope, for a value of `SEMAPHORE_SCOPE`.

    It returns None for a request that needs no permit, or whose meta `check_meta` refuses: it is
    also called where an error would end the crawl.
    """
    name_of = lru_cache(HOSTS_REMEMBERED)(
        _registered_domain_finder() if kind == "registered_domain" else normal_host
    )

    def scope_of(request: Request) -> str | None:
        meta = request.meta
        if meta.get(SKIP_KEY):
            return None
        scope = meta.get(SCOPE_KEY)
        if scope is not None:
            return scope if _is_name(scope) else None
        # From the URL: after a redirect, `download_slot` in meta is that of the request before.
        host = urlparse_cached(request).hostname
        return name_of(host) if host else None

    return scope_of


def check_meta(request: Request) -> None:
    """Raises `SettingsError`, which names the request, if its meta names no scope that is allowed
    or is not clear about taking none.
    """
    skip, scope = request.meta.get(SKIP_KEY), request.meta.get(SCOPE_KEY)
    if not isinstance(skip, int | None):  # the text "False" is true
        raise not_allowed(skip, f"{request}: meta[{SKIP_KEY!r}]", "True or False")
    if not (scope is None or _is_name(scope)):
        shown = scope[:MAX_SCOPE_CHARS] if isinstance(scope, str) else scope
        allowed = f"a text of 1 to {MAX_SCOPE_CHARS} characters"
        raise not_allowed(shown, f"{request}: meta[{SCOPE_KEY!r}]", allowed)


def _is_name(scope: object) -> bool:
    return isinstance(scope, str) and 0 < len(scope) <= MAX_SCOPE_CHARS


def drop_scope_of_other_host(result: T, request: Request) -> T:
    """The result of a request's `fetch`. If it is a request to another host, it loses what it has
    taken over from the meta of the first: redirects copy meta, but that was said of one host.
    """
    if isinstance(result, Request) and _host_of(result) != _host_of(request):
        for key in (SKIP_KEY, SCOPE_KEY):
            if key in result.meta and result.meta[key] == request.meta.get(key):
                del result.meta[key]
    return result


def _host_of(request: Request) -> str:
    return normal_host(urlparse_cached(request).hostname or "")


def _registered_domain_finder() -> Callable[[str], str]:
    from tldextract import TLDExtract

    # With the list of suffixes that it brings: by default it asks the network and writes to disk.
    extract = TLDExtract(cache_dir=None, suffix_list_urls=())

    def registered_domain(host: str) -> str:
        host = normal_host(host)
        return extract.extract_str(host).top_domain_under_public_suffix or host

    return registered_domain
