"""How long requests wait for a permit, whoever gives it: a middleware in front of the giver's."""

from __future__ import annotations

import time
from typing import Self, TextIO

from scrapy import Request, signals
from scrapy.crawler import Crawler

POSITION = 940


class Waits:
    """Writes a line a request: when it had its permit, and how long it waited, in seconds."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._asked: dict[Request, float] = {}

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        file = open(crawler.settings["WAITS_FILE"], "w", buffering=1)  # noqa: PTH123, SIM115
        middleware = cls(file)
        crawler.signals.connect(middleware.reached, signals.request_reached_downloader)
        return middleware

    def process_request(self, request: Request) -> None:
        self._asked[request] = time.monotonic()

    def reached(self, request: Request) -> None:
        now = time.monotonic()
        self._file.write(f"{now} {now - self._asked.pop(request)}\n")
