"""Names that stand for no scope: a rule for one of them would hold for no request."""

from __future__ import annotations

from semaphore_middleware.core.admin import Admin
from semaphore_middleware.errors import SettingsError
from semaphore_middleware.model.hosts import ALL, host_within, refuse_url


async def check_name(admin: Admin, verb: str, name: str, every: str = "'*'") -> None:
    """Raise `SettingsError` for a URL or a host with a port, and for 'all' where a verb is meant to
    be for all sites; unless it is the name of a scope in use, or of a rule. `every` is how all
    sites are written.

    Raises `ServerUnreachableError` and `ServerRefusedError`.
    """
    if host_within(name) is None and (name != ALL or verb == "limit"):
        return
    if (await admin.inspect(name)).members or await admin.rule(name) is not None:
        return
    refuse_url(name, repr(name))
    raise SettingsError(f"no scope {name!r} is in use; {every} is for all sites")
