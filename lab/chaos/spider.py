"""The spider of a chaos run's nodes, which say who they are and note what only they can know."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, Self
from urllib.parse import urlsplit

from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.http import Response

BEAT_S = 0.1  # between two looks at how late the event loop is
LATE_S = 0.3  # as late as this is no longer a busy moment


class Pages(Spider):
    """Follows the links of the judging site's pages, and notes each page that is done."""

    name = "pages"

    def __init__(self, urls: str, **kwargs: Any) -> None:
        super().__init__(start_urls=urls.split(), **kwargs)

    async def start(self) -> AsyncIterator[Request]:
        for url in self.start_urls:
            yield Request(url)  # filtered: every node yields them

    def parse(self, response: Response) -> Iterator[Request]:
        page = json.loads(response.body)
        end = time.monotonic() + page["compute"]
        while time.monotonic() < end:
            pass  # keeps the event loop from everything else
        for link in page["links"]:
            yield response.follow(link)
        # Only now: a page whose links were not queued has not arrived.
        notes = self.crawler.get_extension(Notes)
        assert notes is not None
        notes.write(
            "page", urlsplit(response.url).netloc.partition(":")[0], urlsplit(response.url).path
        )


class Notes:
    """An extension that writes into this node's file; each line at once, for a kill may follow."""

    def __init__(self, crawler: Crawler) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._file = os.open(crawler.settings["CHAOS_NOTES"], flags)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        notes = cls(crawler)
        crawler.signals.connect(notes._opened, signals.spider_opened)
        return notes

    def write(self, what: str, *facts: Any) -> None:
        os.write(self._file, json.dumps([what, *facts]).encode() + b"\n")

    def _opened(self) -> None:
        self._beat(time.monotonic())

    def _beat(self, expected: float) -> None:
        """Note from when to when the process stood still, whatever the reason."""
        now = time.monotonic()
        if now - expected > LATE_S:
            self.write("still", expected - BEAT_S, now)
        asyncio.get_running_loop().call_later(BEAT_S, self._beat, now + BEAT_S)


class Signature:
    """A downloader middleware that tells the site which node this is.

    Not USER_AGENT: a request that goes back to the others takes its headers along.
    """

    def __init__(self, node: str) -> None:
        self._node = node

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler.settings["CHAOS_NODE"])

    def process_request(self, request: Request) -> None:
        request.headers["User-Agent"] = self._node
