"""A fair semaphore in Redis, and what makes Scrapy ask it.

The names here need no Scrapy. With Scrapy, one line of settings is enough:
`ADDONS = {"semaphore_middleware.addon.SemaphoreAddon": 500}`.
"""

from semaphore_middleware.core.admin import Admin
from semaphore_middleware.core.permit import Permit
from semaphore_middleware.core.semaphore import FairSemaphore
from semaphore_middleware.errors import (
    AcquireTimeoutError,
    ClosedError,
    HostDownError,
    PermitLostError,
    SemaphoreError,
    ServerRefusedError,
    ServerUnreachableError,
    SettingsError,
)
from semaphore_middleware.model.feedback import Backoff
from semaphore_middleware.model.inspection import Inspection, Member
from semaphore_middleware.model.limits import Limit
from semaphore_middleware.model.rules import Rule

__all__ = [
    "AcquireTimeoutError",
    "Admin",
    "Backoff",
    "ClosedError",
    "FairSemaphore",
    "HostDownError",
    "Inspection",
    "Limit",
    "Member",
    "Permit",
    "PermitLostError",
    "Rule",
    "SemaphoreError",
    "ServerRefusedError",
    "ServerUnreachableError",
    "SettingsError",
]
