"""The pytest plugin of tests/ and lab/: a clean environment, a server, and a judging site."""

from __future__ import annotations

import asyncio
import gc
import inspect
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import pytest
import pytest_twisted
import redis.utils
from hypothesis import HealthCheck, settings
from twisted.internet.defer import Deferred

from semaphore_middleware.core import semaphore
from semaphore_middleware.link import environment as surroundings
from semaphore_middleware.link import lease
from semaphore_middleware.model.options import NodeOptions
from tests.support import scrapy_process
from tests.support.environment import clean_environment
from tests.support.nodes import Outside, in_asyncio
from tests.support.paths import REPOSITORY
from tests.support.servers import RedisServer, SharedServer
from tests.support.site import Site
from tests.support.times import ENDLESS_S, TIMEOUT_S

if TYPE_CHECKING:
    from tests.support.browser import Chromium

pytest.register_assert_rewrite("tests.support.crawls")

PACKAGES_ON_REACTOR = {"shared_crawl", "scrapy", "observers", "console"}
"""Folders of tests whose coroutines run on the reactor's loop, as Scrapy's do."""

# On a busy machine anything may take long.
settings.register_profile("no times", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no times")


@pytest.hookimpl(trylast=True)  # pytest itself may heed the user's colours and width
def pytest_configure(config: pytest.Config) -> None:
    environment = ExitStack()
    environment.enter_context(clean_environment())
    config.add_cleanup(environment.close)
    # redis-py reads the package's metadata for each connection: a third of what a server costs.
    redis.utils.get_lib_version = cache(redis.utils.get_lib_version)
    surroundings.MARKS_OF_CONTAINERS = ()  # logs are the same in a container
    # On a busy machine a process may stand still for longer than by default.
    lease.LONGEST_CALL_S = TIMEOUT_S
    maker: Any = semaphore
    maker.NodeOptions = partial(NodeOptions, lease=ENDLESS_S)
    if input_of_worker := getattr(config, "workerinput", None):
        scrapy_process.use_server(input_of_worker["fork_server"])


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """For a worker of pytest-xdist."""
    node.workerinput["fork_server"] = scrapy_process.start_server()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests be coroutines. Those that use the site, and those of some packages, run on the
    reactor's loop, others on a loop of their own. Also limits the time of all but slow tests.
    """
    from tests.support.crawls import within  # not earlier: Scrapy imports the reactor's parts

    on_reactor = within(TIMEOUT_S)

    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            packages = item.path.relative_to(REPOSITORY).parts
            is_on_reactor = "site" in item.fixturenames or not PACKAGES_ON_REACTOR.isdisjoint(
                packages
            )
            item.obj = (on_reactor if is_on_reactor else in_asyncio)(item.obj)
        elif item.config.getoption("timeout") is None and not item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


def pytest_collection_finish() -> None:
    """Make garbage collection, a seventh of the tests' cost, rarer, and limit it to objects made
    from now on.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)


@pytest.fixture(autouse=True)
def embedded_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test may reach this user's embedded server, nor another test's."""
    with tempfile.TemporaryDirectory(prefix="sem-") as directory:
        monkeypatch.setenv("SEMAPHORE_EMBEDDED_DIRECTORY", directory)
        yield


@pytest.fixture(scope="session")
def shared_server() -> Iterator[SharedServer]:
    """This worker's server, for all tests that need one."""
    shared = SharedServer()
    try:
        yield shared
    finally:
        shared.remove()


@pytest.fixture
def server(shared_server: SharedServer) -> Iterator[RedisServer]:
    """A server as if it were new. Each key that a test leaves there must have an expiry, except
    those without one on purpose.
    """
    yield shared_server.lend()
    kept = shared_server.take_back()
    assert not kept, f"keys without an expiry: {kept}"


@pytest.fixture
def outside(server: RedisServer) -> Outside:
    return Outside(server)


@pytest.fixture
def redis_url(server: RedisServer) -> str:
    return server.url


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    """One browser for all; each test has a page with a storage of its own."""
    from tests.support.browser import Chromium  # not earlier: some run without aiohttp

    chromium = Chromium()
    try:
        yield chromium.start()
    finally:
        chromium.remove()


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
    """Run a coroutine on the reactor's loop: fixtures run outside of it."""
    from twisted.internet import reactor  # not earlier: pytest-twisted is to choose which one

    done: Deferred[None] = Deferred()

    def start() -> None:
        Deferred.fromFuture(asyncio.ensure_future(work())).chainDeferred(done)

    reactor.callLater(0, start)  # type: ignore[arg-type]  # mypy sees a module there
    pytest_twisted.blockon(done)
