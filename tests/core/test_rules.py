"""Rules that operators set on the server override at once what all nodes ask for, until reset."""

import re
from typing import Any

import pytest

from semaphore_middleware import Admin, FairSemaphore, Limit, Rule, SettingsError
from semaphore_middleware.model.rules import LABELS_MAX
from tests.support.crawls import Log
from tests.support.nodes import KEYS, Caller, Outside, eventually
from tests.support.servers import RedisServer

HOST = "www.example.org"


async def test_the_most_exact_name_wins_part_by_part(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    await a.admin.configure("*.org", {"concurrency": 9, "delay": 3})
    await a.admin.configure("*.example.org", {"concurrency": 7})
    seen = await a.inspect(HOST)
    assert (seen.limit, seen.effective.delay) == (7, 3)
    await a.admin.configure(HOST, {"delay": 0})
    assert (await a.take(HOST, 9, limit=Limit(2, delay=60))).granted == 7
    await a.admin.reset("*.example.org")
    seen = await a.inspect(HOST)
    assert (seen.limit, seen.effective.delay) == (9, 0)
    assert (await a.inspect("example.com")).limit is None
    assert (await a.inspect("example.org")).limit == 9


@pytest.mark.parametrize("idle", [False, True])
@pytest.mark.parametrize(
    ("own", "first", "then", "most"),
    [
        (Limit(4, delay=60), {"delay": 3600}, {"delay": 0}, 0),
        (Limit(4, delay=60), {"delay": 3600}, {"delay": 90}, 90),
        (Limit(4, delay=60), {"delay": 3600}, None, 60),
        (Limit(4, rate="1/m"), {"rate": "1/h"}, {"rate": None}, 0),
        (Limit(4, rate="1/m"), {"rate": "1/h"}, {"rate": "2/m"}, 60),
        (Limit(4, rate="1/m"), {"rate": "1/h"}, None, 60),
        (Limit(4, rate="1/s"), {"rate": "1/m"}, {"rate": "1/s"}, 1),
    ],
)
async def test_a_shorter_delay_and_a_higher_rate_hold_for_the_next_start(
    server: RedisServer, own: Limit, first: Any, then: Any, most: float, idle: bool
) -> None:
    a = await Caller.join(server, "a")
    await a.admin.configure("*.example.org", first)
    await a.take(HOST, limit=own)
    if idle:
        await a.give_back(HOST, limit=own)
    if then:
        await a.admin.configure("*.example.org", then)
    else:
        await a.admin.reset("*.example.org")
    before = a.held(HOST)
    reply = await a.take(HOST, limit=own)
    again = 0.0 if a.held(HOST) == before + 1 else reply.retry_in
    assert again is not None
    assert again <= most


async def test_a_rate_and_a_burst_hold_for_all_nodes(server: RedisServer) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    await a.admin.configure("*.example.org", {"rate": "1/h", "burst": 3})
    assert (await a.take(HOST, 2, limit=9)).granted == 2
    reply = await b.take(HOST, 2, limit=Limit(9, rate="1000/s", burst=1000))
    assert (reply.granted, reply.starts_count) == (1, True)
    assert 3000 < (reply.retry_in or 0) <= 3600
    seen = await a.inspect(HOST)
    assert (seen.effective.rate, seen.effective.burst) == ("1/h", 3)
    await a.admin.configure("s", {"burst": 4})  # that of the rate that nodes ask for
    assert (await a.take("s", 9, limit=Limit(9, rate="1/h"))).granted == 4
    await a.admin.configure("s", {"rate": None})
    assert (await a.renew("s", limit=Limit(9, rate="1/h"))).granted == 9
    await a.admin.configure("t", None)
    assert (await a.take("t", 200)).granted == 200
    await a.admin.configure("u", {"adaptive": True})
    assert (await a.take("u", 2)).granted == 1


async def test_a_scope_goes_on_although_its_pattern_is_paused(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    await a.admin.pause(HOST)
    await a.admin.resume(HOST)
    assert await a.admin.rules() == [], "it says no more than it must: a later pause holds"
    await a.admin.pause("*.example.org")
    for name, granted in ((HOST, 0), ("ftp.example.org", 0), ("example.org", 1)):
        assert (await a.take(name)).granted == granted
    await a.admin.resume(HOST)
    assert (await a.renew(HOST)).granted == 1
    assert (await a.renew("ftp.example.org")).granted == 0


async def test_a_pause_of_all_holds_everywhere_and_ends_no_other(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    scopes = (HOST, "proxy:192.0.2.1:80", "all", "a name")
    await a.admin.pause("*.example.org")
    await a.admin.resume(HOST)
    await a.admin.pause("all")
    await a.admin.pause("*")
    for scope in scopes:
        assert (await a.take(scope)).granted == 0, scope
    await a.admin.resume("a name")
    assert (await a.renew("a name")).granted == 1
    await a.admin.resume("*")
    assert [(await a.renew(scope)).granted for scope in scopes] == [0, 1, 0, 1]
    await a.admin.reset("*")
    assert await a.admin.rules() == []
    assert [(await a.renew(scope)).granted for scope in scopes] == [1, 1, 1, 1]
    for limit in (None, 2):
        with pytest.raises(SettingsError, match=re.escape("a '*' may only stand first")):
            await a.admin.configure("*", limit)


async def test_a_rule_stays_until_it_is_reset(server: RedisServer, outside: Outside) -> None:
    async with Admin(server.url, name="boss") as admin:
        await admin.configure(HOST, {"concurrency": 3, "delay": 0.5, "jitter": 0})
        await admin.configure("*.org", Limit(2, delay=1, adaptive=True))
        await admin.pause("*.org")
        await admin.reset("*.org")
        assert {outside.ttl(key) for key in outside.in_use()} == {-1}
        assert await admin.rules() == [
            Rule(HOST, "boss", {"concurrency": 3, "delay": 0.5, "jitter": 0.0})
        ]
        (seen,) = await admin.survey()
        assert (seen.scope, seen.limit, seen.effective.delay, seen.set_by) == (HOST, 3, 0.5, "boss")
        await admin.reset(HOST)
    assert outside.in_use() == set()


async def test_names_and_patterns_match_the_scopes_that_they_name(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    labels = [f"l{i}" for i in range(40)]
    deep = {n: ".".join(labels[-n:]) for n in (1, 2, LABELS_MAX, LABELS_MAX + 1, len(labels))}
    for pattern, limit in (
        *(("WWW.Example.org", 6), ("*.BÜCHER.example.", 7)),
        *(("domain:*", 2), ("proxy:*", 3), ("*.org", 5), ("proxy:p.example:1", 4)),
        *((f"*.{deep[n]}", n + 10) for n in (1, 2, LABELS_MAX)),
    ):
        await a.admin.configure(pattern, limit)
    for scope, granted in (
        *((HOST, 6), ("www.xn--bcher-kva.example", 7), ("proxy:p.example:2", 3)),
        *(("domain:example.org", 2), ("example.org", 5), ("other:example.org", 5)),
        *(("proxy:p.example:1", 4), (deep[1], 99), (deep[2], 11), (deep[LABELS_MAX], 12)),
        *((deep[LABELS_MAX + 1], LABELS_MAX + 10), (deep[len(labels)], LABELS_MAX + 10)),
    ):
        assert (await a.take(scope, 99, limit=99)).granted == granted, scope


async def test_bad_values_are_refused(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    bad: list[tuple[str, Any, str]] = [
        (HOST, {"speed": 1}, f"the limit of {HOST!r}: unknown key 'speed'; allowed are"),
        ("", 1, "the limit of '': the host is empty; allowed is a host or '*.host'"),
        ("a\nb", 1, r"the limit of 'a\nb': a name has no control characters"),
        (f"*{'.a' * 11}", 1, f"the limit of '*{'.a' * 11}': allowed are at most 10 labels after"),
    ]
    for name, limit, said in bad:
        with pytest.raises(SettingsError, match=re.escape(said)):
            await a.admin.configure(name, limit)
    assert outside.in_use() == set()
    for name in ("\ud800", HOST):
        await a.admin.configure(name, {"concurrency": 10**40, "delay": 1e9})
        assert (await a.take(name, limit=1)).granted == 1
        await a.give_back(name)
        seen = await a.inspect(name)
        assert (seen.limit, seen.effective.delay) == (10**12, 1e9)
        await a.admin.reset(name)


async def test_the_log_has_who_made_each_change_also_who_took_one_back(server: RedisServer) -> None:
    async with Admin(server.url, name="alice") as alice, Admin(server.url, name="bob") as bob:
        await alice.configure(HOST, 2)
        await alice.pause(HOST)
        await bob.resume(HOST)
        (rule,) = await bob.rules()
        assert (rule.by, rule.paused, rule.limit) == ("alice", None, {"concurrency": 2})
        await bob.reset(HOST)
        await alice.pause("*.org")
        await bob.resume(HOST)
        await alice.pause("*.org")  # also what bob has exempted
        await bob.reset("*")
        assert await bob.rules() == []
        changes = [(one.by, one.name, dict(one.rule)) for one in await bob.changes()]
    limit, paused = {"concurrency": 2}, {"paused": True}
    assert changes == [
        ("alice", HOST, limit),
        ("alice", HOST, limit | paused),
        ("bob", HOST, limit),
        ("bob", HOST, {}),
        ("alice", "*.org", paused),
        ("bob", HOST, {"paused": False}),
        ("alice", HOST, {}),
        ("alice", "*.org", paused),
        ("bob", "*.org", {}),
    ]


async def test_every_node_logs_who_has_changed_what(server: RedisServer, caplog: Log) -> None:
    caplog.set_level("INFO")
    async with (
        FairSemaphore(server.url),
        FairSemaphore(server.url),
        Admin(server.url, name="alice") as admin,
    ):
        with server.client() as client:
            channel = KEYS.changes
            await eventually(lambda: client.pubsub_numsub(channel)[0][1] == 2)
        await admin.configure(HOST, {"concurrency": 2, "delay": 0, "rate": None})
        await admin.pause(HOST)
        await admin.pause("*.org")
        await admin.resume(HOST)
        await admin.pause("*.org")  # also what was exempted
        await admin.resume("*")
        await admin.reset(HOST)
        await admin.reset("*")
        await admin.evict("n\nx")
        await admin.trust()
        expected = [
            f"alice has set limit 2, delay 0 s, rate none for {HOST}.",
            f"alice has paused {HOST}.",
            "alice has paused *.org.",
            f"alice has resumed {HOST}.",
            "alice has paused *.org.",
            "alice has resumed all sites.",
            f"alice has reset {HOST}.",
            "alice has removed all rules.",
            "alice has evicted the node n\\nx: 0 permits, 0 waiting requests.",
            "alice has ended the wait in which no permit is granted.",
        ]

        def logged() -> list[str]:
            return [line for line in caplog.messages if line.startswith("alice")]

        await eventually(lambda: len(logged()) == 2 * len(expected))
    assert sorted(logged()) == sorted(2 * expected)


async def test_a_name_from_elsewhere_does_not_hide_other_changes(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    outside.client.zadd(KEYS.changed_rules, {'1700000000000 a\nb\n{"delay":1}': 1.7e12})
    outside.client.expire(KEYS.changed_rules, 60)
    await a.admin.configure(HOST, {"delay": 2})
    changes = await a.admin.changes()
    assert [(change.name, change.rule["delay"]) for change in changes] == [("a\nb", 1), (HOST, 2)]
    await a.admin.reset(HOST)


@pytest.mark.parametrize(
    ("name", "lookups"),
    [
        ("a.b.c", 4),
        (".".join("a" * 127), 2 + LABELS_MAX),
        ("." * 253, 2 + LABELS_MAX),
        (".".join("a" * 1000), 2),  # longer than any host
    ],
)
async def test_a_name_of_many_labels_costs_no_more_lookups_and_other_rules_none(
    server: RedisServer, outside: Outside, name: str, lookups: int
) -> None:
    """Links to such hosts cost their site nothing, and must not keep the server busy."""
    a = await Caller.join(server, "a")
    for number in range(20):
        await a.admin.configure(f"*.example{number}.org", 3)
    outside.client.config_resetstat()
    with server.client() as marker, server.client() as client, client.monitor() as monitor:
        assert (await a.take(name, 2)).granted == 1
        marker.echo("end")
        fields: list[int] = []
        while not (command := monitor.next_command()["command"]).startswith("ECHO"):
            if command.startswith(f"HMGET {KEYS.rules.decode()} "):
                fields.append(len(command.split()) - 2)
    assert fields == [lookups]
    assert "cmdstat_hgetall" not in outside.client.info("commandstats")
