"""The log explains once why a request waits for long, and who asks for a stricter limit."""

import asyncio
import logging
import re
from dataclasses import replace
from typing import Any, Self

import pytest

from semaphore_middleware import Admin, FairSemaphore, Inspection, Limit, Member, Permit
from semaphore_middleware.core.observer import Observer, PermitWaiting
from semaphore_middleware.errors import ServerUnreachableError
from semaphore_middleware.model.reasons import BY_NAME
from semaphore_middleware.operators import long_waits
from semaphore_middleware.operators.long_waits import LongWaits, StricterLimits, explanation
from semaphore_middleware.politeness import ALL_REASONS
from tests.support.crawls import Crawl, Log, Patch, pages, set_options, waiting
from tests.support.nodes import Caller, Outside, Recorder, calls_of, eventually
from tests.support.servers import RedisServer
from tests.support.site import Site
from tests.support.times import ENDLESS_S

LONG_WAIT_S = 0.05  # the option, in these tests
HOST = "127.0.0.1"


@pytest.fixture(autouse=True)
def brief(monkeypatch: Patch, caplog: Log) -> None:
    caplog.set_level(logging.INFO)
    for wait in ("FIRST_LOOK_S", "RETRY_S"):
        monkeypatch.setattr(long_waits, wait, LONG_WAIT_S)


def explained(caplog: Log) -> list[str]:
    return [line.getMessage() for line in caplog.records if line.name == long_waits.__name__]


class Looking(FairSemaphore):
    """A semaphore whose long waits are explained; its calls of `inspect` can be held up."""

    def __init__(
        self, server: RedisServer, *observers: Observer, long_wait: float = LONG_WAIT_S
    ) -> None:
        self.waits = LongWaits(long_wait)
        super().__init__(
            server.url, lease=ENDLESS_S, observers=[self.waits, *observers], explain_waits=0
        )
        self.begun = self.ended = 0
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._inspect, self.admin.inspect = self.admin.inspect, self._look  # type: ignore[method-assign]
        return self

    async def _look(self, scope: str) -> Inspection:
        self.begun += 1
        seen = await self._inspect(scope)
        await self.may_end.wait()
        self.ended += 1
        return seen

    def wait_for(self, scope: str) -> asyncio.Task[Permit]:
        return asyncio.create_task(self.acquire(scope, 1))


async def test_who_waits_for_long(
    server: RedisServer, site: Site, caplog: Log, monkeypatch: Patch
) -> None:
    set_options(monkeypatch, explain_waits=0.5)
    async with FairSemaphore(server.url, node="other") as other:
        held = await other.acquire(HOST, 2)
        crawl = Crawl(server, *pages(site, 3, "/slow/"), limit=2)
        await eventually(lambda: waiting(server) == 2)
        await eventually(lambda: explained(caplog))
        node = crawl.crawler.settings["SEMAPHORE_NODE"]
        [line] = explained(caplog)
        assert line.startswith(f"{HOST}: a request has waited ")
        assert "On all nodes 2 wait for one, on this node 2. The limit is 2." in line
        assert f"{other.node} (1)" in line
        assert f"{node} (1)" in line
        assert line.endswith(f" s by {other.node}. All permits are held.")
        held.release()
        await crawl.finished(site)
    assert len(explained(caplog)) == 1


async def test_a_program_that_waits_for_itself(server: RedisServer, caplog: Log) -> None:
    async with FairSemaphore(server.url, node="n", explain_waits=LONG_WAIT_S) as semaphore:
        async with semaphore.permit("a", 1):
            waiter = asyncio.create_task(semaphore.acquire("a", 1))
            await eventually(lambda: explained(caplog))
        (await waiter).release()
    (line,) = explained(caplog)
    assert " s for a permit. On all nodes 1 wait for one, on this node 1. The limit is 1. " in line
    assert f"1 held by {semaphore.node} (1)" in line


async def test_a_killed_holder(server: RedisServer, outside: Outside, caplog: Log) -> None:
    await (await Caller.join(server, "killed")).take("a")
    end = outside.look("a")[0].entries["killed"]["lease_end"]
    outside.edit("a", "node:killed", lease_end=end - 500 * ENDLESS_S)  # half of it is over
    async with FairSemaphore(server.url) as semaphore:
        waiter = asyncio.create_task(semaphore.acquire("a", 1))
        await eventually(lambda: explained(caplog))
        waiter.cancel()
    (line,) = explained(caplog)
    assert re.search(r"killed seems to be gone: its permits are free in (300|29\d) s\.", line)


async def test_one_look_for_all(server: RedisServer, caplog: Log, monkeypatch: Patch) -> None:
    monkeypatch.setattr(long_waits, "SCOPE_INTERVAL_S", LONG_WAIT_S)
    async with Looking(server) as semaphore:
        held = [await semaphore.acquire(scope, 1) for scope in "ab"]
        waiters = [semaphore.wait_for(scope) for scope in "aaab"]
        await eventually(lambda: len(explained(caplog)) == 2)
        assert sorted(line[0] for line in explained(caplog)) == ["a", "b"]
        waiters.append(semaphore.wait_for("a"))
        await eventually(lambda: len(explained(caplog)) == 3)  # the late one too
        assert "on this node 4." in explained(caplog)[2]
        assert semaphore.begun == 3
        await semaphore.waits.close()
        for task in waiters:
            task.cancel()
        for permit in held:
            permit.release()


async def test_not_all_the_time(server: RedisServer, caplog: Log, monkeypatch: Patch) -> None:
    monkeypatch.setattr(long_waits, "SCOPE_INTERVAL_S", 600.0)
    recorder = Recorder()
    async with Looking(server, recorder, long_wait=0.0) as semaphore:
        held = {scope: await semaphore.acquire(scope, 1) for scope in "ab"}
        first = semaphore.wait_for("a")
        await eventually(lambda: len(explained(caplog)) == 1)
        held["a"].release()
        held["a"] = await first
        second = semaphore.wait_for("a")
        await eventually(lambda: recorder.count(PermitWaiting) == 2)
        other = semaphore.wait_for("b")
        await eventually(lambda: len(explained(caplog)) == 2)
        assert [line[0] for line in explained(caplog)] == ["a", "b"]  # each once
        for scope, waiter in (("a", second), ("b", other)):
            held[scope].release()
            (await waiter).release()
        await semaphore.waits.close()


@pytest.mark.parametrize("is_closed", [False, True])
async def test_a_wait_that_has_ended(server: RedisServer, caplog: Log, is_closed: bool) -> None:
    async with Looking(server) as semaphore:
        semaphore.may_end.clear()
        held = await semaphore.acquire("a", 1)
        waiter = semaphore.wait_for("a")
        await eventually(lambda: semaphore.begun)
        if is_closed:
            await semaphore.waits.close()
        held.release()
        (await waiter).release()
        semaphore.may_end.set()
        if not is_closed:
            await eventually(lambda: semaphore.ended)
            await eventually(lambda: not semaphore.waits._watched)  # the scope is unwatched
    assert explained(caplog) == []
    assert (semaphore.begun, semaphore.ended) == (1, 0 if is_closed else 1)


async def test_a_server_is_asked_once_it_can_be(
    server: RedisServer, caplog: Log, monkeypatch: Patch
) -> None:
    waits, recorder = LongWaits(LONG_WAIT_S), Recorder()
    async with FairSemaphore(server.url, observers=[recorder], explain_waits=0) as semaphore:
        await waits.open(semaphore)
        held = await semaphore.acquire("a", 1)
        waiter = asyncio.create_task(semaphore.acquire("a", 1))
        await eventually(lambda: recorder.count(PermitWaiting))
        looks = calls_of(monkeypatch, Admin, "inspect")
        with server.frozen():
            waits.on_event(next(e for e in recorder.events if isinstance(e, PermitWaiting)))
            await eventually(lambda: looks)
            assert explained(caplog) == []
        await eventually(lambda: explained(caplog))
        await waits.close()
        waiter.cancel()
        held.release()


def holder(node: str, held: int, oldest: float) -> Member:
    return Member(node, held, 0, oldest, 0.0, 10.0, Limit(4))


WAITING = Member("c", 0, 12, 0.0, 61.0, 10.0, Limit(4))
FULL_UP = BY_NAME["full"]
FULL = Inspection(
    "example.com",
    limit=4,
    members=(WAITING, holder("b", 1, 75.2), holder("a", 3, 5.0)),
    reason=FULL_UP,
)


def test_a_full_site_names_those_that_hold_most_and_the_oldest() -> None:
    assert explanation(FULL, 61.3, 8) == (
        "example.com: a request has waited 61 s for a permit. On all nodes 12 wait for one, on "
        "this node 8. The limit is 4. 4 held by a (3), b (1); the oldest for 75 s by b. "
        "All permits are held."
    )
    # Requests not sent to the server yet are counted.
    assert "On all nodes 15 wait for one, on this node 15." in explanation(FULL, 61.3, 15)
    crowd = replace(FULL, limit=20, members=tuple(holder(f"n{n}", 2, n) for n in range(9)))
    line = explanation(crowd, 61.3, 8)
    assert "18 held by n0 (2), n1 (2), n2 (2), n3 (2), n4 (2), 4 more nodes;" in line


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"set_by": "ops"}, "The limit is 4, with a rule set by ops."),
        (
            {"effective": Limit(4, delay=30.0, rate="60/m")},
            "The limit is 4, delay 30 s, rate 60/m.",
        ),
        ({"limit": 2, "limit_max": 8}, "The limit is 2, of at most 8."),
        ({"limit": None, "members": ()}, "The limit is unknown. Nobody holds a permit."),
        ({"reason": None}, "Permits are free: it is about to get one."),
        *(
            ({"reason": reason}, f" {reason.sentence}")
            for reason in ALL_REASONS
            if reason != FULL_UP
        ),
        ({"reason": ALL_REASONS[0], "wait": 12.4}, "its data. Nothing starts for another 12 s."),
    ],
)
def test_what_limits_a_site_and_what_is_in_the_way(changes: dict[str, Any], text: str) -> None:
    assert text in explanation(replace(FULL, **changes), 61.3, 8)
    assert text not in explanation(FULL, 61.3, 8)


# Whose limit is effective ------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [Limit(1), Limit(8, delay=0.01), Limit(8, rate="50/s")])
async def test_who_wants_a_stricter_limit(
    server: RedisServer, caplog: Log, monkeypatch: Patch, asked: Limit
) -> None:
    own = Limit(8)
    fleet = FairSemaphore(server.url, node="fleet", observers=[StricterLimits()])
    visitor = FairSemaphore(server.url, node="visitor", observers=[StricterLimits()])
    problems = iter([ServerUnreachableError("away for a moment")])

    async def inspect(scope: str) -> Inspection:
        for problem in problems:
            raise problem
        return await visitor.admin.inspect(scope)

    async with fleet, visitor:
        monkeypatch.setattr(fleet.admin, "inspect", inspect)
        (await fleet.acquire(HOST, own)).release()
        visiting = await visitor.acquire(HOST, asked)
        for _ in range(2):  # logged once
            asking = asyncio.create_task(fleet.acquire(HOST, own))
            await eventually(lambda: explained(caplog))
            visiting.release()
            (await asking).release()
            visiting = await visitor.acquire(HOST, asked)
        (line,) = explained(caplog)
        assert f"{HOST}: another node asks for a stricter limit than this one's (limit 8)" in line
        assert f"{visitor.node} ({asked})" in line


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ([Limit(8), Limit(8)], ""),
        ([Limit(8), Limit(1)], "b"),
        ([Limit(8), Limit(2), Limit(2), Limit(4)], "bc"),
        ([Limit(1), Limit(8, delay=1), Limit(8)], "ab"),
        ([Limit(8, rate="60/m"), Limit(8, rate="30/m"), Limit(8)], "b"),
        ([], ""),
    ],
)
def test_whose_limit_is_effective(asked: list[Limit], named: str) -> None:
    nodes = zip("abcd", asked, strict=False)
    members = tuple(Member(node, 1, 0, 0.0, 0.0, 9.0, limit) for node, limit in nodes)
    seen = Inspection(HOST, 1, members)
    assert "".join(member.node for member in seen.strictest) == named


async def test_what_an_operator_has_set_is_nobody_s_limit(server: RedisServer, caplog: Log) -> None:
    fleet = FairSemaphore(server.url, node="fleet", observers=[StricterLimits()])
    async with fleet, FairSemaphore(server.url, node="visitor") as visitor:
        await fleet.admin.configure(HOST, 3)
        held = await visitor.acquire(HOST, 1)
        (await fleet.acquire(HOST, 8)).release()
        held.release()
        assert not explained(caplog)
