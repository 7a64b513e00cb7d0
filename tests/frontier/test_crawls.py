"""All shared crawls of a server, as operators see them."""

from __future__ import annotations

import pytest
from redis import Redis

from semaphore_middleware.errors import ServerRefusedError
from semaphore_middleware.frontier.crawls import Crawls
from tests.frontier.verbs import node
from tests.redis.test_rights import rights_of
from tests.support.frontier import result_of
from tests.support.servers import RedisServer


def test_keys_that_are_not_ours_hide_no_crawl(server: RedisServer, client: Redis) -> None:
    node(client, "one", crawl="books")
    client.set("{crawl:text}:run", "1")
    client.hset("{crawl:text elsewhere}:run", "id", "1")
    client.set("{crawl:text elsewhere}:queue", "1")
    client.hset("{crawl:no number}:run", mapping={"id": "1", "pages": "many"})
    client.hset(b"{crawl:\xff}:run", "id", "1")
    assert list(result_of(Crawls(server.url).survey())) == ["books"]


def test_a_right_that_is_missing_is_named(client: Redis) -> None:
    node(client, "one", crawl="books")
    rights = (*rights_of("frontier", client), "+scan", "-zcard")
    client.execute_command("ACL", "SETUSER", "operator", "reset", "on", ">p", *rights)  # type: ignore[no-untyped-call]
    path = client.connection_pool.connection_kwargs["path"]
    with pytest.raises(ServerRefusedError, match="zcard"):
        result_of(Crawls(f"unix://operator:p@{path}").survey())
