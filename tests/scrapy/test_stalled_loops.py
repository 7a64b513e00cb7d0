"""A callback that blocks the event loop of a crawl, while a request of it is on the wire."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.core.downloader.handlers.http11 import HTTP11DownloadHandler
from scrapy.http import Response

from tests.support.crawls import ADD_ON, scrapy
from tests.support.nodes import eventually
from tests.support.servers import RedisServer
from tests.support.site import Site

LEASE_S = 3.0  # the test waits until some have ended
MAY_BLOCK, BEGUN, DONE = (
    Path("may-block"),
    Path("begun"),
    Path("done"),
)  # in the process's directory
LEASES = 1.75  # for which it blocks; tests/core/test_renewal_thread.py has longer ones


class Handler(HTTP11DownloadHandler):
    """Lets a callback block the loop while a request is on the wire."""

    async def download_request(self, request: Request) -> Response:
        if "slow" in request.url:
            block_on_command(request.meta["blocks_s"])
        return await super().download_request(request)


def block_on_command(seconds: float) -> None:
    if MAY_BLOCK.exists():
        parse_pdf(seconds)
    else:
        asyncio.get_running_loop().call_later(0.01, block_on_command, seconds)


def parse_pdf(seconds: float) -> None:
    BEGUN.touch()
    time.sleep(seconds)
    DONE.touch()


@pytest.mark.processes
async def test_no_other_crawl_gets_its_permit(
    server: RedisServer, site: Site, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "SEMAPHORE_REDIS_URL": server.url,
        "SEMAPHORE_LEASE": LEASE_S,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 1,
        "DOWNLOAD_HANDLERS": {"http": f"{__name__}.{Handler.__name__}"},
    }
    slow = Request(site.url("/slow/on-the-wire"), meta={"blocks_s": LEASES * LEASE_S})
    async with scrapy(tmp_path, slow, **ADD_ON, **settings) as busy:
        await site.until(lambda: site.now == 1)
        (tmp_path / MAY_BLOCK).touch()
        await eventually(lambda: asyncio.to_thread((tmp_path / BEGUN).exists))
        page = Request(site.url("/page/of-another-crawl"))
        async with scrapy(tmp_path, page, **ADD_ON, **settings) as other:
            await eventually(lambda: asyncio.to_thread((tmp_path / DONE).exists))
            assert site.arrivals == ["/slow/on-the-wire"]
            site.let_go()
            assert (await busy.ended(), await other.ended()) == (0, 0)
    assert (site.most, site.arrivals) == (1, ["/slow/on-the-wire", "/page/of-another-crawl"])
    assert busy.stat("semaphore/lost") == 0
    assert busy.stat("semaphore/stalls") >= 1, "a busy machine may add some"
    assert busy.stat("semaphore/loop_stalls") >= LEASES * LEASE_S - 0.5
    assert "parse_pdf (scrapy/test_stalled_loops.py:" in busy.log
