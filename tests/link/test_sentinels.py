"""Sentinels tell where the master is: all are asked, and the majority counts."""

import asyncio
import logging
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from semaphore_middleware import FairSemaphore, ServerRefusedError, ServerUnreachableError
from semaphore_middleware.link.location import Server
from tests.support.certificates import Authority
from tests.support.crawls import Log
from tests.support.nodes import PASSWORD, eventually, found_by, refusal, renew
from tests.support.servers import RedisServer, SentinelServer, free_port, url_of
from tests.support.times import ENDLESS_S
from tests.support.tls import tls_in_front_of

Masters = tuple[RedisServer, RedisServer]
Sentinels = list[SentinelServer]


@pytest.fixture
def masters() -> Iterator[Masters]:
    """Two servers that know nothing of each other: only sentinels say which one counts."""
    with RedisServer(tcp_port=free_port()) as one, RedisServer(tcp_port=free_port()) as other:
        yield one, other


@pytest.fixture
def sentinels() -> Iterator[Sentinels]:
    with SentinelServer() as one, SentinelServer() as two, SentinelServer() as three:
        yield [one, two, three]


def watch(sentinels: Sentinels, master: RedisServer) -> None:
    for sentinel in sentinels:
        sentinel.watch(master.tcp_port)


async def test_the_majority_of_those_that_answer_counts(
    masters: Masters, sentinels: Sentinels
) -> None:
    master, old = masters
    watch(sentinels, master)
    sentinels[0].watch(old.tcp_port)
    assert await found_by(url_of(sentinels)) == master.address
    sentinels[0].kill()
    assert await found_by(url_of(sentinels)) == master.address
    sentinels[1].watch(old.tcp_port)
    with pytest.raises(ServerUnreachableError, match="do not agree on the master of 'mymaster': 1"):
        await found_by(url_of(sentinels))
    sentinels[1].kill()
    assert await found_by(url_of(sentinels)) == master.address
    sentinels[2].kill()
    with pytest.raises(ServerUnreachableError, match=r"cannot reach the sentinel at 127\.0"):
        await found_by(url_of(sentinels))


async def test_a_master_is_left_once_most_sentinels_name_another_and_can_do_without_any(
    masters: Masters, sentinels: Sentinels, caplog: Log
) -> None:
    old, new = masters
    watch(sentinels, old)
    caplog.set_level(logging.INFO)
    async with FairSemaphore(url_of(sentinels)) as semaphore:
        permit = await semaphore.acquire("s", 1)
        assert old.members() == {"s": (1, 0)}
        watch(sentinels[:2], new)

        def has_come_after_a_look() -> bool:
            renew(semaphore)
            return new.members() == {"s": (1, 0)}

        await eventually(has_come_after_a_look)
        assert f"at {old.address} was replaced" in caplog.text
        for sentinel in sentinels:
            sentinel.kill()
        for _ in range(3):
            calls = new.calls("evalsha")
            renew(semaphore)
            await eventually(partial(has_heard, new, calls))
        assert not permit.lost
        permit.release()


def has_heard(server: RedisServer, calls: int) -> bool:
    """Whether more than so many calls have come."""
    return server.calls("evalsha") > calls


async def test_a_minority_does_not_replace_a_master(masters: Masters, sentinels: Sentinels) -> None:
    old, new = masters
    watch(sentinels, old)
    connection = await Server(url_of(sentinels), ENDLESS_S).connect()
    sentinels[0].watch(new.tcp_port)  # it is stale
    for gone in sentinels[1:]:
        gone.kill()
    connection.check_master()
    assert connection._search
    await connection._search
    assert connection.is_open
    sentinels[1].start().watch(new.tcp_port)
    connection.check_master()
    await connection._search
    assert not connection.is_open


async def test_a_master_to_be_is_waited_for(masters: Masters, sentinels: Sentinels) -> None:
    with masters[0].client() as client:
        client.replicaof("127.0.0.1", free_port())
        watch(sentinels, masters[0])
        opening = asyncio.create_task(FairSemaphore(url_of(sentinels)).open())
        with pytest.raises(ServerUnreachableError, match="is a read-only replica"):
            await found_by(url_of(sentinels))
        client.replicaof("NO", "ONE")
        await opening


async def test_what_no_sentinel_knows_is_refused(masters: Masters, sentinels: Sentinels) -> None:
    port, nobody = masters[0].tcp_port, "127.0.0.1:1"
    there = f"redis+sentinel://127.0.0.1:{port}"
    for url, error, said in (
        (url_of(sentinels), ServerRefusedError, "the sentinels know no service 'mymaster'"),
        (f"{there}/m", ServerRefusedError, f":{port} is not a sentinel"),
        # The other one may be there soon.
        (f"{there},{nobody}/m", ServerUnreachableError, f"cannot reach the sentinel at {nobody}"),
    ):
        with pytest.raises(error, match=said):
            await FairSemaphore(url).open(wait=False)


async def test_sentinels_and_masters_have_own_passwords(caplog: Log) -> None:
    caplog.set_level(logging.DEBUG)
    with (
        RedisServer("--requirepass", f"{PASSWORD}-1", tcp_port=free_port()) as server,
        SentinelServer(f"requirepass {PASSWORD}-2") as sentinel,
        SentinelServer() as open_sentinel,
    ):
        with sentinel.client(password=f"{PASSWORD}-2") as client:
            monitored = ("MONITOR", "mymaster", "127.0.0.1", server.tcp_port, 1)
            client.execute_command("SENTINEL", *monitored)
        open_sentinel.watch(server.tcp_port)
        at = f"@127.0.0.1:{sentinel.tcp_port}/mymaster?sentinel_password={PASSWORD}"
        for url, who in (
            (f"redis+sentinel://:{PASSWORD}-1{at}-2", None),
            (f"redis+sentinel://:{PASSWORD}-1{at}-3", "the sentinel at .* does not accept"),
            (f"redis+sentinel://:{PASSWORD}-3{at}-2", "the master of 'mymaster' .* not accept"),
            (  # the sentinel is told no name
                f"redis+sentinel://u:{PASSWORD}-1@127.0.0.1:{open_sentinel.tcp_port}/mymaster",
                "the master of 'mymaster' at .* this user",
            ),
        ):
            if who is None:
                assert await found_by(url) == server.address
                continue
            assert re.match(who, await refusal(url))
    assert PASSWORD not in caplog.text


async def test_tls_is_for_both(masters: Masters, sentinels: Sentinels, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    certificate = authority.issue("both")
    with (
        tls_in_front_of(masters[0], certificate) as master,
        tls_in_front_of(sentinels[0], certificate) as sentinel,
    ):
        sentinels[0].watch(master)
        url = f"rediss+sentinel://127.0.0.1:{sentinel}/mymaster"
        assert re.match("the sentinel at .*: TLS: certificate ", await refusal(url))
        found = await found_by(f"{url}?ssl_ca_certs={authority.certificate}")
        assert found == f"127.0.0.1:{master}"
