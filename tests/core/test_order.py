"""The order of grants, and their limits: what the simulation does not check."""

import sys
from collections import defaultdict

import pytest

from semaphore_middleware.core.protocol import Reply
from semaphore_middleware.model.limits import Limit
from tests.support.nodes import Caller, Outside, key
from tests.support.servers import RedisServer
from tests.support.times import ENDLESS_S


async def test_who_asks_anew_is_behind_who_waits(server: RedisServer, outside: Outside) -> None:
    a, b, c = [await Caller.join(server, name) for name in "abc"]
    for caller in (a, b, c):
        await caller.take("s", 2)
    await b.give_up("s", 2)
    await b.take("s")
    assert outside.queue() == ["c", "b", "a"]
    await a.give_up("s")
    await a.give_back("s", take=1)
    assert (outside.held(), outside.queue()) == ({"c": 1}, ["b", "a", "c"])


async def test_the_strictest_limit_holds(server: RedisServer, outside: Outside) -> None:
    a, b = [await Caller.join(server, name) for name in "ab"]
    await a.take("s", 3, limit=5)
    await b.take("s", 2, limit=2)
    assert (await a.renew("s", limit=5)).status == "ok", "nothing is taken from holders"
    assert (await a.inspect("s")).limit == 2
    for left in (2, 1):
        assert (outside.held(), outside.queue()) == ({"a": left + 1}, ["b"])
        await a.give_back("s", limit=5)
    assert outside.held() == {"a": 1, "b": 1}
    await b.give_up("s", 1, limit=2)
    await b.renew("s", limit=2)
    for caller in (a, b):
        await caller.give_back("s", limit=5)
    assert (await b.take("s", 4, limit=sys.maxsize)).granted == 4
    assert (await b.inspect("s")).limit == 10**12


@pytest.mark.parametrize("how", ["a lease later", "reset"])
async def test_a_limit_ends_with_its_nodes(server: RedisServer, outside: Outside, how: str) -> None:
    """Though the site is never idle: otherwise a visitor with a delay of years would slow all nodes
    for ever.
    """

    async def look_at_all() -> Reply:
        if how == "reset":
            await a.admin.reset("s")
        else:
            outside.edit("s", "state", due=1)
        return await a.renew("s", limit=4)

    strict = Limit(1, delay=1e9, jitter=0.25, adaptive=True, rate="3/d", burst=2)
    a, visitor = [await Caller.join(server, name) for name in ("a", "visitor")]
    await a.take("s", 3, limit=4)
    await visitor.take("s", limit=strict)
    await a.take("s", limit=4)
    assert ((await look_at_all()).granted, (await a.inspect("s")).limit) == (3, 1), "it waits"
    asks_for = {member.node: member.asks_for for member in (await a.inspect("s")).members}
    assert asks_for == {"visitor": strict, "a": Limit(4)}
    await visitor.give_up("s", limit=strict)
    assert (await a.renew("s", limit=4)).granted == 3
    [seen] = outside.look("s")
    half_a_lease = 1000 * ENDLESS_S / 2
    assert float(seen.state["due"]) <= seen.entries["a"]["lease_end"] - half_a_lease
    reply = await look_at_all()
    assert (reply.granted, reply.limit, reply.interval) == (4, 4, None)


async def test_thousands_of_permits_go_in_few_calls(server: RedisServer, outside: Outside) -> None:
    a, b, c = [await Caller.join(server, name) for name in "abc"]
    assert (await a.take("s", 3500, limit=3000)).granted == 3000
    await a.give_up("s", 500, limit=3000)
    for caller in (b, c):
        await caller.take("s", 5000, limit=Limit(10_000))
    await a.give_back("s", 3000, limit=Limit(10_000))
    for _ in range(6):
        await b.renew("s", limit=10**9)
    assert outside.held() == {"b": 1500, "c": 1500}


# Jobs share a site; `lab/simulation` measures their shares --------------------------------------


LIMIT = 4


async def join(server: RedisServer, **jobs: str) -> dict[str, Caller]:
    """Nodes, each with its job."""
    return {name: await Caller.join(server, name, job=job) for name, job in jobs.items()}


async def test_jobs_that_only_pause_leave_their_scope_readable(
    server: RedisServer, outside: Outside
) -> None:
    callers = await join(server, a1="a", b1="b", c1="b")
    for name in ("a1", "b1"):
        assert (await callers[name].update("s", LIMIT, suspended=1)).status == "ok"
    await callers["c1"].take("s", limit=LIMIT)
    outside.end_leases("c1", "s")
    for _ in range(2):
        assert (await callers["a1"].update("s", LIMIT, suspended=1)).status == "ok"


async def go_round(callers: dict[str, Caller], times: int = 12) -> None:
    """Each node, one after the other, gives a permit back, if it has one, and asks for another."""
    for _ in range(times):
        for caller in callers.values():
            await caller.renew("s", LIMIT)
            if caller.held("s"):
                await caller.give_back("s", limit=LIMIT, take=1)


def by_job(outside: Outside, jobs: dict[str, str]) -> dict[str, int]:
    held: dict[str, int] = defaultdict(int)
    for name, count in outside.held().items():
        held[jobs[name]] += count
    return held


@pytest.mark.parametrize(
    ("jobs", "due"),
    [
        ({"a1": "a", "a2": "a", "a3": "a", "a4": "a", "b1": "b"}, {"a": 2, "b": 2}),
        ({"a1": "a/x", "a2": "a/y"}, {"a/x": 2, "a/y": 2}),
        ({"a1": "a", "b1": ""}, {"a": 2, "": 2}),
        ({"a1": "a", "a2": "a", "a3": "a", "a4": "a"}, {"a": 4}),
    ],
    ids=["four nodes and one", "slashes", "no job", "one job"],
)
async def test_jobs_share_equally_whatever_nodes_they_have(
    server: RedisServer, outside: Outside, jobs: dict[str, str], due: dict[str, int]
) -> None:
    callers = await join(server, **jobs)
    for caller in callers.values():
        await caller.take("s", 2 * LIMIT, LIMIT)
    await go_round(callers)
    assert by_job(outside, jobs) == due
    seen = (await callers["a1"].inspect("s")).jobs
    assert {one.job: one.held for one in seen} == (due if len(due) > 1 else {})


async def test_the_job_that_holds_the_fewest_comes_first(
    server: RedisServer, outside: Outside
) -> None:
    """Though it has used more: otherwise long requests of one job would hold all permits."""
    callers = await join(server, a="a", b="b")
    await callers["b"].take("s", 4, limit=3)
    await callers["a"].take("s", 3, limit=3)
    await callers["b"].give_back("s", 1, limit=3)
    assert outside.held() == {"a": 1, "b": 2}
    await callers["b"].give_back("s", 2, limit=3)
    assert outside.held() == {"a": 2, "b": 1}


async def test_too_many_jobs_share_like_nodes_until_they_are_fewer(
    server: RedisServer, outside: Outside
) -> None:
    names = [f"n{number}" for number in range(51)]
    callers = await join(server, **{name: name for name in names})
    for caller in callers.values():
        await caller.take("s", limit=LIMIT)
    await callers["n0"].renew("s", LIMIT)
    assert not outside.client.hexists(key("s"), "jobs")
    await callers["n0"].give_back("s", limit=LIMIT)
    assert outside.held() == dict.fromkeys(names[1 : LIMIT + 1], 1)
    outside.end_leases("n1", "s")
    await callers["n2"].renew("s", LIMIT)
    assert outside.client.hexists(key("s"), "jobs")


async def test_nodes_of_the_only_job_share_as_before(server: RedisServer, outside: Outside) -> None:
    callers = await join(server, a1="a", a2="a", b="b")
    for caller in callers.values():
        await caller.take("s", 2 * LIMIT, LIMIT)
    assert outside.client.hexists(key("s"), "jobs")
    await callers["b"].give_up("s", callers["b"].book("s").waiting, LIMIT)
    await callers["b"].renew("s", LIMIT)
    await callers["b"].give_back("s", callers["b"].held("s"), LIMIT)
    outside.edit("s", "state", due=1)
    await callers["a1"].renew("s", LIMIT)
    assert not outside.client.hexists(key("s"), "jobs")
    await go_round(callers)
    assert outside.held() == {"a1": 2, "a2": 2}
