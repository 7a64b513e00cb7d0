"""Whole crawls of several sites: a full one does not block the others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from redis import Redis

from lab.demo.judging import Visit
from lab.demo.site import ExampleSite
from tests.crawler.conftest import HOST, StartScrapy, in_a_thread, start_together
from tests.support.servers import wait_until

FULL, FREE = HOST, "localhost"


class HalfClosedSite(ExampleSite):
    """Answers pages of one host only once it is `open`."""

    open = False

    async def _page(self, visit: Visit) -> bytes:
        while not self.open and visit.host == FULL:  # noqa: ASYNC110 - set by a thread
            await asyncio.sleep(0.01)
        return await super()._page(visit)


SEVERAL = """
from scrapy import Request, Spider

class Several(Spider):
    name = "several"

    async def start(self):
        for url in self.urls.split():
            yield Request(url)

    def parse(self, response):
        yield from response.follow_all(css="a")
"""


@pytest.mark.slow
def test_a_full_site_does_not_block_others(
    scrapy: StartScrapy, client: Redis, tmp_path: Path
) -> None:
    (tmp_path / "several.py").write_text(SEVERAL)
    site = HalfClosedSite(pages=80, latency=0.01)
    with in_a_thread(site):
        full = [f"http://{FULL}:{site.port}/page/{number}" for number in range(1, 41)]
        urls = " ".join([*full, f"http://{FREE}:{site.port}/"])
        limits = ("-s", "CONCURRENT_REQUESTS_PER_DOMAIN=2", "-s", "CONCURRENT_REQUESTS=4")
        command = ("runspider", "several.py", "-a", f"urls={urls}", *limits)
        nodes = start_together(scrapy, client, 2, command, name="full")
        wait_until(lambda: not site.record(FREE).missed)
        record = site.record(FULL)
        assert (record.now, record.pages.total()) == (2, 2)
        site.open = True
        assert [node.finishes() for node in nodes] == [True] * 2
        for host in (FULL, FREE):
            assert site.record(host).missed == []
            assert site.record(host).twice == []
            assert site.record(host).most <= 2
