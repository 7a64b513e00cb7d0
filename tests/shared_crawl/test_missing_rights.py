"""A right that a shared crawl lacks is found at the start, and named in one line."""

from __future__ import annotations

import re

import pytest
from redis import Redis

from semaphore_middleware.errors import ServerRefusedError
from semaphore_middleware.shared_crawl.client import NODES_SCRIPTS, SCRIPTS, CrawlClient
from semaphore_middleware.shared_crawl.crawls import Crawls
from semaphore_middleware.shared_crawl.settings import CrawlSettings
from tests.support.rights import commands_in, rights_of

ALL = commands_in(*(SCRIPTS[name] for name in NODES_SCRIPTS))


def user(client: Redis, *changes: str) -> str:
    """The address for a user with the rights of a node, except for some changes."""
    rights = rights_of("frontier", client)
    client.execute_command("ACL", "SETUSER", "node", "reset", "on", ">p", *rights, *changes)  # type: ignore[no-untyped-call]
    return f"unix://node:p@{client.connection_pool.connection_kwargs['path']}"


async def refusal(client: Redis, *changes: str) -> str:
    crawl = CrawlClient(CrawlSettings(user(client, *changes), "books", "one"))
    with pytest.raises(ServerRefusedError) as refused:
        await crawl.check_rights()
    await crawl.link.close()
    assert "\n" not in str(refused.value)
    return str(refused.value)


async def test_each_right_that_is_missing_is_named(client: Redis) -> None:
    for command in ("info", "evalsha", "script", "subscribe", *sorted(ALL)):
        line = await refusal(client, f"-{command}")
        assert "does not permit the user 'node' what is needed: " in line
        assert re.search(rf"\b{re.escape(command)}\b", line, re.IGNORECASE)
    for others in (("resetkeys", "~{crawls:*"), ("resetchannels", "&{crawls:*")):
        assert "begin with '{crawl:books}'" in await refusal(client, *others)


async def test_the_documented_rights_are_enough(client: Redis) -> None:
    crawl = CrawlClient(CrawlSettings(user(client), "books", "one"))
    await crawl.check_rights()
    assert list(client.scan_iter("{crawl:*")) == []
    await crawl.join()
    await crawl.link.close()
    with pytest.raises(ServerRefusedError, match="zcard"):
        await Crawls(CrawlSettings(user(client, "+scan", "+zscan", "-zcard"))).survey()
