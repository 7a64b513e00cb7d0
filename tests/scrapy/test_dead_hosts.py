"""A host that does not respond costs a crawl's other requests nothing."""

from importlib.util import find_spec
from typing import Any

import pytest
from scrapy import Request

from semaphore_middleware.errors import HostDownError
from tests.scrapy.test_closed_connections import Answer, listening
from tests.support.crawls import Crawl, Log, pages
from tests.support.servers import RedisServer, free_port
from tests.support.site import Site

QUEUED = 60
LIMIT = 4
AT_ONCE: dict[str, Any] = {
    "SEMAPHORE_DOWN_AFTER": 0,
    "SEMAPHORE_BACKOFF_START": 0.3,
    "SEMAPHORE_BACKOFF_MAX": 30,
}
ALERT = bytes([21, 3, 3, 0, 2, 2, 40])  # TLS: handshake failure
HANDLERS = {
    name: dict.fromkeys(("http", "https"), f"scrapy.core.downloader.handlers.{path}")
    for name, path in {
        "Twisted": "http11.HTTP11DownloadHandler",
        "aiohttp": "_aiohttp.AiohttpDownloadHandler",
    }.items()
    if find_spec(f"scrapy.core.downloader.handlers.{path.partition('.')[0]}")
}


async def test_a_full_queue_of_a_dead_host(server: RedisServer, site: Site, caplog: Log) -> None:
    nobody = f"http://127.0.0.1:{free_port()}/"
    dead = [Request(f"{nobody}{n}", priority=1) for n in range(QUEUED)]
    alive = pages(site, QUEUED, host="localhost")
    crawl = Crawl(server, *dead, *alive, limit=LIMIT, RETRY_TIMES=2, **AT_ONCE)
    of_same_node = Crawl(server, alive[0], limit=LIMIT, RETRY_TIMES=2, **AT_ONCE)
    await crawl.finished()
    await of_same_node.finished()
    assert of_same_node.stat("semaphore/failed_at_once") == 0, "each crawl counts its own"
    assert len(crawl.spider.responses) == QUEUED, "of the site that is alive"
    errors = [type(error) for error in crawl.spider.failures]
    assert len(errors) == QUEUED
    of_down = errors.count(HostDownError)
    assert of_down == crawl.stat("semaphore/failed_at_once") > QUEUED / 2
    assert crawl.stat("semaphore/hosts_down") == 1
    tried = crawl.stat("downloader/exception_count") - of_down
    assert tried < 2 * LIMIT + 5, "each pause costs one attempt"
    retried = "retry/reason_count/semaphore_middleware.errors.HostDownError"
    assert crawl.stat(retried) == 0
    said = [message for message in caplog.messages if "is down. It has not responded" in message]
    assert len(said) == 1
    assert server.members() == {}


@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.parametrize(
    ("scheme", "answer", "is_down"),
    [
        ("http", Answer(reads=False), True),
        ("http", Answer(reads=False, resets=True), True),
        ("http", Answer(), True),
        ("http", Answer(resets=True), True),
        ("https", Answer(), True),
        ("https", Answer(resets=True), True),
        ("https", Answer(ALERT), True),
        ("http", Answer(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\na"), False),
    ],
)
async def test_it_is_down_however_it_closes(
    handler: str, scheme: str, answer: Answer, is_down: bool, server: RedisServer
) -> None:
    async with listening(answer) as port:
        requests = [Request(f"{scheme}://127.0.0.1:{port}/{n}") for n in range(10)]
        settings: dict[str, Any] = {
            "DOWNLOAD_HANDLERS": HANDLERS[handler],
            "SEMAPHORE_BACKOFF_MAX": 0.02,
        }
        crawl = Crawl(server, *requests, SEMAPHORE_DOWN_AFTER=0, **settings)
        await crawl.finished()
    assert crawl.stat("semaphore/hosts_down") == is_down
