"""Server processor time and commands, as the server itself counts them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import redis

OWN = "cmdstat_info"  # the benchmark's own questions


@dataclass(frozen=True, slots=True)
class Reading:
    """So far, or between two readings."""

    seconds: float  # of processor time, the kernel's (sockets) with it
    commands: int  # sent, and run by scripts

    @classmethod
    def now(cls, client: redis.Redis) -> Self:
        """Of a server since its start."""
        cpu: Any = client.info("cpu")
        stats: Any = client.info("commandstats")
        commands = sum(entry["calls"] for name, entry in stats.items() if name != OWN)
        return cls(float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"]), commands)

    def __sub__(self, earlier: Reading) -> Reading:
        return Reading(self.seconds - earlier.seconds, self.commands - earlier.commands)


@dataclass(slots=True)
class Meter:
    """What a permit takes while `running`: one entry for each time."""

    client: redis.Redis
    microseconds: list[float] = field(default_factory=list)
    commands: list[float] = field(default_factory=list)

    @contextmanager
    def running(self, permits: int) -> Iterator[None]:
        before = Reading.now(self.client)
        yield
        used = Reading.now(self.client) - before
        self.commands.append(used.commands / permits)
        self.microseconds.append(used.seconds * 1e6 / permits)
