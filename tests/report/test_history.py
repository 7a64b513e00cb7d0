"""The server keeps each site's history, and counts once what is sent twice or late."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest

from lab.simulation.history import writer_of
from semaphore_middleware import FairSemaphore, Limit
from semaphore_middleware.core.keys import Keys
from semaphore_middleware.operators.admin import Admin
from semaphore_middleware.report.diary import Batch, PauseNote, Tally
from semaphore_middleware.report.history import Pause
from semaphore_middleware.report.keys import HistoryKeys
from semaphore_middleware.report.reader import read_history
from tests.report.batches import write
from tests.support.nodes import Caller, eventually
from tests.support.servers import RedisServer

Log = pytest.LogCaptureFixture

DAY_S = 86400.0
BODY = 1000  # bytes
KEYS = HistoryKeys("semaphore")
RULES_LOG = Keys("semaphore").changed_rules


async def test_a_site_s_history_is_what_all_nodes_did(server: RedisServer) -> None:
    limit = Limit(4)
    async with Admin(server.url, name="alice@desk") as admin:
        async with node(server) as a, node(server) as b:
            held = [await one.acquire("s", limit) for one in (a, a, b, b)]
            for permit, status in zip(held, (200, 301, 999, 429), strict=True):
                permit.received(status, BODY)
            held[-1].refused(retry_after=5.0)
            for permit in held:
                permit.release()
            await admin.configure("s", 2)
        history = await read_history(admin, "s", DAY_S)
    total = history.sum()
    assert (total.requests, total.most, total.limit, total.size) == (4, 4, 4, 4 * BODY)
    assert (total.ok, total.redirected, total.client_errors, total.server_errors) == (1, 1, 1, 1)
    assert total.refused == 1
    assert 1 <= total.starts <= 4
    assert history.jobs == {"news": 4}
    (pause,) = history.pauses
    assert (pause.asked, pause.refused, pause.last_start) == (5.0, True, None)
    (change,) = history.changes
    assert (change.by, change.rule) == ("alice@desk", {"concurrency": 2})
    assert history.ended == ()  # both nodes have written their last batch


async def test_a_request_that_begins_in_a_pause_is_in_the_history(server: RedisServer) -> None:
    async with node(server) as a, node(server) as b, Admin(server.url) as admin:
        held = await a.acquire("s", 2)
        late = await b.acquire_all([("s", 2)])
        held.refused(retry_after=60.0)
        held.release()
        await eventually(lambda: late.must_not_start)
        late.begin()
        late.release()
        for one in (a, b):
            await one.close()
        (pause,) = (await read_history(admin, "s", DAY_S)).pauses
        assert pause.last_start is not None
        assert 0 < pause.last_start < 60


async def test_what_is_sent_twice_counts_once(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    now = int(time.time() // 60)
    first, second = (Batch(n, now, [Tally(60 * now, n, scope="s")], n == 2) for n in (1, 2))
    for batch in (first, first, second, first, second):
        await write(a, batch)
    history = await read_history(a.admin, "s", DAY_S)
    assert [one.requests for one in history.minutes] == [3]


async def test_what_may_have_counted_before_its_key_was_lost_does_not_count(
    server: RedisServer, caplog: Log
) -> None:
    async with node(server) as a, Admin(server.url) as admin:
        said = KEYS.of_batch(a.node.encode(), 0, [])[2]
        with server.client() as client:
            await eventually(lambda: client.exists(said))  # the first batch
            (await a.acquire("s", 1)).release()
            batch = writer_of(a).diary.next_batch(is_closing=True)
            await write(await Caller.join(server, a.node), batch)  # and its reply is lost
            client.delete(said)
        await a.close()
        assert (
            "A minute of this node is missing from the history: the server has lost" in caplog.text
        )
        history = await read_history(admin, "s", DAY_S)
    assert history.sum().requests == 1


async def test_a_pause_that_several_nodes_heard_of_counts_once(server: RedisServer) -> None:
    now = int(time.time() // 60)
    begun = 60_000 * now
    notes = [
        ("a", begun, PauseNote(1000.0, last=30.0)),  # it comes before the cause is known
        ("b", begun, PauseNote(5000.0, asked=5000.0, refused=1)),
        ("c", begun, PauseNote(2000.0, refused=0, last=20.0)),
        ("a", begun + 10_000, PauseNote(1000.0, last=30.0)),  # the node that saw why was killed
    ]
    async with Admin(server.url) as admin:
        for number, (name, paused_at, note) in enumerate(notes, 1):
            tally = Tally(at=60 * now, scope="s", pauses={paused_at: note})
            await write(await Caller.join(server, name), Batch(number, now, [tally], False))
        assert (await read_history(admin, "s", DAY_S)).pauses == (
            Pause(60.0 * now, 5.0, 5.0, True, 0.03),
        )


async def test_limits_are_those_that_held_with_operators_rules(server: RedisServer) -> None:
    limit = Limit(3, delay=0.2, jitter=0.5)
    async with Admin(server.url) as admin, node(server) as a, node(server) as b:
        (await a.acquire("s", limit)).release()
        (await b.acquire("s", limit)).release()
        await admin.configure("s", {"delay": 0})
        held = [await one.acquire("s", limit) for one in (a, b, a)]
        for permit in held:
            permit.release()
        await admin.configure("burst", {"delay": 0, "rate": "60/m", "burst": 5})
        await admin.configure("even", {"delay": 0, "rate": "600/m"})
        for scope in ("burst", "even", "as set"):
            (await a.acquire(scope, limit)).release()
        for one in (a, b):
            await one.close()
        found = {}
        for scope in ("s", "burst", "even", "as set"):
            total = (await read_history(admin, scope, DAY_S)).sum()
            found[scope] = (total.limit, total.least_interval, total.interval)
    assert found == {
        "s": (3, 0.0, 0.0),
        "burst": (3, 0.0, 1.0),
        "even": (3, 0.1, 0.1),
        "as set": (3, 0.1, 0.1),
    }


async def test_nodes_minutes_are_one_with_the_loosest_limit(server: RedisServer) -> None:
    now = int(time.time() // 60)
    for name, limit, least, interval in (
        ("a", 2, 3.0, 3.0),
        ("b", 0, math.inf, math.inf),  # it knew none
        ("c", 5, 1.5, 4.0),
    ):
        tally = Tally(60 * now, 1, limit=limit, least_interval=least, interval=interval, scope="s")
        await write(await Caller.join(server, name), Batch(1, now, [tally], is_last=True))
    async with Admin(server.url) as admin:
        (minute,) = (await read_history(admin, "s", DAY_S)).minutes
    assert (minute.requests, minute.limit, minute.least_interval, minute.interval) == (3, 5, 1.5, 3)


async def test_operators_pauses_are_in_it_with_who_set_and_ended_them(server: RedisServer) -> None:
    site, now = "www.example.org", int(time.time())
    log: list[tuple[int, str, str, Any]] = [
        (7200, "*.example.org", "alice", True),  # before its beginning, and until after that
        (3000, "*.example.org", "bob", None),
        (2000, "*", "alice", True),
        (1900, "*.example.org", "carol", True),  # it was paused already
        (1800, "*", "alice", None),
        (1700, site, "bob", False),
        (1600, "www.example.com", "alice", True),  # another site
        (1500, site, "bob", None),
    ]
    with server.client() as client:
        for ago, name, by, paused in log:
            rule = {"by": by} | ({} if paused is None else {"paused": paused})
            client.zadd(RULES_LOG, {f"{now - ago}000 {name}\n{json.dumps(rule)}": now - ago})
        client.expire(RULES_LOG, 60)
    async with Admin(server.url, name="dave") as admin:
        pauses = (await read_history(admin, site, 3600)).operators_pauses
        assert [(now - one.at, one.by, one.ended_by) for one in pauses] == [
            (7200, "alice", "bob"),
            (2000, "alice", "bob"),
            (1500, "bob", None),
        ]
        assert [one.length for one in pauses[:2]] == [4200, 300]
        assert pauses[2].length >= 1500


async def test_a_rule_older_than_the_log_is_in_it(server: RedisServer) -> None:
    async with Admin(server.url, name="alice") as admin:
        await admin.configure("*.example.org", {"delay": 2})
        await admin.pause("www.example.org")
        with server.client() as client:
            client.delete(RULES_LOG)
        history = await read_history(admin, "www.example.org", 3600)
        await admin.reset("*")
    assert [(one.at, one.name, one.by, one.rule) for one in history.changes] == [
        (0, "*.example.org", "alice", {"delay": 2}),
        (0, "www.example.org", "alice", {"paused": True}),
    ]
    (pause,) = history.operators_pauses
    assert (pause.at, pause.length, pause.by, pause.ended_by) == (
        history.since,
        3600,
        "alice",
        None,
    )


async def test_rules_that_were_effective_at_its_beginning_are_in_it(server: RedisServer) -> None:
    site, now = "www.example.org", int(time.time())
    log = [
        (site, {"delay": 1}),
        (site, {"delay": 2}),
        ("*.example.org", {"delay": 3}),
        ("*.org", {"delay": 4}),
        ("*.org", {}),  # removed
        ("example.net", {"delay": 5}),
    ]
    changes = [(now - 7200 + n, *change) for n, change in enumerate(log)]
    changes.append((now - 10, site, {"delay": 6}))
    with server.client() as client:
        for at, name, rule in changes:
            text = f"{at}000 {name}\n{json.dumps(rule)}"
            client.zadd(RULES_LOG, {text: 1000 * at})
        client.expire(RULES_LOG, 60)
    async with Admin(server.url) as admin:
        found = (await read_history(admin, site, 3600)).changes
    assert [(change.name, change.rule["delay"]) for change in found] == [
        (site, 2),
        ("*.example.org", 3),
        (site, 6),
    ]


async def test_a_node_that_was_killed_is_named(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    await write(a, Batch(1, 0, [], False))
    with server.client() as client:
        (spoke_ms,) = (score for _, score in client.zrange(KEYS.nodes, 0, -1, withscores=True))
        client.zadd(KEYS.nodes, {"a": spoke_ms - 300_000})
    assert [name for name, _ in (await read_history(a.admin, "s", DAY_S)).ended] == ["a"]


async def test_the_last_minute_is_written_though_the_server_has_hung_up(
    server: RedisServer,
) -> None:
    async with Admin(server.url) as admin:
        async with node(server) as a:
            (await a.acquire("s", 1)).release()
            with server.client() as client:
                await eventually(lambda: bool(client.zcard(KEYS.nodes)))  # its first batch
                client.client_kill_filter(_type="normal", skipme=True)
        history = await read_history(admin, "s", DAY_S)
    assert history.sum().requests == 1
    assert history.ended == ()


async def test_without_a_history_nothing_is_kept(server: RedisServer) -> None:
    async with FairSemaphore(server.url, recovery_wait=0.0, history=0.0) as a:
        permit = await a.acquire("s", Limit(2, adaptive=True))
        permit.refused()
        permit.release()
    with server.client() as client:
        assert [key for key in client.scan_iter() if b":history" in key] == []


def node(server: RedisServer) -> FairSemaphore:
    return FairSemaphore(server.url, recovery_wait=0.0, job="news")
