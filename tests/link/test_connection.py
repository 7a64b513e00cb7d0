"""From a URL to a server, or to an error that says what to do and never shows a password."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from semaphore_middleware import FairSemaphore
from semaphore_middleware.errors import ServerRefusedError, ServerUnreachableError, SettingsError
from semaphore_middleware.link import link
from semaphore_middleware.link.location import Server
from tests.support.crawls import Log, Patch
from tests.support.nodes import PASSWORD, eventually, refusal, shown
from tests.support.restricted import NOT_IN_SCRIPTS, Restricted
from tests.support.servers import RedisServer, SentinelServer, free_port
from tests.support.times import ENDLESS_S

USED = "username, password, socket_keepalive, "


@pytest.mark.parametrize(
    "url",
    [
        *("localhost", "localhost:6379", "http://localhost", "unix://redis.sock", ""),
        f"redis://:{PASSWORD}@localhost:port/0",
        f"redis://:{PASSWORD}@localhost:99999999/0",
        f"redis://:{PASSWORD}@localhost/0?socket_timeout=soon",
        f"redis://:{PASSWORD}@localhost/0?no_such_option=1",
        f"redis://localhost/0?password=a&{PASSWORD}=1",
        f"redis://:{PASSWORD}/@localhost/0",
        f"redis://:{PASSWORD}#@localhost/0",
        f"redis://:{PASSWORD}@[::1/0",
        f"redis://:{PASSWORD}@redis..example:6379/0",
        "redis://user:6379?@localhost",  # a part of the password would be the port
        f"redis+sentinel://:{PASSWORD}@{'a' * 70}/service",
        *(f"redis+sentinel://{rest}" for rest in ("a", "a/", "/mymaster", "a,/m", "a:port/m")),
        *(f"redis+sentinel://{rest}" for rest in ("a/m/zero", "a/m/0/1", "a,b:99999/m")),
        f"redis+sentinel://:{PASSWORD}/@a/mymaster",
        f"redis+sentinel://a/mymaster?sentinel_pass={PASSWORD}",
        "redis+sentinel://a/mymaster?ssl_ca_certs=/etc/ssl/ca.pem",
        *(f"redis+cluster://{rest}" for rest in ("", "a,", "a/service", "a:port")),
        f"redis+cluster://a?sentinel_password={PASSWORD}",
        "unix:///run/redis.sock?socket_keepalive=true",  # which redis-py refuses for a socket
    ],
)
def test_an_address_that_cannot_be_read_is_refused_at_once(url: str) -> None:
    with pytest.raises(SettingsError, match=r"^SEMAPHORE_REDIS_URL: ") as refused:
        FairSemaphore(url, url_from="SEMAPHORE_REDIS_URL")
    assert PASSWORD not in shown(refused.value)


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ("://a:6x79/0", "the port after the host is not a number up to 65535"),
        ("+sentinel://a,b:99999/m", "the port after the host is not a number up to 65535"),
        ("://a/one", "the database number after the last '/' is not a number"),
        ("+sentinel://a/m/zero", "the database number after the last '/' is not a number"),
        ("+sentinel://a:1", "no service is named; allowed is redis+sentinel://…/service"),
        (f"://:{PASSWORD}@a?ssl=true", f"it has an unknown option 'ssl'; known are {USED}"),
        (f"://a?password=x&{PASSWORD}=y", f"it has an unknown option; known are {USED}"),
    ],
)
def test_the_part_that_cannot_be_read_is_named(rest: str, said: str) -> None:
    with pytest.raises(SettingsError, match=f"^the server's URL: {re.escape(said)}"):
        Server(f"redis{rest}", 1.0)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        (f"redis://user:{PASSWORD}@example.com/2", "redis://example.com:6379/2"),
        (f"rediss://:{PASSWORD}@example.com:7000", "rediss://example.com:7000/0"),
        ("redis://[::1]", "redis://[::1]:6379/0"),
        (f"unix://user:{PASSWORD}@/run/redis.sock?db=3", "unix:///run/redis.sock"),
        (f"redis://example.com/0?password={PASSWORD}", "redis://example.com:6379/0"),
        ("redis+sentinel://a/my%20master", "redis+sentinel://a:26379/my master/0"),
        ("redis+sentinel://a:1,b,[::1]:2/x/3", "redis+sentinel://a:1,b:26379,[::1]:2/x/3"),
        (f"rediss+sentinel://u:{PASSWORD}@a,a/m", "rediss+sentinel://a:26379/m/0"),
        (f"redis+sentinel://a/m?sentinel_password={PASSWORD}", "redis+sentinel://a:26379/m/0"),
        (f"rediss+cluster://{PASSWORD}@a,b:1?ssl_cert_reqs=none", "rediss+cluster://a:6379,b:1/0"),
        ("valkey://a", "redis://a:6379/0"),
        ("valkeys+sentinel://a/m?ssl_cert_reqs=CERT_NONE", "rediss+sentinel://a:26379/m/0"),
    ],
)
def test_a_server_is_named_without_its_password(url: str, name: str) -> None:
    assert str(Server(url, 1.0)) == name


def test_without_an_address_the_environment_s_counts(monkeypatch: Patch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://from.environment/1")
    assert FairSemaphore().url == "redis://from.environment/1"
    assert FairSemaphore("redis://given/1").url == "redis://given/1"
    monkeypatch.setenv("REDIS_URL", "wrong")
    with pytest.raises(SettingsError, match="REDIS_URL in the environment"):
        FairSemaphore()
    monkeypatch.setenv("SEMAPHORE_REDIS_URL", "redis://ours/2")
    assert FairSemaphore().url == "redis://ours/2"


@asynccontextmanager
async def answering(*replies: bytes) -> AsyncIterator[str]:
    """Something that answers each command with the next of these replies, or else with the last."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rest = list(replies)
        while line := await reader.readline():
            if line.startswith(b"*") and rest:  # the head of a command
                writer.write(rest.pop(0) if len(rest) > 1 else rest[0])
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listener:
        yield f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}"


@pytest.fixture
def locked() -> Iterator[RedisServer]:
    """One that knows passwords, at an address of IPv6, too."""
    options = ("--requirepass", PASSWORD, "--bind", "127.0.0.1", "::1")
    with RedisServer(*options, tcp_port=free_port()) as server:
        yield server


async def test_a_wrong_password_is_a_refusal_that_shows_none(locked: RedisServer) -> None:
    wrong = f"redis://:{PASSWORD}x@127.0.0.1:{locked.tcp_port}"
    said = await refusal(wrong)
    assert "does not accept this user name and password, from the server's URL" in said
    for url in (locked.tcp_url, locked.url):
        assert "requires a password" in await refusal(url)
    said = await refusal(f"redis://{PASSWORD}@127.0.0.1:{locked.tcp_port}")
    assert "without a password; an address with a password alone is redis://:PASSWORD@HOST" in said
    assert PASSWORD not in said
    right = FairSemaphore(f"redis://:{PASSWORD}@[::1]:{locked.tcp_port}", recovery_wait=0)
    async with right, right.permit("s", 1):
        assert PASSWORD not in repr(right)
    # An error names the arguments of a command that the server does not know.
    error = f"-ERR unknown command 'AUTH', with args beginning with: 'user' '{PASSWORD}'\r\n"
    async with answering(error.encode()) as url:
        said = await refusal(url.replace("//", f"//user:{PASSWORD}@"))
    assert re.search(r"does not know a command that is needed: unknown command .AUTH.$", said)


async def test_an_option_in_the_query_is_decoded_once() -> None:
    with RedisServer("--requirepass", "50%41", tcp_port=free_port()) as locked:
        at = f"127.0.0.1:{locked.tcp_port}"
        for url in (f"redis://{at}?password=50%2541", f"redis://:50%2541@{at}?password=another"):
            connection = await Server(url, ENDLESS_S).connect()
            await connection.close()


async def test_a_password_for_a_server_that_has_none_is_named_as_that(server: RedisServer) -> None:
    said = await refusal(server.url.replace("//", f"//:{PASSWORD}@"))
    assert said == f"{server.url} has no password, and its URL has one"
    with pytest.raises(ServerRefusedError, match="no password, and SEMAPHORE_REDIS_CREDENTIALS"):
        await Server(server.url, ENDLESS_S, credentials=lambda: PASSWORD).connect()


@pytest.mark.parametrize("command", ["EVALSHA", "ZRANGE", "SUBSCRIBE"])
async def test_a_command_that_was_renamed_is_named_in_one_line(command: str) -> None:
    with RedisServer("--rename-command", command, "") as server:
        said = await refusal(server.url)
        assert re.search(rf"\b{command}\b", said)
        assert "\n" not in said


async def test_a_replica_is_refused_and_a_sentinel(server: RedisServer) -> None:
    server.client().replicaof("127.0.0.1", free_port())
    assert "is a read-only replica; give the address of its master" in await refusal(server.url)
    with SentinelServer() as sentinel:
        there = f"redis+sentinel://127.0.0.1:{sentinel.tcp_port}/service"
        for database in ("", "/1"):
            line = await refusal(f"redis://127.0.0.1:{sentinel.tcp_port}{database}")
            assert (
                f"is a sentinel; write {there} with the name of the master that it watches" in line
            )


async def test_what_does_not_speak_the_protocol_is_refused_or_too_old_a_version() -> None:
    async with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as url:
        assert "does not use the Redis protocol" in await refusal(url)
    info = b"redis_version:6.0.16\r\nrole:master\r\nrun_id:abc\r\n"
    async with answering(b"+OK\r\n", b"$%d\r\n%s\r\n" % (len(info), info)) as url:
        assert "is version 6.0.16; version 6.2 or newer is needed" in await refusal(url)


@pytest.mark.parametrize(
    ("field", "instead", "said"),
    [
        ("role", "", "does not report a role in INFO, as Redis and Valkey do"),
        ("redis_version", "", "does not report a redis_version in INFO, as Redis and Valkey do"),
        ("run_id", "", "does not report a run_id in INFO, as Redis and Valkey do"),
        (
            "role",
            "role:active-replica",
            "has the role 'active-replica'; give the address of a master",
        ),
    ],
)
async def test_a_server_of_another_kind_is_named_as_what_it_is(
    server: RedisServer, field: str, instead: str, said: str
) -> None:
    async with Restricted(server.path) as proxy:
        proxy.edit_info = partial(re.sub, rf"(?m)^{field}:.*$", instead)
        assert said in await refusal(proxy.url)


@pytest.mark.parametrize("library", ["cjson", "cmsgpack", "struct"])
async def test_a_server_whose_scripts_lack_a_library_is_refused(
    server: RedisServer, library: str
) -> None:
    async with Restricted(server.path) as proxy:
        proxy.lua = f"local {library} = nil\n"
        line = await refusal(proxy.url)
        assert line.endswith(f"lacks what scripts need and Redis and Valkey have: Lua's {library}")


@pytest.mark.parametrize("command", ["HSET", "PUBLISH"])
async def test_a_command_that_scripts_may_not_use_is_named(
    server: RedisServer, command: str
) -> None:
    async with Restricted(server.path) as proxy:
        proxy.lua = NOT_IN_SCRIPTS.format(command=command)
        line = await refusal(proxy.url)
        said = f"does not permit the user 'default' what is needed: {command} in scripts; all keys"
        assert said in line


async def test_who_hangs_up_at_once_may_be_a_proxy() -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        with pytest.raises(ServerUnreachableError, match="if it is a proxy, give the server's"):
            await Server(f"redis://127.0.0.1:{port}", ENDLESS_S).connect()


async def test_a_server_that_hangs_is_given_up_in_time(server: RedisServer) -> None:
    async with answering() as silent:  # for ever
        with pytest.raises(ServerUnreachableError, match=r"127\..* no answer within 0\.05 s"):
            await Server(silent, 0.05).connect()
    connection = await Server(server.url, ENDLESS_S).connect()
    connection._time_limit = 0.05
    said = r"unix:.*: no answer within 0\.05 s"
    with server.frozen(), pytest.raises(ServerUnreachableError, match=said):
        await connection.call([("PING",)])
    with pytest.raises(ServerUnreachableError, match="cannot reach unix:///nowhere/s: "):
        await FairSemaphore("unix:///nowhere/s").open(wait=False)


async def test_opening_waits_and_may_be_cancelled(caplog: Log) -> None:
    server = RedisServer()
    semaphores = [FairSemaphore(server.url, recovery_wait=0) for _ in range(2)]
    opening, cancelled = [asyncio.create_task(one.open()) for one in semaphores]
    try:
        await eventually(lambda: caplog.text.count(f"cannot reach {server.url}") >= 2)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert repr(semaphores[1]).endswith(": closed>")
        await asyncio.to_thread(server.start)
        await opening
    finally:
        server.remove()


@pytest.mark.parametrize("command", [b"CLIENT", b"INFO", b"SUBSCRIBE", b"SCRIPT", b"EVALSHA"])
@pytest.mark.parametrize("error", ["BUSY Redis is busy", "upstream failure"])
async def test_what_passes_is_awaited_at_the_start(
    server: RedisServer, command: bytes, error: str, caplog: Log
) -> None:
    async with Restricted(server.path) as proxy:
        refused = f"-{error}\r\n".replace("-u", "-ERR u").encode()
        proxy.answer = lambda sent: refused if sent[0] == command else None
        semaphore = FairSemaphore(proxy.url)
        opening = asyncio.create_task(semaphore.open())
        await eventually(lambda: error in caplog.text)
        assert not opening.done()
        proxy.answer = lambda _: None
        await opening
        await semaphore.close()


async def test_nodes_that_start_together_leave_each_other_connections() -> None:
    """Each needs two."""
    with RedisServer("--maxclients", "2") as server:

        async def work() -> None:
            async with FairSemaphore(server.url, recovery_wait=0) as node, node.permit("s", 1):
                pass

        await asyncio.gather(work(), work())


async def test_a_server_that_turns_replica_is_awaited(
    server: RedisServer, monkeypatch: Patch, caplog: Log
) -> None:
    """A failover: the address will soon lead to the new master."""
    monkeypatch.setattr(link, "FIRST_LOG_INTERVAL_S", 0.0)
    client = server.client()
    async with FairSemaphore(server.url, recovery_wait=0) as semaphore:
        client.flushall()
        client.replicaof("127.0.0.1", free_port())
        waiting = asyncio.create_task(semaphore.acquire("s", 1))
        await eventually(lambda: "read-only replica" in caplog.text or "READONLY" in caplog.text)
        assert not waiting.done()
        client.replicaof("NO", "ONE")
        (await waiting).release()
