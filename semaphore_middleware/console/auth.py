"""Access to the page: checks of the Host header, of origins and of the token."""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket

from semaphore_middleware.errors import SettingsError

SERVER = "scrapy-semaphore"  # each answer's Server header, in place of the libraries' versions
HEAD_TIMEOUT_S = 10.0  # to send a head, after the connection or the last answer; to send a body


HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::\d*)?", re.IGNORECASE)
"""A Host header: an IPv6 address or a name. Any port is accepted: a tunnel may end at another."""
PRIVATE_SUFFIXES = (
    *(".localhost", ".local", ".home.arpa", ".test"),  # RFC 6761, 6762, 8375
    *(".internal", ".intranet", ".private", ".corp", ".home", ".lan"),  # RFC 6762, appendix G
    ".svc",  # Kubernetes
)
"""The public DNS has no names below these."""


class Auth:
    """Checks requests' headers.

    `host` is the address of the page's server. Changes need `token`; with None, nobody can make
    any. Raises `SettingsError` for a token that is too short, or does not fit into a header.
    """

    def __init__(self, host: str, token: str | None) -> None:
        if token is not None and not re.fullmatch(r"[!-~]{16,}", token):
            raise SettingsError(
                "the token: allowed are at least 16 letters, digits and signs, without spaces"
            )
        self._token = token
        self._is_loopback = host == "localhost" or _is_loopback(host)
        names = {"localhost", host, socket.gethostname()}
        if not self._is_loopback:
            names.add(socket.getfqdn())  # may ask the DNS
        self._names = {name.lower() for name in names}

    @property
    def allows_changes(self) -> bool:
        """Changes are allowed if there is a token."""
        return self._token is not None

    def may_see(self, host: str | None) -> bool:
        """Check the Host header: it must name this machine.

        This stops DNS rebinding: a web page whose host name resolves to this machine could
        otherwise have the browser read this process's pages. The browser sends the page's name in
        the Host header. On loopback only names of this machine are accepted; elsewhere also any IP
        address, and names outside the public DNS: no outsider can own these. A request without the
        header is accepted, except on loopback: browsers always send it.
        """
        if not host:
            return not self._is_loopback
        match = HOST.fullmatch(host)
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

    def refusal(
        self, authorization: str | None, origin: str | None, host: str | None
    ) -> str | None:
        """The reason why this request may change nothing; None: it may. No other site's page may
        ask, even with the token.
        """
        if origin not in (None, f"http://{host}", f"https://{host}"):
            return (
                f"the page is from {origin!r}, but the request is for the host {host!r}. A proxy "
                "must pass on the Host header"
            )
        given = (authorization or "").encode("utf-8", "surrogateescape")
        if self._token and hmac.compare_digest(given, f"Bearer {self._token}".encode()):
            return None
        return "the token is wrong"


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _is_private(name: str) -> bool:
    """True for a name outside the public DNS. A single label is a service in docker compose, or a
    machine in the same domain.
    """
    return "." not in name or name.endswith(PRIVATE_SUFFIXES)
