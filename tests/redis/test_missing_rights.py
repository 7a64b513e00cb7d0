"""A right that is missing is found at the start, and named in one line."""

from __future__ import annotations

import re

import pytest

from semaphore_middleware import FairSemaphore, ServerRefusedError
from semaphore_middleware.redis.scripts import script
from tests.redis.test_rights import commands_in, rights_of
from tests.support.nodes import in_asyncio
from tests.support.servers import RedisServer


def user(server: RedisServer, *changes: str) -> str:
    """The address for a user who may do what a node must, but for some changes."""
    with server.client() as client:
        rights = rights_of("node", client)
        client.execute_command("ACL", "SETUSER", "node", "reset", "on", ">p", *rights, *changes)
    return f"unix://node:p@{server.path}"


async def refusal(url: str) -> str:
    with pytest.raises(ServerRefusedError) as refused:
        await FairSemaphore(url).open()
    assert "\n" not in str(refused.value)
    return str(refused.value)


@in_asyncio
async def test_these_rights_are_enough(server: RedisServer) -> None:
    semaphore = FairSemaphore(user(server), recovery_wait=0)
    async with semaphore, semaphore.permit("s", 1):
        with server.client() as client:
            assert not [key for key in client.scan_iter() if b"trial" in key]


COMMANDS = (
    *("info", "evalsha", "evalsha_ro", "script", "subscribe", "time", "publish", "del", "hset"),
    *("hget", "hmget", "hgetall", "hlen", "hdel", "pexpire", "pexpireat", "zadd", "zrange", "zrem"),
)


@in_asyncio
async def test_a_command_that_is_missing(server: RedisServer) -> None:
    with server.client() as client:
        is_old = client.info("server")["redis_version"] < "7"
    for command in COMMANDS:
        if command == "evalsha_ro" and is_old:
            continue  # this server does not know it
        line = await refusal(user(server, f"-{command}"))
        assert "does not permit this user what is needed: " in line
        assert re.search(rf"\b{re.escape(command)}\b", line, re.IGNORECASE)


@in_asyncio
async def test_keys_that_are_missing(server: RedisServer) -> None:
    for keys in ("~{semaphores}:*", "~{semaphore}:scope:*"):
        line = await refusal(user(server, "resetkeys", keys))
        assert "does not permit this user what is needed: " in line
        assert "all keys and channels begin with '{semaphore}'" in line


@in_asyncio
async def test_channels_that_are_missing(server: RedisServer) -> None:
    line = await refusal(user(server, "resetchannels", "&{semaphores}:*"))
    assert "all keys and channels begin with '{semaphore}'" in line
    # What a node hears, but not what operators tell all of them.
    line = await refusal(user(server, "resetchannels", "&{semaphore}:node:*"))
    assert re.search(r"the channels are '{semaphore}:node:.*', '{semaphore}:changes'$", line)


def test_each_command_of_a_script_is_tried() -> None:
    tried = {name.lower() for name in re.findall(r"{ '([A-Z]+)'", script("try_rights"))}
    assert tried == commands_in(script("begin_epoch"), script("sync"))


@in_asyncio
async def test_a_script_that_cannot_be_loaded_is_not_run_again(server: RedisServer) -> None:
    """What SCRIPT LOAD replies is looked at, also after the start."""
    async with FairSemaphore(user(server), recovery_wait=0) as semaphore:
        user(server, "-script")
        with server.client() as client:
            client.script_flush()
        with pytest.raises(ServerRefusedError, match=r"script\|load|'script'"):
            await semaphore.admin.inspect("s")
