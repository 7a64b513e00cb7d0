"""A fair semaphore in Redis, and its add-on for Scrapy.

`SemaphoreAddon`, `SemaphoreMiddleware` and `Scheduler` are for Scrapy; the other names work
without it. With Scrapy, one line of settings is enough:
`ADDONS = {"semaphore_middleware.SemaphoreAddon": 500}`.

Each name is imported at its first use: Scrapy imports this package for each of its commands, and
importing redis-py takes longer than all the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semaphore_middleware.addon import SemaphoreAddon
    from semaphore_middleware.core.permit import Permit, PermitSet
    from semaphore_middleware.core.semaphore import FairSemaphore
    from semaphore_middleware.core.sync import SyncSemaphore
    from semaphore_middleware.errors import (
        AcquireTimeoutError,
        ClosedError,
        HostDownError,
        PermitLostError,
        SemaphoreError,
        ServerRefusedError,
        ServerUnreachableError,
        SettingsError,
        SiteBlockedError,  # feature: blocked
    )
    from semaphore_middleware.middleware import SemaphoreMiddleware
    from semaphore_middleware.model.feedback import Backoff
    from semaphore_middleware.model.inspection import Inspection, Member, ServerState
    from semaphore_middleware.model.limits import Limit, LimitDict
    from semaphore_middleware.model.rules import Rule
    from semaphore_middleware.operators.admin import Admin
    from semaphore_middleware.shared_crawl.scheduler import Scheduler  # feature: shared_crawl

__all__ = [
    "AcquireTimeoutError",
    "Admin",
    "Backoff",
    "ClosedError",
    "FairSemaphore",
    "HostDownError",
    "Inspection",
    "Limit",
    "LimitDict",
    "Member",
    "Permit",
    "PermitLostError",
    "PermitSet",
    "Rule",
    "Scheduler",  # feature: shared_crawl
    "SemaphoreAddon",
    "SemaphoreError",
    "SemaphoreMiddleware",
    "ServerRefusedError",
    "ServerState",
    "ServerUnreachableError",
    "SettingsError",
    "SiteBlockedError",  # feature: blocked
    "SyncSemaphore",
]

_MODULES = {  # of all names except the errors
    "Admin": "operators.admin",
    "Backoff": "model.feedback",
    "FairSemaphore": "core.semaphore",
    "Inspection": "model.inspection",
    "Limit": "model.limits",
    "LimitDict": "model.limits",
    "Member": "model.inspection",
    "Permit": "core.permit",
    "PermitSet": "core.permit",
    "Rule": "model.rules",
    "Scheduler": "shared_crawl.scheduler",  # feature: shared_crawl
    "SemaphoreAddon": "addon",
    "SemaphoreMiddleware": "middleware",
    "ServerState": "model.inspection",
    "SyncSemaphore": "core.sync",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name == "__version__":
        from importlib.metadata import version  # slow to import

        return version("scrapy-semaphore")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value
