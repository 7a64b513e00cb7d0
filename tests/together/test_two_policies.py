"""If two policies can handle a refusal, one of them does."""

from semaphore_middleware.model.limits import Limit
from tests.core.test_refusals import REFUSED, one_more
from tests.politeness.test_learned_interval import meter, taught
from tests.support.nodes import Caller, Outside
from tests.support.servers import RedisServer


async def test_an_interval_answers_a_refusal_in_place_of_an_adaptive_limit(
    server: RedisServer, outside: Outside
) -> None:
    a = await Caller.join(server, "a")
    await meter(a, outside)
    assert await taught(a) > 0
    adaptive = Limit(8, adaptive=True)
    await a.give_back("s", limit=adaptive)
    outside.edit("s", "learned", working_limit=8, next_by_interval=0, calm_until=0)
    await one_more(a, outside, REFUSED)
    assert float(outside.look("s")[0].learned["working_limit"]) == 8
