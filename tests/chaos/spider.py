"""The spider of the chaos runs: goes where the judging site's pages send it."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

from scrapy import Request, Spider
from scrapy.http import Response

from tests.chaos.recorder import Recorder


class Pages(Spider):
    """Follows the links of the judging site's pages, and records each one that is done."""

    name = "pages"

    def __init__(self, urls: str, **kwargs: Any) -> None:
        super().__init__(start_urls=urls.split(), **kwargs)

    async def start(self) -> AsyncIterator[Request]:
        for url in self.start_urls:
            yield Request(url)  # filtered: every node yields them

    def parse(self, response: Response) -> Iterator[Request]:
        page = json.loads(response.body)
        recorder = self.crawler.get_extension(Recorder)
        assert recorder is not None
        if seconds := page["compute"]:
            began = time.monotonic()
            compute(seconds)
            recorder.note("computed", seconds=time.monotonic() - began)
        for link in page["links"]:
            yield response.follow(link)
        # Only now: a page whose links were not queued has not arrived.
        parts = urlsplit(response.url)
        recorder.note("page", host=parts.hostname or "", path=parts.path)


def compute(seconds: float) -> None:
    """Keep the event loop from everything else."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
