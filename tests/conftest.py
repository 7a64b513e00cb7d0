"""What all tests share: servers of their own, and an environment without a server's address."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest

from tests.servers import RedisServer

@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test may reach a server that it did not start, nor the embedded one that this user runs."""
    monkeypatch.delenv("REDIS_URL", raising=False)
    with tempfile.TemporaryDirectory(prefix="sem-") as directory:
        monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
        yield


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server, new for each test."""
    server = RedisServer().start()
    try:
        yield server
    finally:
        server.remove()


@pytest.fixture
def redis_url(server: RedisServer) -> str:
    return server.url
