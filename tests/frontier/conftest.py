"""A shared crawl's server, and the calls that a scheduler makes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from tests.frontier.node import Call, recorded_calls
from tests.support.frontier import looking_at
from tests.support.servers import RedisServer


@pytest.fixture
def client(server: RedisServer) -> Iterator[Redis]:
    """The test's own connection to the server."""
    with looking_at(server) as client:
        yield client


@pytest.fixture
def calls() -> Iterator[list[Call]]:
    """The calls of `CrawlClient.sync`, in their order."""
    with recorded_calls() as calls:
        yield calls
