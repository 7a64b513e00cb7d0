"""What is said at once, and what waits for more to be said in the same call."""

from __future__ import annotations

import asyncio

from semaphore_middleware.core.ledger import Ledger
from semaphore_middleware.model.limits import Limit
from semaphore_middleware.redis.protocol import Ask, Reply
from tests.support.nodes import in_asyncio

ROOMY, FULL = 5, 0  # permits to spare


class Said:
    """A ledger, and whether what it had to say was to be said at once."""

    def __init__(self) -> None:
        self.at_once: list[bool] = []
        self.ledger = Ledger(600.0, lambda _: None, self.at_once.append)
        loop = asyncio.get_running_loop()
        now = loop.time()
        loop.time = lambda: now  # type: ignore[method-assign]  # no machine is too slow for the test

    def keep_busy(self) -> None:
        for _ in range(200):
            self.ledger.ask("other", Limit(1000)).release()
        self.at_once.clear()

    def hear(self, scope: str, spare: int, *numbers: int) -> None:
        ask = Ask("acquire", scope, Limit(9), numbers)
        self.ledger.settle(Reply(ask, numbers, (), spare, None, 9, False, None), sent=0.0)


@in_asyncio
async def test_who_asks_for_little_asks_at_once() -> None:
    said = Said()
    said.ledger.ask("s", Limit(9))
    assert said.at_once == [True]
    said.ledger.stop_timers()


@in_asyncio
async def test_a_busy_node_gathers_what_nobody_waits_for() -> None:
    said = Said()
    said.keep_busy()
    permit = said.ledger.ask("s", Limit(9))
    said.ledger.gather(0.0)
    said.hear("s", ROOMY, permit.number)
    permit.release()
    assert said.at_once == [False, False]
    said.ledger.stop_timers()


@in_asyncio
async def test_of_a_full_site_all_is_said_at_once() -> None:
    said = Said()
    said.keep_busy()
    permit = said.ledger.ask("s", Limit(9))
    said.ledger.gather(0.0)
    said.hear("s", FULL, permit.number)
    said.ledger.ask("s", Limit(9))
    permit.release()
    assert said.at_once == [False, True, True]
    said.hear("s", ROOMY)
    said.ledger.ask("s", Limit(9))
    assert said.at_once[3:] == [False]
    said.ledger.stop_timers()
