"""A node whose limit is not the strictest says so once for a site, and names who asks for less."""

from __future__ import annotations

import asyncio

import pytest

from semaphore_middleware import FairSemaphore, Inspection, Limit, Member
from semaphore_middleware.telemetry import stricter_limits
from semaphore_middleware.telemetry.stricter_limits import StricterLimits
from tests.support.crawls import Log
from tests.support.nodes import eventually
from tests.support.servers import RedisServer

SITE = "example.com"


def said(caplog: Log) -> list[str]:
    return [line.getMessage() for line in caplog.records if line.name == stricter_limits.__name__]


@pytest.mark.parametrize("asked", [Limit(1), Limit(8, delay=0.01), Limit(8, rate="50/s")])
async def test_who_asks_for_a_stricter_limit(
    server: RedisServer, caplog: Log, asked: Limit
) -> None:
    own = Limit(8)
    fleet = FairSemaphore(server.url, node="fleet", observers=[StricterLimits()])
    visitor = FairSemaphore(server.url, node="visitor", observers=[StricterLimits()])
    async with fleet, visitor:
        (await fleet.acquire(SITE, own)).release()
        visiting = await visitor.acquire(SITE, asked)
        for _ in range(2):  # said once
            asking = asyncio.create_task(fleet.acquire(SITE, own))
            await eventually(lambda: said(caplog))
            visiting.release()
            (await asking).release()
            visiting = await visitor.acquire(SITE, asked)
        (line,) = said(caplog)
        assert f"{SITE}: another node asks for a stricter limit than this one's (limit 8)" in line
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
def test_whose_limit_is_in_force(asked: list[Limit], named: str) -> None:
    nodes = [
        Member(node, 1, 0, 0.0, 0.0, 9.0, limit) for node, limit in zip("abcd", asked, strict=False)
    ]
    seen = Inspection(SITE, 1, tuple(nodes))
    assert "".join(member.node for member in seen.strictest) == named


async def test_what_an_operator_has_set_is_nobody_s_limit(server: RedisServer, caplog: Log) -> None:
    fleet = FairSemaphore(server.url, node="fleet", observers=[StricterLimits()])
    async with fleet, FairSemaphore(server.url, node="visitor") as visitor:
        await fleet.admin.configure(SITE, 3)
        held = await visitor.acquire(SITE, 1)
        (await fleet.acquire(SITE, 8)).release()
        held.release()
        assert not said(caplog)
