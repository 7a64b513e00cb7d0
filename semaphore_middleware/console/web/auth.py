"""Who may see the page, and who may change limits from it."""

from __future__ import annotations

import hmac
import re
from urllib.parse import urlsplit

from semaphore_middleware.console.web.own_names import OwnNames
from semaphore_middleware.errors import SettingsError


class Auth:
    """Checks of requests' headers.

    `host` is where the page's server listens. `token` is what changes need; without one nobody can
    make any. Raises `SettingsError` for a token that no header can carry.
    """

    def __init__(self, host: str, token: str | None) -> None:
        if token is not None and not re.fullmatch(r"[!-~]+", token):
            raise SettingsError("the token: allowed are letters, digits and signs, and no spaces")
        self._token = token
        self._names = OwnNames(host)

    @property
    def allows_changes(self) -> bool:
        """Whether there is a token at all."""
        return self._token is not None

    def may_see(self, host: str | None) -> bool:
        """Check the Host header: no strange site's page may read this one through a browser."""
        return self._names.includes(host)

    def may_change(self, authorization: str | None, origin: str | None, host: str | None) -> bool:
        """Check the token, and that no other site's page asks, even if it has learned the token."""
        if self._token is None:
            return False
        if origin is not None and (not host or _netloc_of(origin) != host):
            return False
        given = (authorization or "").encode("utf-8", "surrogateescape")
        return hmac.compare_digest(given, f"Bearer {self._token}".encode())


def _netloc_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None
