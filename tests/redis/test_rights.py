"""The users of docs/many-machines.md have the rights that they need, and no others; a right that is
missing is found at the start, and named in one line.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import NoPermissionError
from scrapy import Request

from semaphore_middleware import FairSemaphore, Limit, SemaphoreError, ServerRefusedError
from semaphore_middleware.core.admin import Admin
from semaphore_middleware.frontier import scripts as frontier
from semaphore_middleware.redis.scripts import script
from tests.docs.pages import page
from tests.support.crawls import Crawl, asyncio_test
from tests.support.nodes import eventually, in_asyncio
from tests.support.servers import RedisServer, free_port
from tests.support.site import Site

DOCUMENTED = re.findall(r"^user (\w+) on >(\S+) (.*)$", page("docs/many-machines.md"), re.MULTILINE)
PASSWORDS = {name: password for name, password, _ in DOCUMENTED}
RIGHTS = {name: rights.split() for name, _, rights in DOCUMENTED}
# A node that shares no crawl: the page says what it can do without.
PASSWORDS["node"] = PASSWORDS["crawler"]
RIGHTS["node"] = RIGHTS["crawler"][: RIGHTS["crawler"].index("~{crawl:*")]

SHARING = ("crawler", "frontier")  # those who may share a crawl
ATTACHING = {"client", "info", "script", "evalsha"}
FOR_NODES = ATTACHING | {"evalsha_ro", "subscribe", "ping"}


def rights_of(name: str, client: Redis) -> list[str]:
    """Those on the page; of what this server does not know, what the page says instead."""
    rights: list[str] = RIGHTS[name]
    if client.info("server")["redis_version"] < "7":
        rights = [right.replace("%R~", "~").replace("evalsha_ro", "evalsha") for right in rights]
    return rights


class Guarded(RedisServer):
    """A server with these users."""

    def __init__(self) -> None:
        super().__init__(tcp_port=free_port())

    def add_users(self) -> None:
        with self.client() as client:
            for name in RIGHTS:
                rights = rights_of(name, client)
                client.execute_command("ACL", "SETUSER", name, "on", f">{PASSWORDS[name]}", *rights)

    def url_of(self, name: str) -> str:
        return f"redis://{name}:{PASSWORDS[name]}@127.0.0.1:{self.tcp_port}/0"

    def client_of(self, name: str) -> Redis:
        return Redis.from_url(self.url_of(name))

    def assert_refused_nothing(self) -> None:
        with self.client() as client:
            entries = client.execute_command("ACL", "LOG")
        assert entries == []

    def forget_commands(self) -> None:
        with self.client() as client:
            client.config_resetstat()

    @property
    def commands(self) -> set[str]:
        """Those that were run since then, by clients and by scripts."""
        with self.client() as client:
            names = {name.removeprefix("cmdstat_") for name in client.info("commandstats")}
        return {name.partition("|")[0] for name in names}


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    server = Guarded()
    try:
        server.start()
        server.add_users()
        yield server
    finally:
        server.remove()


def commands_of(rights: list[str]) -> set[str]:
    return {right[1:].partition("|")[0] for right in rights if right.startswith("+")}


def allowed(name: str) -> set[str]:
    """The commands that a user may send."""
    return commands_of(RIGHTS[name])


def commands_in(*scripts: str) -> set[str]:
    return {name.lower() for name in re.findall(r"""redis\.call\(['"](\w+)""", "".join(scripts))}


# Nodes ------------------------------------------------------------------------------------------


def test_a_node_may_do_what_its_scripts_do_and_no_more() -> None:
    scripts = [script(name) for name in ("sync", "begin_epoch", "inspect")]
    assert allowed("node") == FOR_NODES | commands_in(*scripts)
    shared = commands_in(*(frontier.script(name) for name in frontier.NODES_SCRIPTS))
    assert allowed("frontier") == FOR_NODES - {"evalsha_ro"} | shared
    assert allowed("crawler") == allowed("node") | shared


@in_asyncio
async def test_nodes_need_no_other_right(guarded: Guarded) -> None:
    url = guarded.url_of("node")
    with guarded.client() as client:
        client.flushall()  # so that the epoch begins
    a, b = (FairSemaphore(url, lease=0.5, recovery_wait=0.0) for _ in range(2))
    async with a, b:
        held = await a.acquire("s", 1)
        waiting = asyncio.create_task(b.acquire("s", 1))

        async def waits() -> bool:
            return (await a.admin.inspect("s")).waiting == 1

        await eventually(waits)
        held.release()
        granted = await waiting
        granted.refused(retry_after=0.01)
        granted.release()
        for limit in (Limit(1, delay=0.01), Limit(2, rate="100/s"), Limit(2, adaptive=True)):
            for _ in range(2):
                async with a.permit(f"paced by {limit}", limit) as permit:
                    permit.answered(0.1)
        kept = await a.acquire("kept", 1)
        guarded.forget_commands()

        async def is_quiet_for_long() -> bool:
            return {"ping", "info"} <= guarded.commands

        await eventually(is_quiet_for_long)
        kept.release()
    guarded.assert_refused_nothing()


@pytest.mark.parametrize("name", SHARING)
@asyncio_test
async def test_nodes_that_share_a_crawl_with_a_semaphore_or_without_need_no_other_right(
    guarded: Guarded, site: Site, name: str
) -> None:
    url = guarded.url_of(name)
    how: dict[str, Any] = {"SEMAPHORE_REDIS_URL": url} if name == "crawler" else {"by": {}}
    crawl = Crawl(
        guarded,
        *[Request(site.url(f"/page/{n}")) for n in range(3)],
        **how,
        REDIS_URL=url,
        SCHEDULER="semaphore_middleware.frontier.Scheduler",
    )
    await crawl.finished()
    assert sorted(site.arrivals) == ["/page/0", "/page/1", "/page/2"]
    guarded.assert_refused_nothing()


@pytest.mark.parametrize("name", RIGHTS)
def test_nobody_may_touch_what_is_another_s(guarded: Guarded, name: str) -> None:
    with guarded.client_of(name) as client:
        for command in (
            *(["FLUSHALL"], ["CONFIG", "GET", "*"], ["KEYS", "*"], ["CLIENT", "LIST"]),
            *(["GET", "another"], ["SUBSCRIBE", "another"], ["ACL", "LIST"]),
            *([] if name in SHARING else [["GET", "{crawl:x}:run"]]),
            *([["HGETALL", "another"], ["SUBSCRIBE", "{semaphore}:changes"]] * (name == "viewer")),
            *([["HSET", "{semaphore}:rules", "a", "{}"]] * (name == "viewer")),
        ):
            with pytest.raises(NoPermissionError):
                client.execute_command(*command)


# Operators --------------------------------------------------------------------------------------


async def in_use(server: RedisServer, semaphore: FairSemaphore) -> None:
    """A full site, one that has refused a request, and a rule; at one, a request waits."""
    refused = await semaphore.acquire("refused", 1)
    refused.refused(retry_after=100)
    refused.release()
    await semaphore.acquire("full", 1)
    waiter = asyncio.ensure_future(semaphore.acquire("full", 1))
    waiter.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def waits() -> bool:
        return server.members().get("full") == (1, 1)

    await eventually(waits)
    await semaphore.admin.configure("ruled", 2)


async def look(admin: Admin) -> None:
    assert {seen.scope for seen in await admin.survey()} == {"full", "refused", "ruled"}
    assert (await admin.inspect("full")).held == 1
    assert [rule.name for rule in await admin.rules()] == ["ruled"]
    assert await admin.rule("ruled") is not None


@in_asyncio
async def test_a_viewer_may_look_and_change_nothing(guarded: Guarded) -> None:
    async with FairSemaphore(guarded.url, lease=600.0) as semaphore:
        await in_use(guarded, semaphore)
        async with Admin(guarded.url_of("viewer"), lease=600.0) as admin:
            with guarded.client() as client:
                client.script_flush()
                rights = rights_of("viewer", client)
            guarded.forget_commands()
            await look(admin)
            guarded.assert_refused_nothing()
            assert commands_of(rights) - {"client"} <= guarded.commands
            for change in (admin.pause("full"), admin.evict(semaphore.node), admin.reset("full")):
                with pytest.raises(SemaphoreError, match=r"(?i)permission|can't run this command"):
                    await change


@in_asyncio
async def test_an_operator_may_look_and_change_all(guarded: Guarded) -> None:
    async with FairSemaphore(guarded.url, lease=600.0) as semaphore:
        await in_use(guarded, semaphore)
        async with Admin(guarded.url_of("operator"), lease=600.0) as admin:
            await look(admin)
            await admin.configure("full", {"concurrency": 3, "delay": 1})
            await admin.pause("*.example.org")
            await admin.resume("refused")
            await admin.reset("full")
            await admin.evict(semaphore.node)
    guarded.assert_refused_nothing()
    scripts = [script(name) for name in ("inspect", "evict", "change_rule", "clear_backoff")]
    assert allowed("operator") == ATTACHING | {"evalsha_ro", "scan", "publish"} | commands_in(
        *scripts
    )


# Missing rights ---------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (("resetkeys", "~{semaphores}:*"), "all keys and channels begin with '{semaphore}'"),
        (("resetkeys", "~{semaphore}:scope:*"), "all keys and channels begin with '{semaphore}'"),
        (("resetchannels", "&{semaphores}:*"), "all keys and channels begin with '{semaphore}'"),
        # What a node hears, but not what operators tell all of them.
        (
            ("resetchannels", "&{semaphore}:node:*"),
            r"the channels are '{semaphore}:node:.*', '{semaphore}:changes'$",
        ),
    ],
)
@in_asyncio
async def test_keys_and_channels_that_are_missing(
    server: RedisServer, changes: tuple[str, ...], said: str
) -> None:
    line = await refusal(user(server, *changes))
    assert "does not permit this user what is needed: " in line
    assert re.search(said, line)


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
