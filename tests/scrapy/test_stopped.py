"""A process that is stopped between its permit and the first byte of its request."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.core.downloader.handlers.http11 import HTTP11DownloadHandler
from scrapy.http import Response

from semaphore_middleware import FairSemaphore
from tests.support.crawls import ADD_ON, scrapy
from tests.support.nodes import eventually
from tests.support.servers import RedisServer
from tests.support.site import Site

LEASE_S = 3.0  # the test waits for the end of one
STOPPED = Path("stopped")  # in the process's directory once it has stopped


class Stopping(HTTP11DownloadHandler):
    """Stops the process when a request is written, before its bytes are sent."""

    async def download_request(self, request: Request) -> Response:
        if "slow" in request.url:
            asyncio.get_running_loop().call_soon(stand_still)
        return await super().download_request(request)


def stand_still() -> None:
    """Stop this process, but only the first time."""
    if not STOPPED.exists():
        STOPPED.touch()
        os.kill(os.getpid(), signal.SIGSTOP)


@pytest.mark.slow
async def test_a_request_sent_as_its_process_wakes_is_ended(
    server: RedisServer, site: Site, tmp_path: Path
) -> None:
    """Its bytes are in a buffer, past every check: nothing can call them back."""
    requests = [Request(site.url("/page/connects")), Request(site.url("/slow/waits"))]
    settings: dict[str, Any] = {
        "SEMAPHORE_REDIS_URL": server.url,
        "SEMAPHORE_LEASE": LEASE_S,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 1,
        "DOWNLOAD_HANDLERS": {"http": f"{__name__}.{Stopping.__name__}"},
    }
    async with (
        scrapy(tmp_path, *requests, **ADD_ON, **settings) as crawl,
        FairSemaphore(server.url, lease=LEASE_S) as other,
    ):
        await eventually(lambda: asyncio.to_thread((tmp_path / STOPPED).exists))
        permit = await other.acquire("127.0.0.1", 1)
        assert site.arrivals == ["/page/connects"]
        crawl.send(signal.SIGCONT)
        await site.until(lambda: len(site.arrivals) == 2)
        await site.until(lambda: not site.now)
        permit.release()
        await site.until(lambda: len(site.arrivals) == 3)
        site.let_go()
        assert await crawl.ended() == 0
    assert site.arrivals == ["/page/connects", "/slow/waits", "/slow/waits"]
    assert (crawl.stat("semaphore/lost"), crawl.stat("semaphore/stalls")) == (1, 1)
