"""The spider of the tests' crawls: asks for what it is told to and remembers what came of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

from scrapy import Request, Spider
from scrapy.http import Response
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
