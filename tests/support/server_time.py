"""A server's processor time and commands, as it counts them itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import redis

from tests.support.servers import RedisServer

OWN = "cmdstat_info"  # the benchmark's own questions


@dataclass(frozen=True, slots=True)
class Reading:
    """What a server has done so far, or between two readings."""

    seconds: float  # of processor time, the kernel's (sockets) with it
    commands: int  # sent, and run by scripts

    @classmethod
    def now(cls, client: redis.Redis) -> Self:
        """Of a server since its start."""
        cpu: Any = client.info("cpu")
        stats: Any = client.info("commandstats")
        seconds = float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])
        commands = sum(entry["calls"] for name, entry in stats.items() if name != OWN)
        return cls(seconds, commands)

    def __sub__(self, earlier: Reading) -> Reading:
        return Reading(self.seconds - earlier.seconds, self.commands - earlier.commands)


@contextmanager
def metered(found: list[float], permits: int, server: RedisServer) -> Iterator[None]:
    """Add to `found` what a permit takes of the server's processor time, in microseconds."""
    with server.client() as client:
        before = Reading.now(client)
        yield
        found.append((Reading.now(client) - before).seconds * 1e6 / permits)
