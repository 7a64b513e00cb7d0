"""What operators set on the server: it wins over what all nodes ask for, at once, until reset."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from semaphore_middleware import FairSemaphore, Inspection, Limit, Rule, SettingsError
from semaphore_middleware.model.rules import LABELS_MAX
from tests.support.nodes import KEYS, TIMEOUT_S, Caller, Outside, eventually, in_asyncio
from tests.support.servers import RedisServer

HOST = "www.example.org"


async def held(semaphore: FairSemaphore, count: int, scope: str = HOST) -> None:
    """Wait until so many permits are held."""

    async def enough() -> bool:
        return (await semaphore.admin.inspect(scope)).held == count

    await eventually(enough)


def crowd(semaphore: FairSemaphore, size: int, limit: int | Limit) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(semaphore.acquire(HOST, limit)) for _ in range(size)]


async def go_home(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("name", [HOST, "*.example.org", "*.org"])
@in_asyncio
async def test_a_higher_limit_lets_in_at_once_who_waits_on_other_nodes(
    server: RedisServer, name: str
) -> None:
    async with FairSemaphore(server.url) as node, FairSemaphore(server.url) as operator:
        tasks = crowd(node, 8, 2)
        await held(operator, 2)
        await operator.admin.configure(name, 5)
        await held(operator, 5)
        await operator.admin.reset(name)
        seen = await operator.admin.inspect(HOST)
        assert (seen.limit, seen.held, seen.set_by) == (2, 5, None)
        await go_home(tasks)


@in_asyncio
async def test_a_lower_limit_takes_nothing_from_holders_and_then_holds(
    server: RedisServer,
) -> None:
    async with FairSemaphore(server.url) as node, FairSemaphore(server.url) as operator:
        permits = [await node.acquire(HOST, 4) for _ in range(4)]
        await operator.admin.configure(HOST, 1)
        waiting = crowd(node, 1, 4)
        for permit in permits[:3]:
            permit.release()
        await held(operator, 1)
        assert not waiting[0].done()
        permits[3].release()
        await waiting[0]


@in_asyncio
async def test_the_most_exact_name_wins_part_by_part(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    async with FairSemaphore(server.url) as operator:
        await operator.admin.configure("*.org", {"concurrency": 9, "delay": 3})
        await operator.admin.configure("*.example.org", {"concurrency": 7})
        seen = await operator.admin.inspect(HOST)
        assert (seen.limit, seen.delay) == (7, 3)
        await operator.admin.configure(HOST, {"delay": 0})
        assert (await a.take(HOST, 9, limit=Limit(2, delay=60))).granted == 7
        await operator.admin.reset("*.example.org")
        seen = await operator.admin.inspect(HOST)
        assert (seen.limit, seen.delay) == (9, 0)
        assert (await operator.admin.inspect("example.com")).limit is None
        assert (await operator.admin.inspect("example.org")).limit == 9


@pytest.mark.parametrize("name", [HOST, "*.example.org"])
@pytest.mark.parametrize("idle", [False, True])
@pytest.mark.parametrize("then", [{"delay": 0}, {"delay": 1}, None])
@in_asyncio
async def test_a_shorter_delay_holds_for_the_next_start(
    server: RedisServer, name: str, idle: bool, then: dict[str, Any] | None
) -> None:
    a = await Caller.join(server, "a")
    own = Limit(4, delay=1)
    await a.admin.configure(name, {"delay": 3600})
    await a.take(HOST, limit=own)
    if idle:
        await a.give_back(HOST, limit=own)
    await (a.admin.configure(name, then) if then else a.admin.reset(name))
    held = a.held(HOST)
    reply = await a.take(HOST, limit=own)
    again = 0.0 if a.held(HOST) == held + 1 else reply.retry_in
    assert again is not None
    assert again <= (1 if then is None else then["delay"])


@in_asyncio
async def test_a_delay_that_no_operator_changed_is_kept_for_who_does_not_know_it(
    server: RedisServer,
) -> None:
    a = await Caller.join(server, "a")
    await a.admin.configure(HOST, 3)
    await a.take(HOST, limit=Limit(4, delay=60))
    await a.give_back(HOST, limit=Limit(4, delay=60))
    for _ in range(2):
        again = (await a.take(HOST, limit=4)).retry_in
        assert again is not None
        assert 50 < again <= 60


@in_asyncio
async def test_a_rate_that_an_operator_sets_holds_for_all_nodes(server: RedisServer) -> None:
    a, b = await Caller.join(server, "a"), await Caller.join(server, "b")
    await a.admin.configure("*.example.org", {"rate": "1/m", "burst": 3})
    assert (await a.take(HOST, 2, limit=9)).granted == 2
    reply = await b.take(HOST, 2, limit=Limit(9, rate="1000/s", burst=1000))
    assert reply.granted == 1
    assert reply.retry_in is not None
    assert 59 < reply.retry_in <= 60
    assert reply.is_counted
    seen = await a.inspect(HOST)
    assert (seen.rate, seen.burst) == ("1/m", 3)


@in_asyncio
async def test_an_operator_lifts_the_rate_that_nodes_ask_for(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    rated = Limit(5, rate="1/h")
    assert (await a.take(HOST, 5, limit=rated)).granted == 1
    await a.admin.configure(HOST, {"rate": None})
    assert (await a.renew(HOST, limit=rated)).granted == 5
    assert (await a.inspect(HOST)).rate is None


@in_asyncio
async def test_a_burst_alone_is_that_of_the_rate_that_nodes_ask_for(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    await a.admin.configure(HOST, {"burst": 4})
    assert (await a.take(HOST, 9, limit=Limit(9, rate="1/m"))).granted == 4


@pytest.mark.parametrize("name", [HOST, "*.example.org"])
@pytest.mark.parametrize("idle", [False, True])
@pytest.mark.parametrize("then", [{"rate": None}, {"rate": "1/s"}, None])
@in_asyncio
async def test_a_higher_rate_holds_for_the_next_start(
    server: RedisServer, name: str, idle: bool, then: dict[str, Any] | None
) -> None:
    a = await Caller.join(server, "a")
    own = Limit(4, rate="1/s")
    await a.admin.configure(name, {"rate": "1/h"})
    await a.take(HOST, limit=own)
    if idle:
        await a.give_back(HOST, limit=own)
    await (a.admin.configure(name, then) if then else a.admin.reset(name))
    held = a.held(HOST)
    reply = await a.take(HOST, limit=own)
    again = 0.0 if a.held(HOST) == held + 1 else reply.retry_in
    assert again is not None
    assert again <= (0 if then == {"rate": None} else 1)


@in_asyncio
async def test_nothing_is_granted_while_a_site_is_paused(server: RedisServer) -> None:
    async with FairSemaphore(server.url) as node, FairSemaphore(server.url) as operator:
        first = await node.acquire(HOST, 2)
        await operator.admin.pause(HOST)
        waiting = crowd(node, 3, 2)
        await operator.admin.configure(HOST, 9)
        first.release()
        await held(operator, 0)
        assert (await operator.admin.inspect(HOST)).paused
        await operator.admin.resume(HOST)
        await asyncio.wait_for(asyncio.gather(*waiting), TIMEOUT_S)
        assert not (await operator.admin.inspect(HOST)).paused


@in_asyncio
async def test_a_scope_goes_on_although_its_pattern_is_paused(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    async with FairSemaphore(server.url) as operator:
        await operator.admin.pause("*.example.org")
        assert (await a.take(HOST)).granted == 0
        assert (await a.take("ftp.example.org")).granted == 0
        assert (await a.take("example.org")).granted == 1
        await operator.admin.resume(HOST)
        assert (await a.renew(HOST)).granted == 1
        assert (await a.renew("ftp.example.org")).granted == 0


@in_asyncio
async def test_resume_says_no_more_than_it_must_so_that_a_later_pause_of_the_pattern_holds(
    server: RedisServer,
) -> None:
    a = await Caller.join(server, "a")
    async with FairSemaphore(server.url) as operator:
        await operator.admin.pause(HOST)
        await operator.admin.resume(HOST)
        assert await operator.admin.rules() == []
        await operator.admin.pause("*.example.org")
        assert (await a.take(HOST)).granted == 0


@in_asyncio
async def test_a_rule_outlives_every_node_and_every_idle_hour(
    server: RedisServer, outside: Outside
) -> None:
    async with FairSemaphore(server.url, node="boss") as operator:
        await operator.admin.configure(HOST, {"concurrency": 3, "delay": 0.5, "jitter": 0})
        name = operator.node
    assert all(outside.ttl(key) == -1 for key in outside.in_use())
    async with FairSemaphore(server.url) as node:
        assert await node.admin.rules() == [Rule(HOST, name, concurrency=3, delay=0.5, jitter=0.0)]
        (seen,) = await node.admin.survey()
        assert (seen.scope, seen.limit, seen.delay, seen.set_by) == (HOST, 3, 0.5, name)


@in_asyncio
async def test_reset_leaves_nothing_behind(server: RedisServer, outside: Outside) -> None:
    async with FairSemaphore(server.url) as operator:
        for name in (HOST, "*.example.org"):
            await operator.admin.configure(name, Limit(2, delay=1, adaptive=True))
            await operator.admin.pause(name)
            await operator.admin.reset(name)
        assert await operator.admin.rules() == []
    assert outside.in_use() == set()


@in_asyncio
async def test_resume_ends_the_pause_that_a_site_asked_for(server: RedisServer) -> None:
    async with FairSemaphore(server.url) as node, FairSemaphore(server.url) as operator:
        permit = await node.acquire(HOST, 2)
        permit.refused(retry_after=200)
        permit.release()
        waiting = crowd(node, 1, 2)

        async def backs_off() -> bool:
            return bool((await operator.admin.inspect(HOST)).backoff_left)

        await eventually(backs_off)
        assert not waiting[0].done()
        await operator.admin.resume(HOST)
        await asyncio.wait_for(waiting[0], TIMEOUT_S)


@in_asyncio
async def test_a_host_may_be_written_in_any_way(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    async with FairSemaphore(server.url) as operator:
        await operator.admin.configure("WWW.Example.org", 2)
        await operator.admin.configure("*.BÜCHER.example.", 3)
        assert (await a.take(HOST, 3)).granted == 2
        assert (await operator.admin.inspect("www.xn--bcher-kva.example")).limit == 3


@pytest.mark.parametrize(
    ("name", "limit", "said"),
    [
        (HOST, 0, f"the limit of {HOST!r} = 0: allowed is an integer >= 1"),
        (HOST, "2", f"the limit of {HOST!r} = '2': allowed is an integer >= 1"),
        (HOST, {"delay": -1}, f"the limit of {HOST!r}['delay'] = -1: allowed is"),
        (HOST, {"speed": 1}, f"the limit of {HOST!r}: unknown key 'speed'; allowed is"),
        ("", 1, "the limit of '': the host is empty; allowed is a host or '*.host'"),
        ("a*", 1, "the limit of 'a*': a '*' may only stand first"),
        (f"*{'.a' * 11}", 1, f"the limit of '*{'.a' * 11}': allowed are at most 10 labels after"),
    ],
)
@in_asyncio
async def test_bad_values_are_refused_in_the_words_of_the_settings(
    server: RedisServer, outside: Outside, name: str, limit: Any, said: str
) -> None:
    async with FairSemaphore(server.url) as operator:
        with pytest.raises(SettingsError) as caught:
            await operator.admin.configure(name, limit)
        assert said in str(caught.value)
    assert outside.in_use() == set()


@in_asyncio
async def test_what_is_beyond_all_measure_does_no_harm(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    async with FairSemaphore(server.url) as operator:
        for name in ("\ud800", HOST):
            await operator.admin.configure(name, {"concurrency": 10**40, "delay": 1e9})
            assert (await a.take(name, limit=1)).granted == 1
            await a.give_back(name)
            seen = await operator.admin.inspect(name)
            assert (seen.limit, seen.delay) == (2**53, 1e9)
            await operator.admin.reset(name)
        with pytest.raises(SettingsError, match="0 to 1e9 seconds"):
            await operator.admin.configure(HOST, {"delay": 1e300})
        assert await operator.admin.rules() == []


@in_asyncio
async def test_rules_for_others_are_not_read(server: RedisServer, outside: Outside) -> None:
    a = await Caller.join(server, "a")
    for number in range(20):
        await a.admin.configure(f"*.example{number}.org", 3)
    outside.client.config_resetstat()
    assert (await a.take(HOST, 2)).granted == 1
    assert "cmdstat_hgetall" not in outside.client.info("commandstats")


@in_asyncio
async def test_a_pattern_fits_names_of_any_number_of_labels(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    labels = [f"l{i}" for i in range(40)]
    patterns = {f"*.{'.'.join(labels[-n:])}": n + 1 for n in (1, 2, LABELS_MAX)}
    for pattern, limit in patterns.items():
        await a.admin.configure(pattern, limit)
    for n in (len(labels), LABELS_MAX + 1):
        assert (await a.take(".".join(labels[-n:]), 99, limit=99)).granted == LABELS_MAX + 1
    assert (await a.take(".".join(labels[-LABELS_MAX:]), 99, limit=99)).granted == 3
    assert (await a.take(".".join(labels[-2:]), 99, limit=99)).granted == 2
    assert (await a.take(labels[-1], 99, limit=99)).granted == 99


@pytest.mark.parametrize(
    ("name", "lookups"),
    [
        ("a.b.c", 3),
        (".".join("a" * 127), 1 + LABELS_MAX),
        ("." * 253, 1 + LABELS_MAX),
        (".".join("a" * 1000), 1),  # longer than any host
    ],
)
@in_asyncio
async def test_a_name_of_many_labels_costs_no_more_lookups(
    server: RedisServer, name: str, lookups: int
) -> None:
    """Links to such hosts cost their site nothing, and must not keep the server busy."""
    a = await Caller.join(server, "a")
    await a.admin.configure("*.example.org", 3)
    with server.client() as marker, server.client() as client, client.monitor() as monitor:
        await a.take(name)
        marker.echo("end")
        fields: list[int] = []
        while not (command := monitor.next_command()["command"]).startswith("ECHO"):
            if command.startswith(f"HMGET {KEYS.rules.decode()} "):
                fields.append(len(command.split()) - 2)
    assert fields == [lookups]


@in_asyncio
async def test_no_limit_can_be_set_and_be_taken_back(server: RedisServer) -> None:
    a = await Caller.join(server, "a")
    async with FairSemaphore(server.url) as operator:
        await operator.admin.configure(HOST, None)
        assert (await a.take(HOST, 200)).granted == 200
        await operator.admin.reset(HOST)
        assert (await a.take(HOST)).granted == 200


@in_asyncio
async def test_a_survey_shows_what_is_in_use_whatever_its_name(server: RedisServer) -> None:
    names = ["a", "b:c", "{d}:scope:e", "*.org", "ü", "x y"]
    async with FairSemaphore(server.url, prefix="a[b]*", recovery_wait=0) as node:
        for name in names:
            await node.acquire(name, 2)
        seen = await node.admin.survey()
    assert [(one.scope, one.held) for one in seen] == [(name, 1) for name in sorted(names)]
    assert all(isinstance(one, Inspection) for one in seen)


@in_asyncio
async def test_a_pattern_of_a_kind_fits_its_scopes_and_no_pattern_of_hosts_does(
    server: RedisServer,
) -> None:
    a = await Caller.join(server, "a")
    for pattern, limit in (("domain:*", 2), ("ip:*", 3), ("*.org", 5), ("ip:192.0.2.1", 4)):
        await a.admin.configure(pattern, limit)
    for scope, limit in (
        ("domain:example.org", 2),
        ("ip:192.0.2.7", 3),
        ("ip:192.0.2.1", 4),
        ("example.org", 5),
        ("proxy:example.org", 9),
        ("other:example.org", 5),
    ):
        assert (await a.take(scope, 9, limit=9)).granted == limit, scope
