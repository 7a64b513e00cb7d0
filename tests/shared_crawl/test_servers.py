"""Shared crawls find the same servers as the semaphore, and are refused by the same."""

from __future__ import annotations

import re

import pytest

from semaphore_middleware.errors import ServerRefusedError
from semaphore_middleware.shared_crawl.client import CrawlClient, NewRequest
from semaphore_middleware.shared_crawl.crawls import Crawls
from semaphore_middleware.shared_crawl.settings import CrawlSettings
from tests.support.nodes import PASSWORD
from tests.support.servers import Cluster, RedisServer
from tests.support.shared_crawl import PLACES


async def test_shared_crawls_of_all_masters_are_listed() -> None:
    with Cluster() as cluster:
        names = [f"crawl-{number}" for number in range(9)]
        crawls = [CrawlClient(CrawlSettings(cluster.url, name, "node")) for name in names]
        ports = {(await crawl.link.open()).address.port for crawl in crawls}
        assert ports == {node.tcp_port for node in cluster.nodes}
        for crawl in crawls:
            await crawl.join()
        await crawls[0].sync([NewRequest(PLACES.new_place("a", 0), b"data")], working=True)
        await crawls[0].take_starts(None, 1)
        await crawls[0].idle()
        await crawls[0].leave()
        for url in (cluster.url, f"redis://{cluster.nodes[0].address}"):
            assert list(await Crawls(CrawlSettings(url)).survey()) == names
        for crawl in crawls:
            await crawl.drop()
            await crawl.link.close()


@pytest.mark.parametrize("command", ["EVALSHA", "ZRANGE", "SUBSCRIBE"])
async def test_a_command_that_was_renamed_is_named_in_one_line(command: str) -> None:
    with RedisServer("--rename-command", command, "") as server:
        crawl = CrawlClient(CrawlSettings(server.url, "books", "node"))
        with pytest.raises(ServerRefusedError) as refused:
            await crawl.check_rights()
        await crawl.link.close()
        assert re.search(rf"\b{command}\b", str(refused.value))
        assert "\n" not in str(refused.value)


async def test_crawls_are_listed_with_credentials() -> None:
    with RedisServer("--requirepass", PASSWORD) as server:
        settings = CrawlSettings(server.url, redis_credentials=lambda: PASSWORD)
        assert await Crawls(settings).survey() == {}
        with pytest.raises(ServerRefusedError):
            await Crawls(CrawlSettings(server.url)).survey()
