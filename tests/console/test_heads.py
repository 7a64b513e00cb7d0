"""Connections whose request does not come in time are closed, at the page and the metrics."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from urllib.parse import urlsplit

import pytest

from semaphore_middleware import FairSemaphore
from semaphore_middleware.console import node_metrics
from semaphore_middleware.console import server as pages
from tests.console.pages import TOKEN, serving
from tests.console.scrapes import addresses
from tests.support.crawls import Log, Patch
from tests.support.servers import RedisServer
from tests.support.times import TIMEOUT_S

Place = Callable[[RedisServer, Log], AbstractAsyncContextManager[str]]


@asynccontextmanager
async def at_page(server: RedisServer, _: Log) -> AsyncIterator[str]:
    async with serving(server) as page:
        yield f"{page.url}metrics"


@asynccontextmanager
async def at_metrics(server: RedisServer, caplog: Log) -> AsyncIterator[str]:
    caplog.set_level("INFO")
    async with FairSemaphore(server.url, metrics=0):
        yield addresses(caplog.text)[0]


async def trickle(writer: asyncio.StreamWriter) -> None:
    """Send a head byte by byte, without an end."""
    while True:
        await asyncio.sleep(0.05)
        writer.write(b"x")


@pytest.mark.parametrize("place", [at_page, at_metrics])
@pytest.mark.parametrize("head", [b"", b"GET", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nA: b"])
async def test_a_head_that_does_not_come_ends_the_connection(
    server: RedisServer,
    monkeypatch: Patch,
    caplog: Log,
    capfd: pytest.CaptureFixture[str],
    place: Place,
    head: bytes,
) -> None:
    for module in (pages, node_metrics):
        monkeypatch.setattr(module, "HEAD_TIMEOUT_S", 0.2)
    async with place(server, caplog) as url:
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(head)
        trickling = asyncio.create_task(trickle(writer)) if head else None
        async with asyncio.timeout(TIMEOUT_S):
            with suppress(ConnectionError):
                await reader.read()
        if trickling is not None:
            trickling.cancel()
        writer.close()
    assert "Traceback" not in caplog.text + capfd.readouterr().err


async def test_a_body_that_does_not_come_ends_the_request(
    server: RedisServer, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(pages, "HEAD_TIMEOUT_S", 0.2)
    async with serving(server) as page:
        parts = urlsplit(page.url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        head = (
            f"POST /actions HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {TOKEN}\r\n"
            "Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
        )
        writer.write(head.encode())
        async with asyncio.timeout(TIMEOUT_S):
            assert b" 408 " in await reader.readline()
        writer.close()


@pytest.mark.parametrize("place", [at_page, at_metrics])
@pytest.mark.parametrize(
    "head", [b"GET /metrics HTTP/1.0", b"GET /nowhere HTTP/1.0", b"nonsense", b"G E T / HTTP/9.z"]
)
async def test_no_answer_names_the_versions_of_libraries(
    server: RedisServer, caplog: Log, place: Place, head: bytes
) -> None:
    async with place(server, caplog) as url:
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(b"%b\r\nHost: %b\r\n\r\n" % (head, parts.netloc.encode()))
        async with asyncio.timeout(TIMEOUT_S):
            answer = await reader.read()
        writer.close()
    named = [line for line in answer.splitlines() if line.lower().startswith(b"server:")]
    assert {line.strip() for line in named} <= {b"Server: scrapy-semaphore"}
    assert named or b"HTTP/1." not in answer
