"""An adaptive limit begins with what the last crawl of the site has learned."""

import asyncio

from semaphore_middleware import FairSemaphore, Limit
from tests.support.scopes import KEYS, look
from tests.support.simulated import SimulatedServer, in_simulated_time

REMEMBERED_MS = 7 * 86_400_000


@in_simulated_time
async def test_a_crawl_begins_with_the_limit_that_the_last_one_kept() -> None:
    site, limit = Crowded(takes=10), Limit(20, adaptive=True)
    server = SimulatedServer(lease=15.0)
    async with server.node() as a:
        await asyncio.gather(*(site.visit(a, 20) for _ in range(20)))
    assert site.refused
    (seen,) = look(server.client, "s")
    good = float(seen.learned["held_limit"])
    assert 0 < (server.expiries()[KEYS.of("s")[0]] or 0) <= REMEMBERED_MS
    await asyncio.sleep(700.0)  # and the working limit is forgotten
    assert 1 < good <= 10
    site.refused = 0
    async with server.node() as a:
        await site.visit(a, 1)
        async with a.permit("s", limit):
            assert (await a.admin.inspect("s")).limit == max(1, int(0.8 * good))
        await asyncio.gather(*(site.visit(a, 20) for _ in range(20)))
    assert site.refused <= 2


class Crowded:
    """A site that refuses requests when more than a number of them are open."""

    def __init__(self, takes: int) -> None:
        self._takes = takes
        self._open = 0
        self.refused = 0

    async def visit(self, semaphore: FairSemaphore, times: int) -> None:
        for _ in range(times):
            async with semaphore.permit("s", Limit(20, adaptive=True)) as permit:
                self._open += 1
                if self._open > self._takes:
                    self.refused += 1
                    permit.refused(retry_after=0.01)
                else:
                    await asyncio.sleep(0.005)
                    permit.answered(0.005)
                self._open -= 1
