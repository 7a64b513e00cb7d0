"""Hosts: their normal form, and what the name of a limit may be."""

from __future__ import annotations

import re
import socket
from ipaddress import IPv6Address
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
    """A host as URLs have it: lower case, no dot at the end, IDNA where it is not ASCII. All
    spellings of an IP address are one host.
    """
    host = host.strip().lower().rstrip(".")
    if not host.isascii():
        try:
            host = host.encode("idna").decode("ascii")
        except UnicodeError:
            return host  # not a host, but the name of a scope
    return _normal_address(host) or host


def _normal_address(host: str) -> str | None:
    """An IP address in its usual spelling, IPv4 also where it is written as IPv6; None for a name.

    IPv4 is read as the resolver does (`inet_aton`, as in the WHATWG's URL Standard, "IPv4 parser"):
    127.1, 0x7f.1 and 2130706433 are 127.0.0.1. IPv6 is written as in RFC 5952.
    """
    if ":" in host:
        try:
            address = IPv6Address(host.removeprefix("[").removesuffix("]"))
        except ValueError:
            return None
        return str(address.ipv4_mapped or address)
    # Of other texts, `inet_aton` ignores all that follows a blank.
    if host[:1].isdigit() and re.fullmatch(r"[0-9a-fx.]+", host):
        try:
            return socket.inet_ntoa(socket.inet_aton(host))
        except OSError:
            pass
    return None


def encoded(name: str) -> bytes:
    """A name as it is sent to the server."""
    return name.encode("utf-8", "surrogatepass")
