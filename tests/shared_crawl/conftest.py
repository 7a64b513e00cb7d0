"""A shared crawl's server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from semaphore_middleware.shared_crawl import client as crawl_client
from semaphore_middleware.shared_crawl import session
from tests.support.servers import RedisServer
from tests.support.shared_crawl import Node, looking_at, node
from tests.support.times import TIMEOUT_S


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a call may take longer than elsewhere."""
    for module in (crawl_client, session):
        monkeypatch.setattr(module, "CALL_TIMEOUT_S", TIMEOUT_S)
    monkeypatch.setattr(session, "LONGEST_STOP_S", 3 * TIMEOUT_S)


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
