"""Nodes on Windows with a server elsewhere, as far as Linux can show it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY
from tests.support.servers import RedisServer
from tests.support.site import Site

pytestmark = pytest.mark.slow

SPIDER = """
from scrapy import Spider


class Pages(Spider):
    name = "pages"
    custom_settings = {
        "ADDONS": {"semaphore_middleware.addon.SemaphoreAddon": 500},
        "CONCURRENT_REQUESTS_PER_DOMAIN": 2,
        "TELNETCONSOLE_ENABLED": False,
    }

    def parse(self, response):
        print(response.url)
"""
SHARED = (
    "-s",
    "SCHEDULER=semaphore_middleware.Scheduler",
    "-s",
    "CRAWL=books",
    "-o",
    "items.jsonl",
)


@asynccontextmanager
async def scrapy(
    directory: Path, url: str, *arguments: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    windows = REPOSITORY / "tests/support/windows"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "scrapy", *arguments, "-s", f"REDIS_URL={url}"),
        cwd=directory,
        env={**os.environ, "PYTHONPATH": f"{windows}{os.pathsep}{REPOSITORY}"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def output(directory: Path, url: str, *arguments: str) -> tuple[int | None, str]:
    async with scrapy(directory, url, *arguments) as process:
        printed, _ = await process.communicate()
        return process.returncode, printed.decode()


@pytest.mark.parametrize("options", [(), SHARED], ids=["plain", "shared"])
async def test_two_nodes_crawl(
    server: RedisServer, site: Site, tmp_path: Path, options: Sequence[str]
) -> None:
    urls = [site.url(f"/page/{number}") for number in range(20)]
    (tmp_path / "spider.py").write_text(f"{SPIDER}\n    start_urls = {urls}\n")
    node = ("runspider", "spider.py", *options)
    ended = await asyncio.gather(*(output(tmp_path, server.url, *node) for _ in "ab"))
    for status, printed in ended:
        assert status == 0, printed
        assert "Traceback" not in printed, printed
    assert len(site.arrivals) == (20 if options else 40)
    assert len(set(site.arrivals)) == 20
    assert site.most <= 2


async def test_without_a_server_there_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "spider.py").write_text(SPIDER)
    status, printed = await output(tmp_path, "", "runspider", "spider.py")
    assert status == 1
    (line,) = [line for line in printed.splitlines() if "ERROR" in line]
    assert "Windows has no embedded server: set REDIS_URL (or SEMAPHORE_REDIS_URL)" in line
    assert "Traceback" not in printed


async def test_commands(server: RedisServer, tmp_path: Path) -> None:
    status, printed = await output(tmp_path, server.url, "semaphore", "limit", "a.example", "2")
    assert (status, "limit 2" in printed) == (0, True), printed
    status, printed = await output(tmp_path, server.url, "semaphore", "status")
    assert (status, "a.example" in printed) == (0, True), printed
    async with scrapy(tmp_path, server.url, "semaphore", "serve", "--port", "0") as process:
        assert process.stdout is not None
        assert b"http://" in await process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert b"Traceback" not in await process.stdout.read()
