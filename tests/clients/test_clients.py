"""Requests of httpx and requests take a permit of their host, at a site that counts."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Protocol

import httpx
import pytest
import requests

from semaphore_middleware import (
    AcquireTimeoutError,
    FairSemaphore,
    PermitLostError,
    SyncSemaphore,
)
from semaphore_middleware.clients import BACKOFF_CODES
from semaphore_middleware.clients.httpx import AsyncSemaphoreTransport, SemaphoreTransport
from semaphore_middleware.clients.requests import SemaphoreAdapter
from semaphore_middleware.core.observer import PermitLost
from tests.support.nodes import Recorder, eventually
from tests.support.servers import RedisServer, wait_until
from tests.support.site import FIRST_PART, Site
from tests.support.times import TIMEOUT_S

HOST = "127.0.0.1"
Get = Callable[[str], Awaitable[int]]
"""From a URL to the status of the last response, of which the body has been read."""


class Opens(Protocol):
    def __call__(
        self, server: RedisServer, timeout: float | None = None, **options: Any
    ) -> AbstractAsyncContextManager[Get]: ...


@asynccontextmanager
async def async_httpx(
    server: RedisServer,
    timeout: float | None = None,
    backoff_codes: Sequence[int] = BACKOFF_CODES,
    read_timeout: float = TIMEOUT_S,
    **options: Any,
) -> AsyncIterator[Get]:
    timeouts = httpx.Timeout(TIMEOUT_S, read=read_timeout)
    async with FairSemaphore(server.url, reuse_window=0, **options) as semaphore:
        transport = AsyncSemaphoreTransport(semaphore, 1, timeout, backoff_codes=backoff_codes)
        async with httpx.AsyncClient(transport=transport, follow_redirects=True) as client:

            async def get(url: str) -> int:
                return (await client.get(url, timeout=timeouts)).status_code

            yield get


@asynccontextmanager
async def sync_httpx(
    server: RedisServer,
    timeout: float | None = None,
    backoff_codes: Sequence[int] = BACKOFF_CODES,
    read_timeout: float = TIMEOUT_S,
    **options: Any,
) -> AsyncIterator[Get]:
    timeouts = httpx.Timeout(TIMEOUT_S, read=read_timeout)
    with SyncSemaphore(server.url, reuse_window=0, **options) as semaphore:
        transport = SemaphoreTransport(semaphore, 1, timeout, backoff_codes=backoff_codes)
        with httpx.Client(transport=transport, follow_redirects=True) as client:
            yield in_thread(lambda url: client.get(url, timeout=timeouts).status_code)


@asynccontextmanager
async def with_requests(
    server: RedisServer,
    timeout: float | None = None,
    read_timeout: float = TIMEOUT_S,
    **options: Any,
) -> AsyncIterator[Get]:
    timeouts = (TIMEOUT_S, read_timeout)
    with session_of(server, timeout, **options) as session:
        yield in_thread(lambda url: session.get(url, timeout=timeouts).status_code)


@contextmanager
def session_of(
    server: RedisServer,
    timeout: float | None = None,
    backoff_codes: Sequence[int] = BACKOFF_CODES,
    **options: Any,
) -> Iterator[requests.Session]:
    with (
        SyncSemaphore(server.url, reuse_window=0, **options) as semaphore,
        requests.Session() as session,
    ):
        adapter = SemaphoreAdapter(semaphore, 1, timeout, backoff_codes)
        session.mount("http://", adapter)
        session.mount("https://", adapter)
        yield session


def in_thread(get: Callable[[str], int]) -> Get:
    return lambda url: asyncio.to_thread(get, url)


each_client = pytest.mark.parametrize("opened", [async_httpx, sync_httpx, with_requests])


@each_client
async def test_all_requests_of_two_nodes_keep_to_the_limit(
    server: RedisServer, site: Site, opened: Opens
) -> None:
    urls = [site.url(f"/take/0.01/{number}") for number in range(5)]
    async with opened(server) as one, opened(server) as other:
        assert {*await asyncio.gather(*map(one, urls), *map(other, urls))} == {200}
    assert (site.most, len(site.visits)) == (1, 10)
    assert server.members() == {}


@each_client
async def test_a_redirect_takes_a_permit_of_its_own_host(
    server: RedisServer, site: Site, opened: Opens
) -> None:
    async with opened(server) as get:
        moved = asyncio.ensure_future(get(site.url(f"/redirect//localhost:{site.port}/slow/")))
        await site.until(lambda: site.hosts["localhost"].now == 1)
        await eventually(lambda: server.members() == {"localhost": (1, 0)})
        assert await get(site.url("/redirect/redirect/page/")) == 200
        site.let_go()
        assert await moved == 200
    assert [visit.host for visit in site.visits] == [HOST, "localhost", HOST, HOST, HOST]
    assert len({visit.transport for visit in site.visits}) == 2, "connections are used again"
    assert server.members() == {}


@each_client
async def test_an_error_gives_the_permit_back(
    server: RedisServer, site: Site, opened: Opens
) -> None:
    async with opened(server) as get:
        site.headers_of["/large"] = {"Content_Encoding": "gzip"}  # which it is not
        for path in ("/drop", "/drop-midway", "/large"):
            with pytest.raises((httpx.RequestError, requests.RequestException)) as caught:
                await get(site.url(path))
            await eventually(lambda: server.members() == {})
            del caught  # it may keep the response
        for url in ("example.com/x", "/x", "http:///x"):
            with pytest.raises(ValueError, match=url.removeprefix("http://")):
                await get(url)
        assert await get(site.url("/status/503")) == 503
    assert server.members() == {}


@each_client
async def test_a_request_waits_for_its_permit_as_long_as_it_says(
    server: RedisServer, site: Site, opened: Opens
) -> None:
    async with (
        FairSemaphore(server.url) as other,
        opened(server, timeout=0.05) as get,
    ):
        async with other.permit(HOST, 1):
            with pytest.raises(AcquireTimeoutError, match=HOST):
                await get(site.url("/page/"))
        assert site.visits == []
    assert server.members() == {}


@each_client
async def test_a_request_whose_permit_is_lost_raises_that(
    server: RedisServer, site: Site, opened: Opens
) -> None:
    recorder = Recorder()
    async with opened(server, lease=3.0, observers=[recorder]) as get:
        urls = (site.url("/half/"), site.url("/slow/", "localhost"))
        both = asyncio.gather(*map(get, urls), return_exceptions=True)
        await site.until(lambda: site.now == 2)
        server.kill()
        if opened is async_httpx:
            await site.until(lambda: site.now == 0)
        else:  # nobody can stop a thread
            await eventually(lambda: recorder.count(PermitLost) == 2)
            site.let_go()
        assert [type(error) for error in await both] == [PermitLostError, PermitLostError]


async def test_requests_reads_a_body_before_its_hooks_and_ignores_a_redirects(
    server: RedisServer, site: Site
) -> None:
    def check(response: requests.Response, **_: Any) -> None:
        wait_until(lambda: server.members() == {})  # the thread of the semaphore tells it
        response.raise_for_status()

    site.headers_of["/redirect/page/"] = {"Content_Encoding": "gzip"}  # which it is not
    async with with_requests(server) as get:
        assert await get(site.url("/redirect/page/")) == 200
    with session_of(server) as session:
        session.hooks["response"] = [check]
        get = in_thread(lambda url: session.get(url, timeout=TIMEOUT_S).status_code)
        with pytest.raises(requests.HTTPError):
            await get(site.url("/status/503"))
        assert await get(site.url("/page/")) == 200
    assert server.members() == {}


async def test_a_cancelled_request_gives_its_permit_back(server: RedisServer, site: Site) -> None:
    async with async_httpx(server) as get:
        for path in ("/never", "/half/"):
            request = asyncio.ensure_future(get(site.url(path)))
            await site.until(lambda: site.now == 1)
            request.cancel()
            with pytest.raises(asyncio.CancelledError):
                await request
            await site.until(lambda: site.now == 0)
            await eventually(lambda: server.members() == {})


async def test_a_stream_of_httpx_holds_its_permit_until_it_is_closed(
    server: RedisServer, site: Site
) -> None:
    async with FairSemaphore(server.url, reuse_window=0) as semaphore:
        transport = AsyncSemaphoreTransport(semaphore, 1)
        async with httpx.AsyncClient(transport=transport) as client:
            async with client.stream("GET", site.url("/half/")) as response:
                assert await anext(response.aiter_bytes()) == FIRST_PART
                assert server.members() == {HOST: (1, 0)}
            await site.until(lambda: site.now == 0)
            await eventually(lambda: server.members() == {})


async def test_a_stream_of_requests_holds_its_permit_until_it_is_closed(
    server: RedisServer, site: Site
) -> None:
    def work(path: str) -> None:
        with session.get(site.url(path), stream=True, timeout=TIMEOUT_S) as response:
            assert response.raw.read(len(FIRST_PART))
            assert server.members() == {HOST: (1, 0)}

    def close_raw(path: str) -> requests.Response:  # as an io.TextIOWrapper of it does
        response = session.get(site.url(path), stream=True, timeout=TIMEOUT_S)
        assert server.members() == {HOST: (1, 0)}
        response.raw.close()
        return response

    def drop(path: str) -> None:
        session.get(site.url(path), stream=True, timeout=TIMEOUT_S)

    with session_of(server) as session:
        for path in ("/half/", "/page/"):
            await asyncio.to_thread(work, path)
            await site.until(lambda: site.now == 0)
            await eventually(lambda: server.members() == {})
        gc.disable()  # a dropped response needs none
        try:
            for end in (close_raw, drop):
                kept = await asyncio.to_thread(end, "/half/")
                await eventually(lambda: server.members() == {})
                del kept
        finally:
            gc.enable()


async def test_scopes_are_written_as_crawls_write_them_and_a_read_response_is_one(
    server: RedisServer,
) -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        (permit,) = semaphore.permits()
        return httpx.Response(200, text=permit.scope)

    semaphore = FairSemaphore(server.url, reuse_window=0)
    transport = AsyncSemaphoreTransport(semaphore, 1, transport=httpx.MockTransport(answer))
    async with semaphore, httpx.AsyncClient(transport=transport) as client:
        for host, scope in {
            "EXAMPLE.com.": "example.com",
            "[::0:1]": "::1",
            "b\u00fccher.example": "xn--bcher-kva.example",
        }.items():
            assert (await client.get(f"https://{host}:8443/x")).text == scope
            await eventually(lambda: server.members() == {})
