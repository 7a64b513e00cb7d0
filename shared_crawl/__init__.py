"""A scheduler with which many nodes share one crawl. It knows nothing of permits.

Each name is imported at its first use: importing redis-py takes longer than all the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shared_crawl.client import CrawlClient, RunOverError
    from shared_crawl.scheduler import Scheduler
    from shared_crawl.settings import CrawlSettings

__all__ = [
    "CrawlClient",
    "CrawlSettings",
    "RunOverError",
    "Scheduler",
]

_MODULES = {
    "CrawlClient": "shared_crawl.client",
    "CrawlSettings": "shared_crawl.settings",
    "RunOverError": "shared_crawl.client",
    "Scheduler": "shared_crawl.scheduler",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value
