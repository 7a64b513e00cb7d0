"""A node that keeps sites full: `python -m benchmarks.harness.other_node URL HOST ...`.

It takes the only permit of each and never gives it back.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from semaphore_middleware import FairSemaphore


async def hold(url: str, hosts: Sequence[str], limit: int) -> None:
    async with FairSemaphore(url) as semaphore:
        await asyncio.gather(*(semaphore.acquire(host, limit) for host in hosts))
        sys.stdout.write("They are all full.\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


@contextmanager
def keeping_full(url: str, hosts: Sequence[str]) -> Iterator[None]:
    """Hold the one permit of each of these hosts, in another process."""
    command = [sys.executable, "-m", "benchmarks.harness.other_node", url, *hosts]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(hold(sys.argv[1], sys.argv[2:], limit=1))
