"""Other projects that are compared with this one, each as its own documentation uses it.

They are the semaphores on PyPI, npm's, and scrapy-redis. PyPI's are in the group `bench`, which
`make bench` installs.
"""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lab.benchmarks.harness.contender import Contender, Place, WithRedis

SEMAPHORES = {
    "steindamm": "steindamm",
    "py-redis-semaphore": "redis_semaphore",
    "redis-rate-limiters": "limiters",
}
"""Distributions to what they are imported as."""
SCRAPY_REDIS = {"scrapy-redis": "scrapy_redis"}


def missing(distributions: dict[str, str]) -> list[str]:
    return [name for name, module in distributions.items() if find_spec(module) is None]


def check_installed(distributions: dict[str, str]) -> None:
    if names := missing(distributions):
        sys.exit(f"{', '.join(names)} not installed; `make bench` does that")


def versions(distributions: dict[str, str]) -> str:
    return ", ".join(f"{name} {metadata.version(name)}" for name in distributions)


# PyPI's -----------------------------------------------------------------------------------------


class Tokens(WithRedis):
    """A list of nameless tokens, taken with BLPOP.

    `expiry` is how long the list lives after its last use, in whole seconds; a token has no lease.
    `max_sleep=0` waits for as long as it takes.
    """

    def __init__(self, place: Place, kind: Any) -> None:
        super().__init__(place)
        self._semaphore = kind(
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


def _steindamm(place: Place) -> Tokens:
    from steindamm import AsyncRedisSemaphore

    return Tokens(place, AsyncRedisSemaphore)


def _rate_limiters(place: Place) -> Tokens:
    from limiters import AsyncSemaphore

    return Tokens(place, AsyncSemaphore)


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

    async def holds(self) -> bool | None:
        status: Any = await self._semaphore.astatus()
        return bool(status.is_owner)


PEERS = tuple(map(Contender.of, SEMAPHORES, (_steindamm, Owners, _rate_limiters)))


# npm's ------------------------------------------------------------------------------------------

NPM = Path(__file__).parent / "npm"
NPM_NAME = "redis-semaphore (npm)"


def npm() -> Sequence[str] | None:
    """The command of npm's, which takes part in contests only; None: it is not installed."""
    node = shutil.which("node")
    if node is None or not (NPM / "node_modules" / "redis-semaphore").is_dir():
        return None
    return [node, str(NPM / "contest.mjs")]


# scrapy-redis -----------------------------------------------------------------------------------


def scrapy_redis(url: str) -> dict[str, Any]:
    """The settings that its documentation names for a crawl that is resumed."""
    return {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "SCHEDULER_PERSIST": True,
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
        "REDIS_URL": url,
    }
