"""`trust` lets a server grant permits at once: it says what may happen, and asks twice."""

from __future__ import annotations

import asyncio

import pytest

from semaphore_middleware import FairSemaphore
from tests.support.cli import SITE, semaphore
from tests.support.nodes import ENDLESS_S, TIMEOUT_S, Outside
from tests.support.servers import RedisServer

EXPLAINED = (
    "is to grant permits at once, as if it had granted none before. If a node still holds any, a "
    "site may see too many requests, for up to one lease (15 s)."
)


async def test_who_waits_gets_a_permit_at_once(server: RedisServer, outside: Outside) -> None:
    outside.client.flushall()
    async with FairSemaphore(server.url, lease=ENDLESS_S) as living:
        waiting = asyncio.create_task(living.acquire(SITE, 1))
        ran = await semaphore(server, "trust", "--yes")
        assert (ran.status, ran.err) == (0, "")
        assert ran.lines == [f"{server.url} {EXPLAINED}", "Permits are granted from now on."]
        (await asyncio.wait_for(waiting, TIMEOUT_S)).release()


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        ("y\ny\n", 0, "Permits are granted from now on."),
        ("y\n\n", 1, "Nothing was changed."),
        ("n\n", 1, "Nothing was changed."),
    ],
)
async def test_it_asks_twice_on_a_terminal_and_elsewhere_wants_to_be_told_so(
    server: RedisServer, outside: Outside, answer: str, status: int, said: str
) -> None:
    outside.client.flushall()
    ran = await semaphore(server, "trust", answer=answer)
    assert ran == (2, "", "scrapy semaphore: trust asks on a terminal; elsewhere give --yes\n")
    assert not outside.client.keys("*")
    ran = await semaphore(server, "trust", answer=answer, in_terminal=True)
    assert (ran.status, ran.err) == (status, "")
    assert ran.out.count("[y/N] ") == answer.count("\n")
    assert ran.out.endswith(f"{said}\n")
    assert bool(outside.client.keys("*")) == (status == 0)
