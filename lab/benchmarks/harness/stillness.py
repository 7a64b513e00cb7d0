"""How long a server stands still for others: measured by a process that pings it."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

PAUSE_S = 0.0005  # between two pings
SPAWN = multiprocessing.get_context("spawn")


def _ping(url: str, worst_s: Any) -> None:
    with redis.Redis.from_url(url) as client:
        while True:
            begin = time.perf_counter()
            client.ping()
            worst_s.value = max(worst_s.value, time.perf_counter() - begin)
            time.sleep(PAUSE_S)


class Stillness:
    """The longest wait for a reply to a ping, since it was last asked for."""

    def __init__(self, worst_s: Any) -> None:
        self._worst_s = worst_s

    def take_ms(self) -> float:
        """That wait, in milliseconds. The next one is counted from now."""
        worst_s: float = self._worst_s.value
        self._worst_s.value = 0.0
        return 1000 * worst_s


@contextmanager
def watching(url: str) -> Iterator[Stillness]:
    """Ping the server in the `with`."""
    worst_s = SPAWN.Value("d", 0.0)
    process = SPAWN.Process(target=_ping, args=(url, worst_s), daemon=True)
    process.start()
    try:
        yield Stillness(worst_s)
    finally:
        process.terminate()
        process.join()
