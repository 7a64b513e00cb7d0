"""A scheduler with which many nodes share one crawl. It does not depend on permits.

Each name is imported at its first use, because importing redis-py is slow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semaphore_middleware.shared_crawl.client import CrawlClient, RunOverError
    from semaphore_middleware.shared_crawl.settings import CrawlSettings

__all__ = [
    "CrawlClient",
    "CrawlSettings",
    "RunOverError",
]

_MODULES = {
    "CrawlClient": "semaphore_middleware.shared_crawl.client",
    "CrawlSettings": "semaphore_middleware.shared_crawl.settings",
    "RunOverError": "semaphore_middleware.shared_crawl.client",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value
