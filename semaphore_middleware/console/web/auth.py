"""Who may look, and who may steer."""

from __future__ import annotations

import hmac
import ipaddress
import re
from urllib.parse import urlsplit

from semaphore_middleware.errors import SettingsError


class Guard:
    """`host` is where the page's server listens, `token` what lets people steer; None: nobody."""

    def __init__(self, host: str, token: str | None) -> None:
        # Headers of browsers carry nothing else unharmed.
        if token is not None and not re.fullmatch(r"[!-~]+", token):
            raise SettingsError("the token: allowed are letters, digits and signs, and no spaces")
        self._token = token
        self._loopback = is_loopback(host)
        self._host = host

    @property
    def steering(self) -> bool:
        return self._token is not None

    def may_look(self, host: str | None) -> bool:
        """By the Host header. A strange site whose name was made to lead to this machine must not
        read what only this machine's users are to see (DNS rebinding); its name gives it away.
        """
        if not self._loopback:
            return True
        name = _host_of(host)
        return name is not None and (name == self._host or is_loopback(name))

    def may_steer(self, authorization: str | None, origin: str | None, host: str | None) -> bool:
        """By the token; and no other site may try, even if its visitor has told it the token."""
        if self._token is None:
            return False
        if origin is not None and (not host or urlsplit(origin).netloc != host):
            return False
        said = (authorization or "").encode("utf-8", "surrogateescape")
        return hmac.compare_digest(said, f"Bearer {self._token}".encode())


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_of(header: str | None) -> str | None:
    """The name in a Host header. The port may be another: a tunnel's other end."""
    try:
        return urlsplit(f"//{header}").hostname if header else None
    except ValueError:
        return None
