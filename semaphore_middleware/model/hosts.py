"""Hosts: their normal form, and what the name of a limit may be."""

from __future__ import annotations

import re
from typing import Any

from semaphore_middleware.errors import SettingsError


def parse_name(name: Any, where: str) -> str:
    """Check the name of a limit: a scope, which stays as written, or '*.' and a host.

    Raises `SettingsError`; `where` says in it where the name was set.
    """
    if not isinstance(name, str) or not normal_host(name):
        raise SettingsError(f"{where}: the host is empty; allowed is a host or '*.host'")
    if name.startswith("*."):
        suffix = normal_host(name[2:])
        if not suffix or "*" in suffix:
            raise SettingsError(f"{where}: allowed is a host, or '*.' and a host")
        return f"*.{suffix}"
    if "*" in name:
        raise SettingsError(
            f"{where}: a '*' may only stand first, as in '*.example.org'; the limit of all "
            "other hosts is CONCURRENT_REQUESTS_PER_DOMAIN"
        )
    return name


def host_within(name: str) -> str | None:
    """The host in a URL, or in a host with a port, which users take for the name of a scope."""
    url = re.match(r"https?://(?:[^\s/@]*@)?([^\s/:?#\[]+)", name, re.IGNORECASE)
    url = url or re.fullmatch(r"(localhost|[^\s/:]+\.[^\s/:]+):\d+", name, re.IGNORECASE)
    return normal_host(url[1]) if url else None


def normal_host(host: str) -> str:
    """A host as URLs have it: lower case, no dot at the end, IDNA where it is not ASCII."""
    host = host.strip().lower().rstrip(".")
    if not host.isascii():
        try:
            return host.encode("idna").decode("ascii")
        except UnicodeError:
            return host  # not a host, but the name of a scope
    return host


def encoded(name: str) -> bytes:
    """A name as it is sent to the server."""
    return name.encode("utf-8", "surrogatepass")
