"""The names under which visitors may ask this process for what it serves over HTTP."""

from __future__ import annotations

import ipaddress
import re
import socket

HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::\d*)?", re.IGNORECASE)
"""A Host header: an IPv6 address or a name. The port may be another: a tunnel's other end."""
PRIVATE_SUFFIXES = (
    *("localhost", "local", "home.arpa", "test"),  # RFC 6761, 6762, 8375
    *("internal", "intranet", "private", "corp", "home", "lan"),  # RFC 6762, appendix G
    "svc",  # Kubernetes
)
"""Names below these are no names of the public DNS."""


class OwnNames:
    """Accepts a request to `address`, where this process listens, only if its Host header names
    this machine.

    This stops DNS rebinding: a web page whose host name resolves to this machine could otherwise
    have the browser read what this process serves. The browser sends that name in the Host header.
    On loopback only names of this machine are accepted; elsewhere also any IP address, and names
    that the public DNS does not have: no outsider can own these.
    """

    def __init__(self, address: str) -> None:
        self._is_loopback = address == "localhost" or _is_loopback(address)
        names = {"localhost", address, socket.gethostname()}
        if not self._is_loopback:
            names.add(socket.getfqdn())  # may ask the DNS
        self._names = {name.lower() for name in names}

    def includes(self, header: str | None) -> bool:
        """True if this process may answer a request with this Host header.

        A request without one is answered where others may reach it: browsers always send one.
        """
        if not header:
            return not self._is_loopback
        match = HOST.fullmatch(header)
        if match is None:
            return False
        name = (match[1] or match[2]).lower().removesuffix(".")
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return not self._is_loopback and _is_private(name)
        return address.is_loopback or not self._is_loopback


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _is_private(name: str) -> bool:
    """True if the public DNS has no such name. A single label is a service in docker compose, or a
    machine in the same domain.
    """
    return "." not in name or name.endswith(tuple(f".{suffix}" for suffix in PRIVATE_SUFFIXES))
