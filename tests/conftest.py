"""What all tests share: servers of their own, and an environment without a server's address."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
import pytest_twisted
from twisted.internet.defer import Deferred

from semaphore_middleware.redis.location import URL_NAMES
from tests.support.nodes import Outside
from tests.support.servers import RedisServer
from tests.support.site import Site

pytest.register_assert_rewrite("tests.support.crawls")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test may reach a server that it did not start, nor this user's embedded one."""
    for name in URL_NAMES:
        monkeypatch.delenv(name, raising=False)
    with tempfile.TemporaryDirectory(prefix="sem-") as directory:
        monkeypatch.setenv("SEMAPHORE_EMBEDDED_DIRECTORY", directory)
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
def outside(server: RedisServer) -> Outside:
    return Outside(server)


@pytest.fixture
def redis_url(server: RedisServer) -> str:
    return server.url


@pytest.fixture
def site() -> Iterator[Site]:
    """A judging site, on the reactor's loop."""
    site = Site()
    in_the_loop(site.start)
    try:
        yield site
    finally:
        in_the_loop(site.stop)


def in_the_loop(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Let the reactor do this; a fixture runs outside of it."""
    from twisted.internet import reactor  # not earlier: pytest-twisted is to choose which one

    done: Deferred[None] = Deferred()

    def start() -> None:
        Deferred.fromFuture(asyncio.ensure_future(work())).chainDeferred(done)

    reactor.callLater(0, start)  # type: ignore[arg-type]  # mypy sees a module there
    pytest_twisted.blockon(done)
