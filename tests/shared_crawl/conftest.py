"""A shared crawl's server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from tests.support.servers import RedisServer
from tests.support.shared_crawl import Node, looking_at, node


@pytest.fixture
def client(server: RedisServer) -> Iterator[Redis]:
    """The test's own connection to the server."""
    with looking_at(server) as client:
        yield client


@pytest.fixture
def one(client: Redis) -> Node:
    return node(client, "one")


@pytest.fixture
def two(client: Redis) -> Node:
    return node(client, "two")
