"""Messages come, or the subscription is made anew, and somebody is told."""

from typing import Any

import pytest

from semaphore_middleware import FairSemaphore
from semaphore_middleware.errors import ServerUnreachableError
from semaphore_middleware.redis.location import Server
from tests.support.crawls import Log
from tests.support.nodes import eventually
from tests.support.restricted import Restricted
from tests.support.servers import RedisServer

MILLISECONDS = 0.01


async def test_a_closed_connection_is_not_opened_again_to_send(server: RedisServer) -> None:
    """redis-py would connect again, without the subscription: PING is answered, no more comes."""
    connection = await Server(server.url, 5.0).connect()
    raw: Any = connection._connection
    read = raw.read_response

    async def read_response(**options: Any) -> Any:
        reply = await read(**options)
        if reply is None:  # time is up, and just now somebody renews the subscription
            await connection.close()
        return reply

    raw.read_response = read_response
    with pytest.raises(ServerUnreachableError, match="the connection is closed"):
        await connection.listen([b"channel"], MILLISECONDS, lambda _: None)
    assert not raw.is_connected


async def test_a_subscription_that_brings_no_message_is_made_anew_and_said(
    server: RedisServer, caplog: Log
) -> None:
    async with Restricted(server.path) as proxy:
        proxy.brings_messages = False
        async with FairSemaphore(proxy.url, lease=1, recovery_wait=0) as semaphore:
            await eventually(lambda: "brings no messages" in caplog.text)
            subscribed = [one for one in proxy.commands if one[0] == b"SUBSCRIBE"]
            assert len(subscribed) >= 3, "one was tried at the start; the first to fail is not said"
            line = f"{proxy.url} brings no messages. Without it some permits come up to 0.3 s late."
            assert caplog.messages == [line]
            proxy.brings_messages = True
            await eventually(lambda: "Reached" in caplog.text)
            async with semaphore.permit("s", 1):
                pass
