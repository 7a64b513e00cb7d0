"""A request's scope: the name of the semaphore that it needs a permit of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from scrapy.utils.httpobj import urlparse_cached

from semaphore_middleware.errors import SettingsError
from semaphore_middleware.model.hosts import normal_host

if TYPE_CHECKING:
    from scrapy import Request


def scope_finder(kind: str) -> Callable[[Request], str | None]:
    """The function from requests to scopes for a `SEMAPHORE_SCOPE`; None: it needs no permit."""
    name_of = _registered_domain_finder() if kind == "registered_domain" else normal_host

    def scope_of(request: Request) -> str | None:
        if request.meta.get("semaphore_skip"):
            return None
        scope = request.meta.get("semaphore_scope")
        if scope is not None:
            if not isinstance(scope, str):
                raise SettingsError(f"meta['semaphore_scope'] = {scope!r}: allowed is a text")
            return scope
        # From the URL: `download_slot` in meta is of the request before a redirect.
        host = urlparse_cached(request).hostname
        return name_of(host) if host else None

    return scope_of


def _registered_domain_finder() -> Callable[[str], str]:
    from tldextract import TLDExtract

    # Its bundled list of suffixes: the network would be asked, and the disk written to, by default.
    extract = TLDExtract(cache_dir=None, suffix_list_urls=())

    def registered_domain(host: str) -> str:
        host = normal_host(host)
        return extract.extract_str(host).top_domain_under_public_suffix or host

    return registered_domain
