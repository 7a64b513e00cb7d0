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

SEMAPHORES = {"steindamm": "steindamm", "py-redis-semaphore": "redis_semaphore"}
"""Distributions to what they are imported as."""
SCRAPY_REDIS = {"scrapy-redis": "scrapy_redis"}


def missing(distributions: dict[str, str]) -> list[str]:
    return [name for name, module in distributions.items() if find_spec(module) is None]


def check_installed(distributions: dict[str, str]) -> None:
    if names := missing(distributions):
        sys.exit(f"{', '.join(names)} not installed; `make bench` does that")


def versions(distributions: dict[str, str]) -> str:
    return ", ".join(f"{name} {metadata.version(name)}" for name in distributions)


# Semaphores -------------------------------------------------------------------------------------


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


class Owners(WithRedis):
    """A sorted set of owners with leases, and its defaults: it waits by BLPOP, takes the time from
    the server and renews at lease/3.
    """

    def __init__(self, place: Place) -> None:
        from redis_semaphore import Semaphore, SemaphoreConfig

        super().__init__(place)
        config = SemaphoreConfig(name=place.scope, limit=place.limit, lock_timeout=place.lease)
        self._semaphore = Semaphore(self.redis, config)

    async def acquire(self) -> None:
        await self._semaphore.aacquire()

    async def release(self) -> None:
        await self._semaphore.arelease()


PEERS = tuple(map(Contender.of, SEMAPHORES, (Tokens, Owners)))


# scrapy-redis -----------------------------------------------------------------------------------


def scrapy_redis(url: str) -> dict[str, Any]:
    """The settings that its documentation names for a crawl that is resumed."""
    return {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "SCHEDULER_PERSIST": True,
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
        "REDIS_URL": url,
    }
