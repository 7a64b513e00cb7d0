"""Sites that close connections without a response, in crawls."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from scrapy import Request

from tests.support.crawls import Crawl, Log
from tests.support.servers import RedisServer
from tests.support.site import Site

PAGES = 30
AT_ONCE: dict[str, Any] = {"SEMAPHORE_DOWN_AFTER": 0, "SEMAPHORE_BACKOFF_MAX": 30}


def some_closed(site: Site, count: int) -> list[Request]:
    """Pages of which each second one closes the connection, in this order."""
    urls = [site.url(f"/{kind}{n}") for n in range(count) for kind in ("page/", "drop?")]
    return [Request(url, priority=-number) for number, url in enumerate(urls)]


async def test_closings_between_answers_are_refusals(
    server: RedisServer, site: Site, caplog: Log
) -> None:
    caplog.set_level("INFO")
    requests = [*some_closed(site, 3), Request(site.url("/page/last"), priority=-9)]
    ours: dict[str, Any] = {"SEMAPHORE_BACKOFF_TIMES": 2, "SEMAPHORE_BACKOFF_MAX": 30}
    crawl = Crawl(server, *requests, limit=1, RETRY_TIMES=0, **ours)
    await crawl.finished()
    assert len(crawl.spider.responses) == 4
    assert len(crawl.spider.failures) == 3
    assert (crawl.stat("semaphore/refused"), crawl.stat("retry/count")) == (3, 2)
    assert crawl.stat("semaphore/backoffs") == 3
    assert "first refusal: a closed connection for <GET" in caplog.text
    assert "closed the connection of GET /drop?2 without a response: all nodes pause" in caplog.text


async def test_one_page_that_always_closes_pauses_nobody(server: RedisServer, site: Site) -> None:
    one = [Request(site.url("/drop"), dont_filter=True, priority=-2 * n) for n in range(9)]
    others = [Request(site.url(f"/page/{n}"), priority=-2 * n - 1) for n in range(9)]
    crawl = Crawl(server, *one, *others, limit=1, RETRY_TIMES=0, **AT_ONCE)
    await crawl.finished()
    assert (len(crawl.spider.responses), len(crawl.spider.failures)) == (9, 9)
    assert crawl.stat("semaphore/backoffs") == crawl.stat("semaphore/refused") == 0


async def test_what_is_posted_over_a_connection_that_may_be_old_counts_for_nothing(
    server: RedisServer, site: Site
) -> None:
    requests = [request.replace(method="POST") for request in some_closed(site, 9)]
    crawl = Crawl(server, *requests, limit=1, RETRY_TIMES=0, **AT_ONCE)
    await crawl.finished()
    assert (len(crawl.spider.responses), len(crawl.spider.failures)) == (9, 9)
    assert crawl.stat("semaphore/backoffs") == crawl.stat("semaphore/refused") == 0


@dataclass(frozen=True)
class Answer:
    """What becomes of a connection."""

    text: bytes = b""
    reads: bool = True
    resets: bool = False

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.reads:
            await reader.read(9999)
        writer.write(self.text)
        if self.resets:
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        else:
            writer.close()


@asynccontextmanager
async def listening(answer: Answer) -> AsyncIterator[int]:
    listener = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with listener:
        yield listener.sockets[0].getsockname()[1]


async def test_a_response_that_breaks_off_in_its_headers_has_begun(server: RedisServer) -> None:
    async with listening(Answer(b"HTTP/1.1 200 OK\r\nConte")) as port:
        requests = [Request(f"http://127.0.0.1:{port}/{n}") for n in range(10)]
        crawl = Crawl(server, *requests, SEMAPHORE_DOWN_AFTER=0)
        await crawl.finished()
    assert crawl.stat("semaphore/hosts_down") == 0
