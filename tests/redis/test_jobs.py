"""How jobs share a site, one statement after another; `tests/simulation` measures their shares."""

from __future__ import annotations

from collections import defaultdict

import pytest

from semaphore_middleware.core.admin import Admin
from semaphore_middleware.errors import SettingsError
from tests.support.nodes import KEYS, Caller, Outside
from tests.support.servers import RedisServer

LIMIT = 4


async def join(server: RedisServer, **jobs: str) -> dict[str, Caller]:
    """Nodes, each with its job and perhaps a weight, as in "news/fr 3"."""
    callers = {}
    for name, text in jobs.items():
        job, _, weight = text.partition(" ")
        callers[name] = await Caller.join(server, name, job=job, weight=float(weight or 1))
    return callers


async def go_round(callers: dict[str, Caller], times: int = 12) -> None:
    """Each node in turn gives a permit back, if it has one, and asks for another."""
    for _ in range(times):
        for caller in callers.values():
            await caller.renew("s", LIMIT)
            if caller.held("s"):
                await caller.give_back("s", limit=LIMIT, take=1)


def by_job(outside: Outside, jobs: dict[str, str]) -> dict[str, int]:
    held: dict[str, int] = defaultdict(int)
    for name, count in outside.held().items():
        held[jobs[name].partition(" ")[0]] += count
    return held


@pytest.mark.parametrize(
    ("jobs", "due"),
    [
        ({"a1": "a", "a2": "a", "a3": "a", "a4": "a", "b1": "b"}, {"a": 2, "b": 2}),
        ({"a1": "a", "a2": "a", "b1": "b 3"}, {"a": 1, "b": 3}),
        ({"a1": "a/x", "a2": "a/y", "a3": "a/z", "b1": "b"}, {"b": 2}),
        ({"a1": "a/x 3", "a2": "a/y", "b1": ""}, {"": 2}),
        ({"a1": "a", "a2": "a", "a3": "a", "a4": "a"}, {"a": 4}),
    ],
    ids=["ten nodes and one", "weights", "a group", "no job", "one job"],
)
async def test_jobs_share_by_weight_whatever_nodes_they_have(
    server: RedisServer, outside: Outside, jobs: dict[str, str], due: dict[str, int]
) -> None:
    callers = await join(server, **jobs)
    for caller in callers.values():
        await caller.take("s", 2 * LIMIT, LIMIT)
    await go_round(callers)
    held = by_job(outside, jobs)
    assert {job: held[job] for job in due} == due
    assert sum(held.values()) == LIMIT


async def test_an_operator_s_weight_holds_for_all(server: RedisServer, outside: Outside) -> None:
    jobs = {"a": "news", "b": "shop"}
    callers = await join(server, **jobs)
    async with Admin(server.url) as admin:
        await admin.share("news", 3)
        for caller in callers.values():
            await caller.take("s", 2 * LIMIT, LIMIT)
        await go_round(callers)
        seen = (await admin.inspect("s")).jobs
        assert [(one.job, one.weight, one.held) for one in seen] == [("news", 3, 3), ("shop", 1, 1)]
        assert await admin.weights() == {"news": 3.0}
        await admin.share("news", None)
        await go_round(callers)
        assert by_job(outside, jobs) == {"news": 2, "shop": 2}
        for job, weight in (("/news", 1), ("news", 0), ("x" * 101, 1)):
            with pytest.raises(SettingsError, match="allowed is"):
                await admin.share(job, weight)


async def test_what_a_job_does_not_use_others_have(server: RedisServer, outside: Outside) -> None:
    jobs = {"a": "a", "b": "b 100"}
    callers = await join(server, **jobs)
    await callers["b"].take("s", 1, LIMIT)
    await callers["a"].take("s", 2 * LIMIT, LIMIT)
    await go_round(callers)
    assert by_job(outside, jobs) == {"a": 3, "b": 1}


async def test_nodes_of_the_only_job_share_as_before(server: RedisServer, outside: Outside) -> None:
    callers = await join(server, a1="a", a2="a", b="b")
    key = KEYS.of("s")[0]
    for caller in callers.values():
        await caller.take("s", 2 * LIMIT, LIMIT)
    assert outside.client.hexists(key, "jobs")
    await callers["b"].give_up("s", callers["b"].book("s").waiting, LIMIT)
    await callers["b"].renew("s", LIMIT)
    await callers["b"].give_back("s", callers["b"].held("s"), LIMIT)
    outside.edit("s", "state", due=1)
    await callers["a1"].renew("s", LIMIT)
    assert not outside.client.hexists(key, "jobs")
    await go_round(callers)
    assert outside.held() == {"a1": 2, "a2": 2}
