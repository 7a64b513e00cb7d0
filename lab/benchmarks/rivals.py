"""Other projects that are compared with this one, each as its own documentation uses it.

They are in the group `bench`, which `make bench` installs.
"""

from __future__ import annotations

import math
import sys
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from lab.benchmarks.harness.contender import Contender, Place, WithRedis

SEMAPHORE, FRONTIER = "steindamm", "scrapy-redis"
"""Their distributions."""


def check_installed(name: str) -> None:
    if find_spec(name.replace("-", "_")) is None:
        sys.exit(f"{name} is not installed; `make bench` does that")


def version_of(name: str) -> str:
    return f"{name} {metadata.version(name)}"


# The semaphore ----------------------------------------------------------------------------------


class Tokens(WithRedis):
    """A list of nameless tokens, taken with BLPOP.

    `expiry` is how long the list lives after its last use, in whole seconds; a token has no lease.
    `max_sleep=0` waits for as long as it takes.
    """

    def __init__(self, place: Place) -> None:
        from steindamm import AsyncRedisSemaphore

        super().__init__(place)
        self._semaphore: Any = AsyncRedisSemaphore(
            connection=self.redis,
            name=place.scope,
            capacity=place.limit,
            expiry=math.ceil(place.lease),
            max_sleep=0,
        )

    async def acquire(self) -> None:
        await self._semaphore.__aenter__()

    async def release(self) -> None:
        await self._semaphore.__aexit__(None, None, None)


PEER = Contender.of(SEMAPHORE, Tokens)


# The frontier -----------------------------------------------------------------------------------


def scrapy_redis(url: str) -> dict[str, Any]:
    """The settings that its documentation names for a crawl that is resumed."""
    return {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "SCHEDULER_PERSIST": True,
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
        "REDIS_URL": url,
    }
