"""How `scrapy frontier status` shows blocked sites."""

from tests.politeness.test_blocked import block
from tests.shared_crawl.test_command import ran
from tests.support.nodes import Caller, Outside
from tests.support.servers import RedisServer
from tests.support.shared_crawl import looking_at, node


async def test_blocked_sites_are_listed(server: RedisServer) -> None:
    with looking_at(server) as client:
        node(client, "one", crawl="books").push(b"a")
    caller = await Caller.join(server, "a")
    await block(caller, Outside(server))
    said = (
        "s is blocked. It has refused all requests for 10 min, the last one with status 403; its "
        "requests fail until it answers one."
    )
    assert ran(server, "status").lines[-1] == said
