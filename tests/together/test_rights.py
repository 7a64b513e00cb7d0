"""The rights in docs/production.md are sufficient and minimal; a missing one is named at once."""

import asyncio
import re

import pytest
from redis import Redis
from redis.exceptions import NoPermissionError
from scrapy import Request

from semaphore_middleware import FairSemaphore, Limit, SemaphoreError, ServerRefusedError
from semaphore_middleware.core import scripts
from semaphore_middleware.operators.admin import Admin
from semaphore_middleware.operators.scripts import CHANGE_RULE, EVICT, FORGET, INSPECT
from semaphore_middleware.report.reader import read_history
from semaphore_middleware.report.scripts import NOTE_HISTORY, NOTE_ROBOTSTXT, READ_HISTORY
from semaphore_middleware.shared_crawl.client import NODES_SCRIPTS, SCRIPTS
from tests.support.crawls import Crawl
from tests.support.nodes import KEYS, Caller, eventually, refusal, until_waiting
from tests.support.rights import RIGHTS, assert_refused_nothing, commands_in, user
from tests.support.servers import RedisServer
from tests.support.site import Site

SHARING = ("crawler", "frontier", "viewer", "operator")  # those who see shared crawls
ATTACHING = {"client", "info", "script", "evalsha"}
CACHING = {"get", "set", "pttl"}  # a node works without them
FOR_NODES = ATTACHING | {"evalsha_ro", "subscribe", "ping"}


def commands_run(server: RedisServer) -> set[str]:
    """Commands sent by clients and by scripts since the user was created."""
    with server.client() as client:
        names = {name.removeprefix("cmdstat_") for name in client.info("commandstats")}
    return {name.partition("|")[0] for name in names}


def allowed(name: str) -> set[str]:
    """The commands that a user may send."""
    return {right[1:].partition("|")[0] for right in RIGHTS[name] if right.startswith("+")}


SHARED = commands_in(*(SCRIPTS[name] for name in NODES_SCRIPTS))


def test_users_may_do_what_their_scripts_do_and_no_more() -> None:
    of_package = commands_in(scripts.SYNC, scripts.BEGIN_EPOCH, INSPECT)
    of_nodes = of_package | commands_in(NOTE_HISTORY, NOTE_ROBOTSTXT)
    assert allowed("node") == FOR_NODES | CACHING | of_nodes
    assert allowed("frontier") == FOR_NODES - {"evalsha_ro"} | SHARED
    assert allowed("crawler") == allowed("node") | SHARED
    changes = (scripts.BEGIN_EPOCH, EVICT, CHANGE_RULE, FORGET)
    of_operators = commands_in(INSPECT, READ_HISTORY, *changes, SCRIPTS["end"]) | SHARED
    assert allowed("operator") == FOR_NODES | {"scan", "zscan"} | of_operators


async def test_nodes_need_no_other_right(server: RedisServer) -> None:
    url = user(server)
    with server.client() as client:
        client.flushall()  # so that the epoch begins
    a, b = (FairSemaphore(url, recovery_wait=0.0) for _ in range(2))
    async with a, b:
        held = await a.acquire("s", 1)
        waiting = asyncio.create_task(b.acquire("s", 1))
        await until_waiting(a, 1)
        held.release()
        granted = await waiting
        granted.refused(retry_after=0.01)
        granted.release()
        for limit in (Limit(1, delay=0.01), Limit(2, rate="100/s"), Limit(2, adaptive=True)):
            for _ in range(2):
                async with a.permit(f"paced by {limit}", limit) as permit:
                    permit.answered(0.1)
        a.cache.put("value", b"", 60.0)
        await eventually(lambda: b.cache.get("value"))
    # A short lease, so that it soon renews, and pings; it may end, on a busy machine.
    async with FairSemaphore(url, lease=3.0) as c:
        kept = await c.acquire("kept", 1)
        await eventually(lambda: {"ping", "info"} <= commands_run(server))
        kept.release()
    assert_refused_nothing(server)
    with server.client() as client:
        assert not client.exists(KEYS.trial)


async def test_who_shares_a_crawl_needs_no_other_right(server: RedisServer, site: Site) -> None:
    url = user(server, name="crawler")
    requests = [Request(site.url(f"/page/{n}")) for n in range(3)]
    shared = "semaphore_middleware.Scheduler"
    crawl = Crawl(server, *requests, SEMAPHORE_REDIS_URL=url, REDIS_URL=url, SCHEDULER=shared)
    await crawl.finished()
    assert sorted(site.arrivals) == ["/page/0", "/page/1", "/page/2"]
    assert_refused_nothing(server)


@pytest.mark.parametrize("name", RIGHTS)
def test_nobody_may_touch_what_is_another_s(server: RedisServer, name: str) -> None:
    with Redis.from_url(user(server, name=name)) as client:
        for command in (
            *(["FLUSHALL"], ["CONFIG", "GET", "*"], ["KEYS", "*"], ["CLIENT", "LIST"]),
            *(["GET", "another"], ["SUBSCRIBE", "another"], ["ACL", "LIST"]),
            *([] if name in SHARING else [["GET", "{crawl:x}:run"]]),
            *([["HGETALL", "another"], ["SUBSCRIBE", "{semaphore}:changes"]] * (name == "viewer")),
            *([["HSET", "{semaphore}:rules", "a", "{}"]] * (name == "viewer")),
        ):
            with pytest.raises(NoPermissionError):
                client.execute_command(*command)


@pytest.mark.parametrize("name", ["viewer", "operator"])
async def test_operators_may_change_all_viewers_nothing(server: RedisServer, name: str) -> None:
    node = await Caller.join(server, "a")
    await node.take("full", 2)
    await node.admin.configure("ruled", 2)
    with server.client() as client:
        client.script_flush()
    async with Admin(user(server, name=name), lease=600.0) as admin:
        assert {seen.scope for seen in await admin.survey()} == {"full", "ruled"}
        assert (await admin.inspect("full")).held == 1
        assert [rule.name for rule in await admin.rules()] == ["ruled"]
        assert await admin.rule("ruled") is not None
        if name == "viewer":
            assert_refused_nothing(server)
            known = allowed("viewer") - {"client", "evalsha_ro", "hget", "hlen", "zcard"}
            assert known - {"scan"} <= commands_run(server)
            with server.client() as client:
                client.delete(KEYS.index)
            assert {seen.scope for seen in await admin.survey()} == {"full", "ruled"}
            assert known <= commands_run(server)
            for change in (admin.pause("full"), admin.evict("a"), admin.reset("full")):
                with pytest.raises(SemaphoreError, match=r"(?i)permission|can't run this command"):
                    await change
        else:
            await admin.configure("full", {"concurrency": 3, "delay": 1})
            await admin.pause("*.example.org")
            await admin.resume("refused")
            await admin.reset("full")
            await admin.reset("*")
            await read_history(admin, "full", 60)
            await admin.evict("a")
            await admin.trust()
            assert_refused_nothing(server)


async def test_a_command_that_is_missing(server: RedisServer) -> None:
    with server.client() as client:
        is_old = client.info("server")["redis_version"] < "7"
    of_scripts = commands_in(scripts.BEGIN_EPOCH, scripts.SYNC)
    for command in (*FOR_NODES - {"client", "ping"}, *of_scripts):
        if command == "evalsha_ro" and is_old:
            continue  # this server does not know it
        line = await refusal(user(server, f"-{command}"))
        assert "does not permit the user 'node' what is needed: " in line
        assert re.search(rf"\b{re.escape(command)}\b", line, re.IGNORECASE)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (("resetkeys", "~{semaphores}:*"), "all keys and channels begin with '{semaphore}'"),
        (("resetkeys", "~{semaphore}:scope:*"), "all keys and channels begin with '{semaphore}'"),
        (("resetchannels", "&{semaphores}:*"), "all keys and channels begin with '{semaphore}'"),
        # The channels of a node, but not the one on which operators notify all.
        (
            ("resetchannels", "&{semaphore}:node:*"),
            r"the channels are '{semaphore}:node:.*', '{semaphore}:changes'$",
        ),
    ],
)
async def test_keys_or_channels(server: RedisServer, changes: tuple[str, ...], said: str) -> None:
    line = await refusal(user(server, *changes))
    assert "does not permit the user 'node' what is needed: " in line
    assert re.search(said, line)


async def test_a_script_that_cannot_be_loaded_is_not_run_again(server: RedisServer) -> None:
    """The reply to SCRIPT LOAD is checked after the start, too."""
    async with FairSemaphore(user(server), recovery_wait=0) as semaphore:
        user(server, "-script")
        with server.client() as client:
            client.script_flush()
        with pytest.raises(ServerRefusedError, match=r"script\|load|'script'"):
            await semaphore.admin.inspect("s")
