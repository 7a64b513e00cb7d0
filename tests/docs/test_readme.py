"""README's quickstart: its settings in a new project, and what its commands then print."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lab.demo.judging import Visit
from lab.demo.site import ExampleSite
from tests.crawler.conftest import HOST, in_a_thread, spider_of
from tests.docs.pages import block_of, blocks
from tests.support.scrapy_process import ScrapyProcess
from tests.support.servers import wait_until

pytestmark = pytest.mark.slow

CRAWL, STATUS = "$ scrapy crawl books", "$ scrapy semaphore status"


class WaitingSite(ExampleSite):
    """Answers its first page when two crawls have asked for it, and others when it is `open`."""

    open = False

    async def _page(self, visit: Visit) -> bytes:
        def may_answer() -> bool:
            return self.record(HOST).pages["/"] > 1 if visit.path == "/" else self.open

        while not may_answer():  # noqa: ASYNC110 - `open` is set by another thread
            await asyncio.sleep(0.01)
        return await super()._page(visit)


def table(shown: str) -> list[list[str]]:
    """The cells of what `status` prints, without the times."""
    return [re.sub(r"[\d.]+ s", "TIME", line).split() for line in shown.splitlines()]


def test_quickstart(tmp_path: Path) -> None:
    quickstart = next(b.text for b in blocks() if (b.page, b.kind) == ("README.md", "python"))
    crawl, status, *printed = block_of("README.md", "console").splitlines()
    assert (crawl, status) == (CRAWL, STATUS)

    scrapy = [sys.executable, "-m", "scrapy"]
    subprocess.run([*scrapy, "startproject", "shop"], cwd=tmp_path, check=True)
    project = tmp_path / "shop"
    settings = project / "shop/settings.py"
    settings.write_text(f"{settings.read_text()}\n{quickstart}\n")

    def run(log: str, *arguments: str) -> ScrapyProcess:
        return ScrapyProcess(*arguments, directory=project, log_file=tmp_path / log)

    def shown() -> str:
        with run("status", "semaphore", "status") as process:
            assert process.wait() == 0, process.log
            return process.log.replace(HOST, "example.com")

    site = WaitingSite(20, latency=0)
    with in_a_thread(site):
        (project / "shop/spiders/books.py").write_text(spider_of("books", site.url))
        with run("first", "crawl", "books") as first, run("second", "crawl", "books") as second:
            wait_until(lambda: site.record(HOST).pages["/"] > 1)
            wait_until(lambda: table(shown()) == table("\n".join(printed)))
            site.open = True
            assert [first.wait(), second.wait()] == [0, 0]
        found = site.record(HOST)
        assert (found.most, found.missed) == (2, []), first.log + second.log
