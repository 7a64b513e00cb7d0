"""Processes that are forked: each opens the semaphore itself, under a name of its own."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import pytest

from semaphore_middleware import Admin, ClosedError, FairSemaphore, ServerUnreachableError
from tests.support.nodes import ENDLESS_S, TIMEOUT_S, eventually, in_asyncio
from tests.support.servers import RedisServer

FORK = multiprocessing.get_context("fork")
WORKERS = 4
TURNS = 25  # permits that each worker takes


def work(semaphore: FairSemaphore, server: RedisServer, results: Connection) -> None:
    """Open a semaphore that was made before the fork; tell its name, and who else was inside."""

    async def run() -> None:
        inside: list[Any] = []
        with server.client() as judge:
            async with semaphore:
                for _ in range(TURNS):
                    async with semaphore.permit("s", 1):
                        inside.append(judge.incr("inside"))
                        await asyncio.sleep(0.001)
                        judge.decr("inside")
        results.send((semaphore.node, max(inside)))

    asyncio.run(run())


@in_asyncio
async def test_one_made_at_import_and_opened_in_forked_workers_holds_its_limit(
    server: RedisServer,
) -> None:
    semaphore = FairSemaphore(server.url, node="n", turn=0)
    pipes = [FORK.Pipe(duplex=False) for _ in range(WORKERS)]
    workers = [FORK.Process(target=work, args=(semaphore, server, end)) for _, end in pipes]
    for worker, (_, theirs) in zip(workers, pipes, strict=True):
        worker.start()
        theirs.close()
    try:
        told = [await asyncio.to_thread(_heard, ours) for ours, _ in pipes]
    finally:
        for worker in workers:
            worker.kill()
            await asyncio.to_thread(worker.join)
    names, most = zip(*told, strict=True)
    assert len({*names, semaphore.node}) == WORKERS + 1
    assert most == WORKERS * (1,)
    assert server.members() == {}


def use(semaphore: FairSemaphore, results: Connection) -> None:
    """In a child: use what the parent has opened, close it, and open it for oneself."""

    async def run() -> None:
        for _ in range(2):
            with pytest.raises(ClosedError) as refused:
                await semaphore.acquire("s", 1)
            results.send(str(refused.value))
            with pytest.raises(ClosedError):
                await semaphore.admin.inspect("s")
            await semaphore.close()
        async with semaphore, semaphore.permit("child", 1):
            seen = await semaphore.admin.inspect("child")
            results.send([member.node for member in seen.members])
        results.send(semaphore.node)

    asyncio.run(run())


@in_asyncio
async def test_in_a_forked_child_one_that_the_parent_has_opened_is_refused_and_left_alone(
    server: RedisServer,
) -> None:
    async with FairSemaphore(server.url, lease=ENDLESS_S) as semaphore:
        held = await semaphore.acquire("s", 1)
        waiting = asyncio.create_task(pass_through(semaphore))
        await semaphore.admin.inspect("s")
        with server.client() as client:
            connections = {one["id"] for one in client.client_list()}
            ours, theirs = FORK.Pipe(duplex=False)
            child = FORK.Process(target=use, args=(semaphore, theirs))
            child.start()
            theirs.close()
            try:
                opened, closed, members, name = [
                    await asyncio.to_thread(_heard, ours) for _ in range(4)
                ]
                await asyncio.to_thread(child.join)
            finally:
                child.kill()
            assert "forked" in opened
            assert "not open" in closed
            assert "\n" not in opened + closed
            assert members == [name]
            assert name != semaphore.node
            assert connections <= {one["id"] for one in client.client_list()}
        # The parent still speaks, and hears what the server grants in other nodes' calls.
        assert semaphore.node != name
        async with FairSemaphore(server.url, lease=ENDLESS_S) as other:
            queued = asyncio.create_task(pass_through(other))

            async def both_wait() -> bool:
                return (await other.admin.inspect("s")).waiting == 2

            await eventually(both_wait)
            held.release()
            await asyncio.wait_for(asyncio.gather(queued, waiting), TIMEOUT_S)


def look(admin: Admin, results: Connection) -> None:
    """In a child: look with what the parent has looked with."""
    results.send(asyncio.run(admin.inspect("s")).held)
    asyncio.run(forget(admin))


def close(admin: Admin, results: Connection) -> None:
    """In a child: close what the parent looks with."""
    asyncio.run(admin.close())
    results.send(1)


async def forget(admin: Admin) -> None:
    admin._connection = None
    gc.collect()


@pytest.mark.parametrize("use_it", [look, close])
@in_asyncio
async def test_what_an_operator_s_program_does_in_a_forked_child_leaves_the_parent_s_connection(
    server: RedisServer, use_it: Callable[[Admin, Connection], None]
) -> None:
    async with FairSemaphore(server.url) as semaphore, semaphore.permit("s", 1):
        for _ in range(2):
            assert await is_held(semaphore.admin)
            ours, theirs = FORK.Pipe(duplex=False)
            child = FORK.Process(target=use_it, args=(semaphore.admin, theirs))
            child.start()
            theirs.close()
            try:
                assert await asyncio.to_thread(_heard, ours) == 1
                await asyncio.to_thread(child.join)
            finally:
                child.kill()
        assert await is_held(semaphore.admin)


async def is_held(admin: Admin) -> bool:
    try:
        return (await admin.inspect("s")).held == 1
    except ServerUnreachableError:
        pytest.fail("it hears no more over its connection")


async def pass_through(semaphore: FairSemaphore) -> None:
    async with semaphore.permit("s", 1):
        pass


def _heard(end: Connection) -> Any:
    assert end.poll(TIMEOUT_S), f"process {os.getpid()} has heard nothing"
    try:
        return end.recv()
    except EOFError:
        pytest.fail("the child has ended")
