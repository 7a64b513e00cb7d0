"""From a request to its scope: the name of the semaphore that it needs a permit of."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from scrapy.utils.httpobj import urlparse_cached

from semaphore_middleware.errors import SettingsError
from semaphore_middleware.model.hosts import normal_host

if TYPE_CHECKING:
    from scrapy import Request

HOSTS_REMEMBERED = 1024  # whose scopes need not be found anew, several times for each request


def scope_finder(kind: str) -> Callable[[Request], str | None]:
    """The function that finds a request's scope, for a value of `SEMAPHORE_SCOPE`.

    It returns None for a request that needs no permit.
    """
    name_of = lru_cache(HOSTS_REMEMBERED)(
        _registered_domain_finder() if kind == "registered_domain" else normal_host
    )

    def scope_of(request: Request) -> str | None:
        meta = request.meta
        if meta.get("semaphore_skip"):
            return None
        scope = meta.get("semaphore_scope")
        if scope is not None:
            if not isinstance(scope, str):
                raise SettingsError(f"meta['semaphore_scope'] = {scope!r}: allowed is a text")
            return scope
        # From the URL: after a redirect, `download_slot` in meta is that of the request before.
        host = urlparse_cached(request).hostname
        return name_of(host) if host else None

    return scope_of


def _registered_domain_finder() -> Callable[[str], str]:
    from tldextract import TLDExtract

    # With the list of suffixes that it brings: by default it asks the network and writes to disk.
    extract = TLDExtract(cache_dir=None, suffix_list_urls=())

    def registered_domain(host: str) -> str:
        host = normal_host(host)
        return extract.extract_str(host).top_domain_under_public_suffix or host

    return registered_domain
