"""Permits for HTTP clients: transports for httpx in `httpx.py`, an adapter for requests in
`requests.py`.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from semaphore_middleware.errors import SettingsError
from semaphore_middleware.model.hosts import normal_host


def scope_of(url: str) -> str:
    """The scope of a request: its host, spelt as in crawls. Raises `SettingsError`."""
    host = urlsplit(url).hostname
    if not host:
        raise SettingsError(f"the URL {url!r} has no host; allowed is one like https://example.com")
    return normal_host(host)
