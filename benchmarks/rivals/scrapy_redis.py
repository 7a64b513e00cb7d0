"""scrapy-redis, with the settings that its documentation names for a crawl that is resumed."""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec
from typing import Any

DISTRIBUTION, MODULE = "scrapy-redis", "scrapy_redis"


def is_installed() -> bool:
    return find_spec(MODULE) is not None


def version() -> str:
    return f"{DISTRIBUTION} {metadata.version(DISTRIBUTION)}"


def settings(url: str) -> dict[str, Any]:
    return {
        "SCHEDULER": f"{MODULE}.scheduler.Scheduler",
        "SCHEDULER_PERSIST": True,
        "DUPEFILTER_CLASS": f"{MODULE}.dupefilter.RFPDupeFilter",
        "REDIS_URL": url,
    }
