"""docs/politeness.md: ten hosts behind one meter of starts are crawled as it says there."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from lab.demo.judging import JudgingSite, Visit, Work, response
from lab.simulation.sites import Meter
from tests.docs.pages import blocks
from tests.support.blocking import result_of
from tests.support.scrapy_process import ScrapyProcess
from tests.support.servers import RedisServer

HOSTS = [f"shop-{number}.shops.example" for number in range(10)]
STARTS_PER_S, AT_ONCE = 5.0, 5
ANSWER_S = 0.1
PAGES = 60
SETTINGS = """
BOT_NAME = "shops"
SPIDER_MODULES = ["shops"]
ADDONS = {{"semaphore_middleware.SemaphoreAddon": 500}}
SEMAPHORE_REDIS_URL = {url!r}
DOWNLOAD_DELAY = 0
"""
SPIDER = """
from scrapy import Spider


class Shops(Spider):
    name = "shops"
    start_urls = {urls}

    def parse(self, response):
        yield {{"url": response.url}}
"""


class Platform(JudgingSite):
    """Many hosts, whose requests one meter counts."""

    def __init__(self) -> None:
        super().__init__()
        self._meter = Meter(((0.0, STARTS_PER_S),), burst=AT_ONCE)
        self._since = time.monotonic()

    def begin(self, visit: Visit) -> Work:
        is_refused = self._meter.refuses(time.monotonic() - self._since) is not None
        answer = response("Slow down.", 429) if is_refused else response("<title>A shop</title>")
        return asyncio.get_running_loop().call_later(ANSWER_S, visit.answer, answer)


def crawl(settings: str, pages: int, directory: Path, server: RedisServer) -> list[int]:
    """Crawl so many pages of all hosts with these settings. Returns the answers' statuses."""
    urls = [f"http://{HOSTS[number % len(HOSTS)]}/{number}" for number in range(pages)]
    (directory / "settings.py").write_text(SETTINGS.format(url=server.url) + settings)
    (directory / "shops.py").write_text(SPIDER.format(urls=urls))
    (directory / "scrapy.cfg").write_text("[settings]\ndefault = settings\n")
    site = Platform()
    port = result_of(site.listen())
    log, proxy = directory / "log", f"http://127.0.0.1:{port}"
    with ScrapyProcess(
        "crawl", "shops", directory=directory, log_file=log, http_proxy=proxy
    ) as node:
        assert node.wait() == 0, node.log
    return [visit.status for visit in site.visits]


@pytest.mark.slow
def test_a_platform_named_alone_is_paced_as_one_site(tmp_path: Path, server: RedisServer) -> None:
    (example,) = [
        block.text
        for block in blocks()
        if block.page == "docs/politeness.md" and ".shops.example" in block.text
    ]
    statuses = crawl(example, PAGES, tmp_path, server)
    assert statuses.count(200) == PAGES
    assert statuses.count(429) <= PAGES // 3  # with each host a site: more than PAGES
