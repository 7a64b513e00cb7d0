"""The history keeps each robots.txt that nodes obeyed, once until it changes."""

from __future__ import annotations

import random

from semaphore_middleware import Admin, FairSemaphore
from semaphore_middleware.core.observer import RobotsTxtObeyed
from semaphore_middleware.report.keys import HistoryKeys
from semaphore_middleware.report.reader import read_history
from tests.support.servers import RedisServer

KEYS = HistoryKeys("semaphore")
SITE = "https://example.com"
DAY_S = 86400.0


async def note(server: RedisServer, *files: RobotsTxtObeyed) -> None:
    """Have a node fetch these files, one after the other."""
    for file in files:
        node = FairSemaphore(server.url, history=DAY_S)
        async with node:
            node.emit(RobotsTxtObeyed, file.origin, file.status, file.problem, file.text)


async def test_each_file_is_kept_once(server: RedisServer) -> None:
    first = RobotsTxtObeyed(SITE, 200, "", b"Disallow: /x")
    second = RobotsTxtObeyed(SITE, 0, "it hung up", b"")
    await note(server, first, first, second, first, RobotsTxtObeyed("http://b", 404, "", b""))
    async with Admin(server.url) as admin:
        files = (await read_history(admin, "example.com", DAY_S)).robotstxt
    assert [(one.origin, one.status, one.problem, one.text) for one in files] == [
        (SITE, 200, "", "Disallow: /x"),
        (SITE, 0, "it hung up", ""),
        (SITE, 200, "", "Disallow: /x"),
    ]
    assert [one.until for one in files] == [files[1].at, files[2].at, None]


async def test_the_files_of_a_host_are_kept_as_long_as_its_history(server: RedisServer) -> None:
    key = KEYS.of_files("example.com")
    file = RobotsTxtObeyed(SITE, 200, "", b"Disallow: /x")
    with server.client() as client:
        await note(server, file)
        assert 0 < client.ttl(key) <= DAY_S, "it has no history yet"
        node = FairSemaphore(server.url, history=DAY_S)
        async with node, node.permit("example.com", 1):
            pass
        assert DAY_S < client.ttl(key) <= 2 * DAY_S
        await note(server, file)
        assert DAY_S < client.ttl(key) <= 2 * DAY_S


async def test_a_large_file_is_not_kept(server: RedisServer) -> None:
    text = random.Random(7).randbytes(20_000)
    await note(server, RobotsTxtObeyed(SITE, 200, "", text))
    with server.client() as client:
        assert not client.exists(KEYS.of_files("example.com"))
