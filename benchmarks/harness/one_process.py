"""The least that can be done: one process, `asyncio.Semaphore`, and an HTTP client.

`python -m benchmarks.harness.one_process LIMIT PAGES URL`, to which a number is added.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult


class Loopback(AbstractResolver):
    """Every name is this machine's."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host, host="127.0.0.1", port=port, family=family, proto=0, flags=0
            )
        ]

    async def close(self) -> None:
        pass


async def fetch(limit: int, pages: int, address: str) -> None:
    semaphore = asyncio.Semaphore(limit)

    async def page(number: int) -> None:
        async with semaphore, session.get(f"{address}{number}") as response:
            await response.read()

    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(resolver=Loopback())
    ) as session:
        await asyncio.gather(*(page(number) for number in range(pages)))


def crawl(limit: int, pages: int, address: str) -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.harness.one_process",
        str(limit),
        str(pages),
        address,
    ]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    asyncio.run(fetch(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
