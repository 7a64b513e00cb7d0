"""Sentinels tell where the master is: all are asked, and most are believed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from semaphore_middleware import (
    FairSemaphore,
    ServerRefusedError,
    ServerUnreachableError,
    SettingsError,
)
from semaphore_middleware.redis.location import Server
from tests.support.certificates import Authority
from tests.support.nodes import eventually, in_asyncio
from tests.support.servers import RedisServer, SentinelServer, free_port
from tests.support.tls import tls_in_front_of

PASSWORD = "t0p-secret"


@pytest.fixture
def masters() -> Iterator[tuple[RedisServer, RedisServer]]:
    """Two servers that know nothing of each other: only sentinels say which one counts."""
    with ExitStack() as stack:
        yield started(stack), started(stack)


@pytest.fixture
def sentinels() -> Iterator[list[SentinelServer]]:
    with ExitStack() as stack:
        found = [SentinelServer() for _ in range(3)]
        for one in found:
            stack.callback(one.remove)
            one.start()
        yield found


def started(stack: ExitStack, *options: str) -> RedisServer:
    server = RedisServer(*options, tcp_port=free_port())
    stack.callback(server.remove)
    return server.start()


def url_of(sentinels: list[SentinelServer], rest: str = "/mymaster") -> str:
    addresses = ",".join(f"127.0.0.1:{one.tcp_port}" for one in sentinels)
    return f"redis+sentinel://{addresses}{rest}"


async def port_of(url: str) -> int:
    """Of the server that a node would use."""
    connection = await Server(url, 5.0).connect()
    await connection.close()
    return connection.address.port


# Who is believed --------------------------------------------------------------------------------


@in_asyncio
async def test_most_sentinels_are_believed(
    masters: tuple[RedisServer, RedisServer], sentinels: list[SentinelServer]
) -> None:
    new, old = masters
    for sentinel, master in zip(sentinels, (old, new, new), strict=True):
        sentinel.watch(master.tcp_port)
    assert await port_of(url_of(sentinels)) == new.tcp_port


@in_asyncio
async def test_sentinels_that_do_not_answer_do_not_count(
    masters: tuple[RedisServer, RedisServer], sentinels: list[SentinelServer]
) -> None:
    master, other = masters
    for sentinel in sentinels:
        sentinel.watch(master.tcp_port)
    sentinels[0].kill()
    assert await port_of(url_of(sentinels)) == master.tcp_port
    sentinels[1].watch(other.tcp_port)
    with pytest.raises(ServerUnreachableError, match="do not agree on the master of 'mymaster': 1"):
        await port_of(url_of(sentinels))
    sentinels[1].kill()
    assert await port_of(url_of(sentinels)) == master.tcp_port
    sentinels[2].kill()
    with pytest.raises(ServerUnreachableError, match=r"cannot reach the sentinel at 127\.0"):
        await port_of(url_of(sentinels))


@in_asyncio
async def test_a_master_that_was_replaced_is_left_although_it_answers(
    masters: tuple[RedisServer, RedisServer],
    sentinels: list[SentinelServer],
    caplog: pytest.LogCaptureFixture,
) -> None:
    old, new = masters
    for sentinel in sentinels:
        sentinel.watch(old.tcp_port)
    caplog.set_level(logging.INFO)
    async with FairSemaphore(url_of(sentinels), lease=1.5) as semaphore:
        permit = await semaphore.acquire("s", 1)
        assert old.members() == {"s": (1, 0)}
        for sentinel in sentinels[:2]:
            sentinel.watch(new.tcp_port)

        async def moved() -> bool:
            return new.members() == {"s": (1, 0)}

        await eventually(moved)
        assert f"at 127.0.0.1:{old.tcp_port}: it was replaced" in caplog.text
        permit.release()


@in_asyncio
async def test_a_look_finds_that_a_master_was_replaced(
    masters: tuple[RedisServer, RedisServer], sentinels: list[SentinelServer]
) -> None:
    for sentinel in sentinels:
        sentinel.watch(masters[0].tcp_port)
    connection = await Server(url_of(sentinels), 5.0).connect()
    connection.look_for_master()
    assert connection._search is not None
    await connection._search
    assert connection.is_open
    for sentinel in sentinels:
        sentinel.watch(masters[1].tcp_port)
    connection.look_for_master()
    await connection._search
    assert not connection.is_open


@in_asyncio
async def test_a_master_can_do_without_its_sentinels(
    masters: tuple[RedisServer, RedisServer], sentinels: list[SentinelServer]
) -> None:
    for sentinel in sentinels:
        sentinel.watch(masters[0].tcp_port)
    connection = await Server(url_of(sentinels), 5.0).connect()
    for sentinel in sentinels:
        sentinel.kill()
    connection.look_for_master()
    assert connection._search is not None
    await connection._search
    assert connection.is_open
    await connection.close()


# What is waited for, and what is not ------------------------------------------------------------


@in_asyncio
async def test_a_master_that_is_not_one_yet_is_waited_for(
    masters: tuple[RedisServer, RedisServer], sentinels: list[SentinelServer]
) -> None:
    server = masters[0]
    with server.client() as client:
        client.replicaof("127.0.0.1", free_port())
        for sentinel in sentinels:
            sentinel.watch(server.tcp_port)
        opening = asyncio.create_task(FairSemaphore(url_of(sentinels)).open())
        with pytest.raises(ServerUnreachableError, match="is a read-only replica"):
            await port_of(url_of(sentinels))
        client.replicaof("NO", "ONE")
        await opening


@in_asyncio
async def test_a_service_that_no_sentinel_knows_is_refused(
    masters: tuple[RedisServer, RedisServer], sentinels: list[SentinelServer]
) -> None:
    with pytest.raises(ServerRefusedError, match="the sentinels know no service 'mymaster'"):
        await FairSemaphore(url_of(sentinels)).open(wait=False)
    url = f"redis+sentinel://127.0.0.1:{masters[0].tcp_port}"
    with pytest.raises(ServerRefusedError, match=f":{masters[0].tcp_port} is not a sentinel"):
        await FairSemaphore(f"{url}/mymaster").open(wait=False)
    # The other one may be there soon.
    with pytest.raises(
        ServerUnreachableError, match=r"cannot reach the sentinel at 127\.0\.0\.1:1"
    ):
        await FairSemaphore(f"{url},127.0.0.1:1/mymaster").open(wait=False)


@in_asyncio
async def test_sentinels_and_masters_have_passwords_of_their_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    with ExitStack() as stack:
        server = started(stack, "--requirepass", f"{PASSWORD}-1")
        sentinel = SentinelServer(f"requirepass {PASSWORD}-2")
        stack.callback(sentinel.remove)
        sentinel.start()
        with sentinel.client(password=f"{PASSWORD}-2") as client:
            watch = ("MONITOR", "mymaster", "127.0.0.1", server.tcp_port, 1)
            client.execute_command("SENTINEL", *watch)
        for master, own in (("1", "2"), ("1", "3"), ("3", "2")):
            url = (
                f"redis+sentinel://:{PASSWORD}-{master}@127.0.0.1:{sentinel.tcp_port}/mymaster"
                f"?sentinel_password={PASSWORD}-{own}"
            )
            assert PASSWORD not in str(Server(url, 5.0))
            if "3" not in (master, own):
                assert await port_of(url) == server.tcp_port
            else:
                who = "the sentinel at" if own == "3" else "the master of 'mymaster' at"
                with pytest.raises(ServerRefusedError, match=f"^{who}.*does not accept") as refused:
                    await FairSemaphore(url).open(wait=False)
                assert PASSWORD not in str(refused.value)
        open_sentinel = SentinelServer()
        stack.callback(open_sentinel.remove)
        open_sentinel.start().watch(server.tcp_port)
        url = f"redis+sentinel://u:{PASSWORD}-1@127.0.0.1:{open_sentinel.tcp_port}/mymaster"
        with pytest.raises(ServerRefusedError, match=r"^the master of 'mymaster' at .* this user"):
            await FairSemaphore(url).open(wait=False)  # the sentinel is told no name
    assert PASSWORD not in caplog.text


@in_asyncio
async def test_tls_is_for_sentinels_and_masters(
    masters: tuple[RedisServer, RedisServer], sentinels: list[SentinelServer], tmp_path: Path
) -> None:
    authority = Authority(tmp_path, "authority")
    certificate = authority.issue("both")
    with (
        tls_in_front_of(masters[0], certificate) as master,
        tls_in_front_of(sentinels[0], certificate) as sentinel,
    ):
        sentinels[0].watch(master)
        url = f"rediss+sentinel://127.0.0.1:{sentinel}/mymaster"
        with pytest.raises(ServerRefusedError, match=r"^the sentinel at .* is not confirmed by"):
            await FairSemaphore(url).open()
        assert await port_of(f"{url}?ssl_ca_certs={authority.certificate}") == master


# Addresses --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("redis+sentinel://a/mymaster", "redis+sentinel://a:26379/mymaster/0"),
        ("redis+sentinel://a/my%20master", "redis+sentinel://a:26379/my master/0"),
        ("redis+sentinel://a:1,b,[::1]:2/x/3", "redis+sentinel://a:1,b:26379,[::1]:2/x/3"),
        (f"rediss+sentinel://u:{PASSWORD}@a,a/m", "rediss+sentinel://a:26379/m/0"),
        (f"redis+sentinel://a/m?sentinel_password={PASSWORD}", "redis+sentinel://a:26379/m/0"),
    ],
)
def test_sentinels_are_named_without_passwords(url: str, name: str) -> None:
    assert str(Server(url, 1.0)) == name


@pytest.mark.parametrize(
    "rest",
    [
        "a",
        "a/",
        "a/mymaster/zero",
        "a/mymaster/0/1",
        "/mymaster",
        "a,/mymaster",
        "a:port/mymaster",
        "a,b:99999/mymaster",
        f":{PASSWORD}/@a/mymaster",
        f"a/mymaster?sentinel_pass={PASSWORD}",
        "a/mymaster?ssl_ca_certs=/etc/ssl/ca.pem",
    ],
)
def test_addresses_that_cannot_be_read_are_refused(rest: str) -> None:
    with pytest.raises(SettingsError, match=r"^REDIS_URL: ") as refused:
        FairSemaphore(f"redis+sentinel://{rest}", url_from="REDIS_URL")
    assert PASSWORD not in str(refused.value)
