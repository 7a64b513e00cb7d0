"""A crawl never logs a password, whatever is wrong with it or with its URL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from scrapy import Request

from semaphore_middleware.errors import SettingsError
from tests.support.crawls import Crawl, Log, until
from tests.support.servers import RedisServer, free_port
from tests.support.site import Site

PASSWORD = "s3cr/t@w0rd"
ENCODED = "s3cr%2Ft%40w0rd"
PARTS = ("s3cr", "w0rd")  # of the password, however it is encoded


def assert_no_password(log: str) -> None:
    assert log
    assert not [part for part in PARTS if part in log]


@pytest.fixture
def locked() -> Iterator[RedisServer]:
    """A server that asks for the password."""
    server = RedisServer("--requirepass", PASSWORD, tcp_port=free_port()).start()
    yield server
    server.remove()


async def test_a_server_that_is_not_there(locked: RedisServer, site: Site, caplog: Log) -> None:
    caplog.set_level("DEBUG")
    locked.kill()
    url = f"redis://:{ENCODED}@127.0.0.1:{locked.tcp_port}/0"
    # Nothing tells the crawl that this server started empty, so it would wait for recovery.
    page = Request(site.url("/page/"))
    crawl = Crawl(locked, page, SEMAPHORE_REDIS_URL=url, SEMAPHORE_RECOVERY_WAIT=0)
    await until(lambda: "cannot reach redis://127.0.0.1:" in caplog.text)
    locked.start()
    await crawl.finished()
    assert site.arrivals == ["/page/"]
    assert_no_password(caplog.text)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:not-{encoded}@127.0.0.1:{port}/0",
        "redis://w0rdy:{encoded}@127.0.0.1:{port}/0",
        "redis://127.0.0.1:{port}/0?password=not-{encoded}",
        "unix://:not-{encoded}@{path}",
    ],
)
async def test_a_refused_password(locked: RedisServer, site: Site, caplog: Log, url: str) -> None:
    caplog.set_level("DEBUG")
    url = url.format(encoded=ENCODED, port=locked.tcp_port, path=locked.path)
    await Crawl(locked, Request(site.url("/page/")), SEMAPHORE_REDIS_URL=url).finished()
    (error,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "does not accept this user name and password" in error.getMessage()
    assert error.exc_info is None
    assert site.arrivals == []
    assert_no_password(caplog.text)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:2025/w0rd@localhost:6379/0",  # would be read as port 2025 of localhost
        "redis://:s3crw0rd@localhost/zero",  # would be read as database 0
        "s3cr-w0rd@localhost",
        "redis://localhost/0?password=s3crw0rd&socket_timeout=soon",
    ],
)
async def test_an_unreadable_url(server: RedisServer, site: Site, caplog: Log, url: str) -> None:
    caplog.set_level("DEBUG")
    crawl = Crawl(server, Request(site.url("/page/")), SEMAPHORE_REDIS_URL=url)
    with pytest.raises(SettingsError, match="SEMAPHORE_REDIS_URL") as error:
        await crawl.finished()
    assert site.arrivals == []
    assert_no_password(f"{error.value!r}\n{caplog.text}")
