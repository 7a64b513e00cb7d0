"""Sites' answers to requests of httpx and requests count as those to a crawl's requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from email.utils import formatdate
from typing import Any

import httpx
import pytest
import requests

from semaphore_middleware import (
    AcquireTimeoutError,
    ClosedError,
    FairSemaphore,
    ServerRefusedError,
    SettingsError,
    SyncSemaphore,
    clients,
)
from semaphore_middleware.clients import BACKOFF_CODES
from semaphore_middleware.clients.httpx import AsyncSemaphoreTransport, SemaphoreTransport
from semaphore_middleware.clients.requests import SemaphoreAdapter
from semaphore_middleware.core.observer import RefusalReported
from semaphore_middleware.core.permit import Permit
from semaphore_middleware.model.feedback import Backoff
from tests.clients.test_clients import (
    HOST,
    Opens,
    async_httpx,
    each_client,
    session_of,
    sync_httpx,
    with_requests,
)
from tests.support.crawls import Log, Patch
from tests.support.nodes import Recorder, eventually
from tests.support.servers import RedisServer, free_port
from tests.support.site import Site
from tests.support.times import ENDLESS_S, TIMEOUT_S

BACKOFF = Backoff(start=ENDLESS_S, most=10 * ENDLESS_S)
HASTY = Backoff(start=0.001, most=ENDLESS_S, down_after=0.0)
"""Soon down or blocked; the pauses grow until a request comes during one."""
ASKED_S = 5 * ENDLESS_S
AFTER = {"Retry_After": f"{ASKED_S:.0f}"}
QUOTA = {"RateLimit_Remaining": "0", "RateLimit_Reset": f"{ASKED_S:.0f}"}
TWO_LINES = {"Retry_After": f"1\r\nRetry-After: {ASKED_S:.0f}"}
SOON, LATER = BACKOFF.start, ASKED_S


@each_client
@pytest.mark.parametrize(
    ("status", "headers", "codes", "pause"),
    [
        (429, {}, BACKOFF_CODES, SOON),
        (429, AFTER, BACKOFF_CODES, LATER),
        (429, TWO_LINES, BACKOFF_CODES, LATER),
        (429, QUOTA, BACKOFF_CODES, LATER),
        (503, {}, BACKOFF_CODES, 0),
        (503, AFTER, BACKOFF_CODES, LATER),
        (200, AFTER, BACKOFF_CODES, 0),
        (200, QUOTA, BACKOFF_CODES, LATER),
        (403, AFTER, BACKOFF_CODES, 0),
        (403, {}, [403], SOON),
        (500, {}, [500], 0),
        (509, {}, [509], SOON),
        (407, QUOTA, BACKOFF_CODES, 0),
        (407, {}, [407], SOON),
        (429, AFTER, [503], 0),
        (429, AFTER, [], 0),
        (200, QUOTA, [], 0),
    ],
)
async def test_a_refusal_or_a_named_time_pauses_the_site_for_all_nodes(
    server: RedisServer,
    site: Site,
    opened: Opens,
    status: int,
    headers: dict[str, str],
    codes: Sequence[int],
    pause: float,
) -> None:
    path = f"/status/{status}"
    site.headers_of[path] = headers
    async with (
        FairSemaphore(server.url) as other,
        opened(server, backoff_codes=codes, backoff=BACKOFF) as get,
    ):
        assert await get(site.url(f"/redirect{path}")) == status
        await eventually(lambda: server.members() == {})
        left = (await other.admin.inspect(HOST)).backoff_left
        assert pause - TIMEOUT_S < left <= pause
        if pause:
            for _ in range(10):
                with pytest.raises(AcquireTimeoutError):
                    await other.acquire(HOST, 1, timeout=0)
        else:
            assert await get(site.url("/page/")) == 200


@each_client
@pytest.mark.parametrize("refuses_pages", [True, False])
async def test_a_page_that_is_refused_again_pauses_no_site_that_refuses_pages(
    server: RedisServer, site: Site, opened: Opens, refuses_pages: bool, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(Permit, "refuses_pages", refuses_pages)
    monkeypatch.setattr(clients, "PAGES_MAX", 1)
    recorder = Recorder()

    async def is_refusal(path: str) -> bool:
        before = recorder.count(RefusalReported)
        await get(site.url(path))
        await eventually(lambda: server.members() == {})
        return recorder.count(RefusalReported) > before

    async with opened(server, backoff=HASTY, observers=[recorder]) as get:
        assert not await is_refusal("/page/")
        assert await is_refusal("/status/429")
        assert await is_refusal("/status/429"), "no other request was answered since"
        await get(site.url("/page/"))
        for _ in range(2):
            assert await is_refusal("/status/429") is not refuses_pages
        site.headers_of["/status/429"] = {"Retry_After": "0"}
        assert await is_refusal("/status/429") is not refuses_pages
        assert await is_refusal("/status/429/other"), "the first time; the page before is forgotten"
        await get(site.url("/page/"))
        assert await is_refusal("/status/429")
        assert await is_refusal("/status-once/429")
        await get(site.url("/status-once/429"))
        site.visits.clear()
        assert await is_refusal("/status-once/429"), "it was answered since"
        assert await is_refusal("/status/429")
        await get(site.url("/page/"))
        site.headers_of["/status/429"] = AFTER
        assert await is_refusal("/status/429"), "it names a time"


@each_client
async def test_requests_that_wait_for_a_permit_wait_for_the_end_of_the_pause(
    server: RedisServer, site: Site, opened: Opens
) -> None:
    site.headers_of["/status/429"] = AFTER
    async with opened(server, backoff=BACKOFF) as get:
        gets = [asyncio.ensure_future(get(site.url("/status/429"))) for _ in range(4)]
        (done,), waiting = await asyncio.wait(gets, return_when=asyncio.FIRST_COMPLETED)
        assert done.result() == 429
        await eventually(lambda: server.members() == {HOST: (0, 3)})
        assert len(site.visits) == 1
        if opened is async_httpx:
            for each in waiting:
                each.cancel()
    ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(end) for end in ends} <= {asyncio.CancelledError, ClosedError}


NO_RESPONSE = (httpx.TransportError, requests.ConnectionError, requests.Timeout)


@each_client
async def test_connections_that_are_closed_and_certificates_count_as_no_failure(
    server: RedisServer, site: Site, opened: Opens
) -> None:
    async with opened(server, backoff=HASTY) as get:
        for url in (site.url("/drop"), site.url("/page/", "localhost").replace("http", "https")):
            for _ in range(9):
                with pytest.raises(NO_RESPONSE):
                    await get(url)


async def test_only_requests_without_a_proxy_count_as_failed(server: RedisServer) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    async with FairSemaphore(server.url, backoff=HASTY) as semaphore:
        proxied = httpx.AsyncHTTPTransport(proxy=nowhere)
        transport = AsyncSemaphoreTransport(semaphore, 1, transport=proxied)
        async with httpx.AsyncClient(transport=transport) as client:
            for _ in range(9):
                with pytest.raises(httpx.ConnectError):
                    await client.get("http://localhost/")
    with session_of(server, backoff=HASTY) as session:
        session.proxies = {"http": nowhere}
        for _ in range(9):
            with pytest.raises(requests.ConnectionError):
                await asyncio.to_thread(session.get, "http://localhost/", timeout=TIMEOUT_S)


async def test_a_stream_reports_its_answer_when_it_is_closed(
    server: RedisServer, site: Site
) -> None:
    site.headers_of["/status/429"] = AFTER
    async with FairSemaphore(server.url, backoff=BACKOFF) as semaphore:
        transport = AsyncSemaphoreTransport(semaphore, 2)
        async with httpx.AsyncClient(transport=transport) as client:
            async with client.stream("GET", site.url("/status/429")) as response:
                assert response.status_code == 429
            await eventually(lambda: server.members() == {})
            assert (await semaphore.admin.inspect(HOST)).backoff_left > ENDLESS_S


@each_client
async def test_a_time_that_is_not_credible_is_ignored_with_one_line(
    server: RedisServer, site: Site, opened: Opens, caplog: Log
) -> None:
    site.headers_of["/page/"] = QUOTA | {"RateLimit_Reset": formatdate(time.time() - 1e6)}
    async with opened(server, backoff=BACKOFF) as get:
        for _ in range(3):
            assert await get(site.url("/page/")) == 200
    (line,) = [r.getMessage() for r in caplog.records if "is ignored" in r.getMessage()]
    assert HOST in line
    assert "RateLimit-Reset" in line


@pytest.mark.parametrize("codes", [429, ["many"], [99]])
def test_codes_that_are_none_are_refused(codes: Any) -> None:
    semaphore, sync_semaphore = FairSemaphore("redis://unused"), SyncSemaphore("redis://unused")
    for make in (
        lambda: AsyncSemaphoreTransport(semaphore, 1, backoff_codes=codes),
        lambda: SemaphoreTransport(sync_semaphore, 1, backoff_codes=codes),
        lambda: SemaphoreAdapter(sync_semaphore, 1, backoff_codes=codes),
    ):
        with pytest.raises(SettingsError, match="backoff_codes"):
            make()


def test_a_semaphore_of_the_wrong_kind_is_refused() -> None:
    semaphore: Any = FairSemaphore("redis://unused")
    sync_semaphore: Any = SyncSemaphore("redis://unused")
    with pytest.raises(SettingsError, match="a FairSemaphore"):
        AsyncSemaphoreTransport(sync_semaphore, 1)
    for make in (SemaphoreTransport, SemaphoreAdapter):
        with pytest.raises(SettingsError, match="a SyncSemaphore"):
            make(semaphore, 1)


async def test_a_semaphore_that_is_closed_or_cannot_be_opened_raises_that(
    server: RedisServer, site: Site
) -> None:
    semaphore = FairSemaphore(server.url)
    async with httpx.AsyncClient(transport=AsyncSemaphoreTransport(semaphore, 1)) as client:
        with pytest.raises(ClosedError):
            await client.get(site.url("/page/"))
    with server.client() as client:
        client.config_set("requirepass", "secret")
    try:
        async with sync_httpx(server) as get, with_requests(server) as get_too:
            for each in (get, get_too):
                with pytest.raises(ServerRefusedError, match="password"):
                    await each(site.url("/page/"))
    finally:
        with server.client(password="secret") as client:
            client.config_set("requirepass", "")
