"""Managed servers, whose scripts may not use INFO: the nodes send them its output."""

import re
from itertools import count

from semaphore_middleware import FairSemaphore
from semaphore_middleware.operators.admin import Admin
from tests.core.test_epoch import evict_all
from tests.support.nodes import KEYS, Caller, Outside, refusal
from tests.support.restricted import NOT_IN_SCRIPTS, Restricted
from tests.support.servers import RedisServer, free_port


def managed(server: RedisServer) -> Restricted:
    """A server whose scripts may not use INFO."""
    proxy = Restricted(server.path)
    proxy.lua = NOT_IN_SCRIPTS.format(command="INFO")
    return proxy


async def test_nodes_and_operators_work(server: RedisServer, outside: Outside) -> None:
    async with managed(server) as proxy:
        outside.client.delete(KEYS.epoch)
        async with Admin(proxy.url) as admin, FairSemaphore(proxy.url) as semaphore:
            assert (await admin.server_state()).recovery_left > 0
            await admin.trust()
            async with semaphore.permit("s", 1):
                outside.client.config_set("maxmemory", 1)
                async with semaphore.permit("t", 1):
                    assert (await admin.inspect("t")).held == 1


async def test_each_loss_of_data_is_a_new_epoch(server: RedisServer, outside: Outside) -> None:
    async with managed(server) as proxy:
        a = await Caller.join(proxy, "a")

        async def is_noticed(check: bool) -> bool:
            replies = await a.store.sync(a.connection, [a.next_update("s", requested=1)], check)
            await a.recovery.join_epoch(a.connection)
            return replies is None

        assert not await is_noticed(check=True)
        outside.client.flushall()
        assert await is_noticed(check=False)
        outside.client.replicaof("127.0.0.1", free_port())
        outside.client.replicaof("NO", "ONE")
        assert await is_noticed(check=True)
        assert not await is_noticed(check=True)
        assert len(a.losses) == 2


async def test_what_is_granted_while_keys_are_evicted_is_not_used(
    server: RedisServer, outside: Outside
) -> None:
    async with managed(server) as proxy:
        outside.client.config_set("maxmemory-policy", "volatile-ttl")
        outside.client.config_set("maxmemory", 10**9)
        a, b = [await Caller.join(proxy, name) for name in "ab"]
        outside.end_recovery()
        assert (await a.take("s")).granted == 1
        evict_all(outside)
        update = b.next_update("s", requested=1)
        assert await b.store.sync(b.connection, [update]) is None
        epoch = b.recovery.epoch
        await b.recovery.join_epoch(b.connection)
        assert b.recovery.epoch != epoch, "it waits for what was lost"
        assert await b.store.sync(b.connection, [update]) is not None


async def test_a_server_that_comes_between_info_and_script_is_noticed_by_the_next_look(
    server: RedisServer,
) -> None:
    async with managed(server) as proxy:
        a = await Caller.join(proxy, "a")
        proxy.edit_info = lambda info: re.sub("run_id:.", "run_id:?", info)
        assert await a.store.sync(a.connection, [], check=True) is None
        proxy.edit_info = lambda info: info
        assert await a.store.sync(a.connection, [], check=True) is None
        assert await a.store.sync(a.connection, [], check=True) == []


async def test_a_run_id_that_changes_from_call_to_call_is_refused(server: RedisServer) -> None:
    """A proxy answers INFO itself, or asks any of several servers."""
    async with Restricted(server.path) as proxy:
        numbers = count()
        proxy.edit_info = lambda info: re.sub("run_id:", f"run_id:{next(numbers) % 2}", info)
        line = await refusal(proxy.url)
        assert "is not one server: its run_id in INFO changes from call to call" in line
        numbers = count()
        proxy.edit_info = lambda info: re.sub("run_id:", f"run_id:{next(numbers) > 4}", info)
        async with FairSemaphore(proxy.url):  # it was replaced by another one, once
            pass
