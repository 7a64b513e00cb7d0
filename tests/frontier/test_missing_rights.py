"""A right that a shared crawl lacks is found at the start, and named in one line."""

from __future__ import annotations

import re

import pytest
from redis import Redis

from semaphore_middleware.errors import ServerRefusedError
from semaphore_middleware.frontier.client import CrawlClient
from semaphore_middleware.frontier.scripts import NODES_SCRIPTS, script
from tests.redis.test_rights import commands_in, rights_of
from tests.support.nodes import in_asyncio

ALL = commands_in(*map(script, NODES_SCRIPTS))


def user(client: Redis, *changes: str) -> CrawlClient:
    """A node whose user may do what a node must, but for some changes."""
    rights = rights_of("frontier", client)
    client.execute_command("ACL", "SETUSER", "node", "reset", "on", ">p", *rights, *changes)  # type: ignore[no-untyped-call]
    path = client.connection_pool.connection_kwargs["path"]
    return CrawlClient(f"unix://node:p@{path}", "books", "one")


async def refusal(crawl: CrawlClient) -> str:
    with pytest.raises(ServerRefusedError) as refused:
        await crawl.check_rights()
    await crawl.disconnect()
    assert "\n" not in str(refused.value)
    return str(refused.value)


@in_asyncio
async def test_these_rights_are_enough(client: Redis) -> None:
    crawl = user(client)
    await crawl.check_rights()
    await crawl.join()
    await crawl.disconnect()
    assert not [key for key in client.scan_iter() if b"trial" in key]


@pytest.mark.parametrize("command", ["info", "evalsha", "script", "subscribe", *sorted(ALL)])
@in_asyncio
async def test_a_command_that_is_missing(client: Redis, command: str) -> None:
    line = await refusal(user(client, f"-{command}"))
    assert "does not permit this user what is needed: " in line
    assert re.search(rf"\b{re.escape(command)}\b", line, re.IGNORECASE)


@in_asyncio
async def test_keys_and_channels_that_are_missing(client: Redis) -> None:
    assert "begin with '{crawl:books}'" in await refusal(user(client, "resetkeys", "~{crawls:*"))
    line = await refusal(user(client, "resetchannels", "&{crawls:*"))
    assert "begin with '{crawl:books}'" in line


def test_each_command_of_a_script_is_tried() -> None:
    assert {name.lower() for name in re.findall(r"{ '([A-Z]+)'", script("try_rights"))} == ALL
