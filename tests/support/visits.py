"""The spider of the tests' crawls, which makes given requests and keeps their results. And a
middleware that asks for another page before.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any, Self

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.http.request import NO_CALLBACK
from twisted.python.failure import Failure


class Visits(Spider):
    """Yields the requests that it is given, and keeps their responses and failures."""

    name = "visits"

    def __init__(self, requests: Iterable[Request] | str = (), **kwargs: Any) -> None:
        """The requests; on a command line as JSON, a list of their arguments."""
        super().__init__(**kwargs)
        if isinstance(requests, str):
            requests = [Request(**fields) for fields in json.loads(requests)]
        self.requests = requests
        self.responses: list[Response] = []
        self.failures: list[BaseException] = []

    async def start(self) -> AsyncIterator[Any]:
        for request in self.requests:
            request.errback = request.errback or self.failed
            yield request

    async def parse(self, response: Response) -> Any:
        self.responses.append(response)

    def failed(self, failure: Failure) -> None:
        assert failure.value is not None
        self.failures.append(failure.value)


class Fetches:
    """A downloader middleware that fetches pages of its own."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    def fetch(self, url: str, *, obeys: bool = True) -> Coroutine[Any, Any, Response]:
        assert self._crawler.engine is not None
        request = Request(url, callback=NO_CALLBACK, meta={"dont_obey_robotstxt": not obeys})
        return self._crawler.engine.download_async(request)


class FetchesFirst(Fetches):
    """Before a request, fetches the page that `meta["first"]` names."""

    async def process_request(self, request: Request) -> None:
        if "first" in request.meta:
            await self.fetch(request.meta["first"])
