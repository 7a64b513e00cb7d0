"""Requests of httpx and requests fail at once at a site that they found to be down or blocked."""

from __future__ import annotations

import pytest

from semaphore_middleware import FairSemaphore, HostDownError, SiteBlockedError
from tests.clients.test_clients import HOST, Opens, each_client
from tests.clients.test_refused_clients import HASTY, NO_RESPONSE
from tests.support.nodes import eventually
from tests.support.servers import RedisServer, free_port
from tests.support.site import Site


@each_client
async def test_good_answers_count_so_that_some_refusals_block_no_site(
    server: RedisServer, site: Site, opened: Opens
) -> None:
    async with (
        FairSemaphore(server.url) as other,
        opened(server, backoff=HASTY) as get,
    ):

        async def is_blocked() -> bool:
            await eventually(lambda: server.members() == {})
            return (await other.admin.inspect(HOST)).blocked_for is not None

        for path in (*4 * ["/status/429"], "/page/", *4 * ["/status/429"], "/robots.txt"):
            await get(site.url(path))
        assert not await is_blocked()
        await get(site.url("/status/429"))
        assert await is_blocked()
        with pytest.raises(SiteBlockedError, match="refused all requests"):
            while True:
                await get(site.url("/status/429"))


@each_client
async def test_a_site_that_refuses_connections_or_takes_too_long_is_down(
    server: RedisServer, site: Site, opened: Opens
) -> None:
    async with opened(server, backoff=HASTY, read_timeout=0.01) as get:
        for url in (f"http://localhost:{free_port()}/", site.url("/never")):
            for _ in range(5):
                with pytest.raises(NO_RESPONSE):
                    await get(url)
            with pytest.raises(HostDownError, match="is down"):
                while True:  # a try after each pause
                    with pytest.raises(NO_RESPONSE):
                        await get(url)
