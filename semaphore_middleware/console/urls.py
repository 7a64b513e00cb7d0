"""URLs instead of names of scopes: a rule for a URL would hold for no request."""

from __future__ import annotations

from semaphore_middleware.core.admin import Admin
from semaphore_middleware.errors import SettingsError
from semaphore_middleware.model.hosts import host_within


async def refuse_url(admin: Admin, name: object) -> None:
    """Raise `SettingsError` for a URL, unless it is the name of a scope in use, or of a rule.

    Raises `ServerUnreachableError` and `ServerRefusedError`.
    """
    if not isinstance(name, str) or "://" not in name or (host := host_within(name)) is None:
        return
    if (await admin.inspect(name)).members or await admin.rule(name) is not None:
        return
    raise SettingsError(f"{name!r} is a URL, and a site goes by its host: write {host!r}")
