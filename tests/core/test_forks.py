"""Processes that are forked: each opens the semaphore itself, under a name of its own."""

import asyncio
import gc
import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import pytest

from semaphore_middleware import Admin, ClosedError, FairSemaphore
from tests.support.nodes import until_waiting
from tests.support.servers import RedisServer
from tests.support.times import TIMEOUT_S

FORK = multiprocessing.get_context("fork")


@contextmanager
def forked(work: Callable[..., None], *args: Any) -> Iterator[Callable[[], Any]]:
    """Do the work in a child, which gets a pipe as well. Yields a function that returns its next
    message.
    """
    ours, theirs = FORK.Pipe(duplex=False)
    child = FORK.Process(target=work, args=(*args, theirs))
    child.start()
    theirs.close()

    def heard() -> Any:
        assert ours.poll(TIMEOUT_S), "the child has said nothing"
        return ours.recv()

    try:
        yield heard
        child.join(TIMEOUT_S)
    finally:
        child.kill()
        child.join()


def use(semaphore: FairSemaphore, unopened: FairSemaphore, results: Connection) -> None:
    """In a child: use the semaphore that the parent has opened, close it, and open it again; and
    open one that the parent has only made.
    """

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
        async with unopened:
            results.send((semaphore.node, unopened.node))

    asyncio.run(run())


async def test_what_the_parent_opened_is_refused_in_a_forked_child(server: RedisServer) -> None:
    async with FairSemaphore(server.url) as semaphore:
        held = await semaphore.acquire("s", 1)
        waiting = asyncio.create_task(semaphore.acquire("s", 1))
        await semaphore.admin.inspect("s")
        with server.client() as client:
            connections = {one["id"] for one in client.client_list()}
            unopened = FairSemaphore(server.url)
            with forked(use, semaphore, unopened) as heard:
                opened, closed, members, names = [await asyncio.to_thread(heard) for _ in range(4)]
            assert "forked" in opened
            assert "not open" in closed
            assert "\n" not in opened + closed
            assert members == [names[0]]
            assert len({*names, semaphore.node, unopened.node}) == 4
            assert connections <= {one["id"] for one in client.client_list()}
        # The parent still makes calls, and is notified of grants in other nodes' calls.
        async with FairSemaphore(server.url) as other:
            queued = asyncio.create_task(other.acquire("s", 1))
            await until_waiting(other, 2)
            held.release()
            for granted in asyncio.as_completed([queued, waiting], timeout=TIMEOUT_S):
                (await granted).release()


def look(admin: Admin, results: Connection) -> None:
    """In a child: inspect with the `Admin` that the parent has used, and forget it."""
    results.send(asyncio.run(admin.inspect("s")).held)
    admin._link._connection = None
    gc.collect()


def close(admin: Admin, results: Connection) -> None:
    """In a child: close the `Admin` that the parent uses."""
    asyncio.run(admin.close())
    results.send(1)


@pytest.mark.parametrize("use_it", [look, close])
async def test_what_a_forked_child_does_leaves_the_parent_s_connection(
    server: RedisServer, use_it: Callable[[Admin, Connection], None]
) -> None:
    async with FairSemaphore(server.url) as semaphore, semaphore.permit("s", 1):
        for _ in range(2):
            assert (await semaphore.admin.inspect("s")).held == 1
            with forked(use_it, semaphore.admin) as heard:
                assert await asyncio.to_thread(heard) == 1
        assert (await semaphore.admin.inspect("s")).held == 1, "over its connection"
