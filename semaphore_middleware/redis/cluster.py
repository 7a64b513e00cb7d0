"""Asks nodes of a Redis Cluster which of them owns the slot that all our keys are in."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from redis.crc import key_slot
from redis.exceptions import ResponseError

from semaphore_middleware.errors import ServerRefusedError, ServerUnreachableError
from semaphore_middleware.redis.connection import Address
from semaphore_middleware.redis.connector import Connector

NOT_A_NODE = ("cluster support disabled", "unknown command")  # the latter says a sentinel
NO_HOST_NAME = b"?"  # in place of a name, where nodes are known by names and this one has none


class Cluster:
    """The nodes that a URL names, and those that the last answer named. Each time another one is
    asked first: one that is cut off may name an owner of the slot that was replaced.

    `key` is any of our keys.
    """

    def __init__(self, addresses: Iterable[Address], key: bytes, connector: Connector) -> None:
        self._named = tuple(addresses)
        self._nodes = deque(self._named)
        self._slot = key_slot(key)
        self._connector = connector

    async def find_master(self) -> Address:
        """Where the owner of our slot is, as the first node that answers says.

        Raises `ServerUnreachableError`, or `ServerRefusedError` where waiting would not help.
        """
        owner, _ = await self._find()
        return owner

    async def find_masters(self) -> list[Address]:
        """Where all masters with slots are. Raises the same errors."""
        _, masters = await self._find()
        return masters

    async def _find(self) -> tuple[Address, list[Address]]:
        problem: Exception | None = None
        for _ in range(len(self._nodes)):
            address = self._nodes[0]
            self._nodes.rotate(-1)
            try:
                return await self._ask(address)
            except ServerUnreachableError as error:
                problem = error
            except ServerRefusedError as error:
                problem = problem or error  # another one may come back
        assert problem is not None
        raise problem

    async def _ask(self, address: Address) -> tuple[Address, list[Address]]:
        """The owner of our slot, and all masters."""
        name = f"the cluster's node at {address}"
        connection = await self._connector.connect(address, name)
        try:
            (reply,) = await connection.call([("CLUSTER", "SLOTS")])
        finally:
            await connection.close()
        if isinstance(reply, ResponseError) and any(one in str(reply) for one in NOT_A_NODE):
            raise ServerRefusedError(f"{address} is not a node of a cluster")
        connection.check([reply])
        owner: Address | None = None
        masters, present = [], []
        for first, last, *nodes in reply:
            found = [_address(node, address) for node in nodes]
            masters.append(found[0])
            present += found
            if first <= self._slot <= last:
                owner = found[0]
        if owner is None:
            raise ServerUnreachableError(f"{name} knows no owner of slot {self._slot}")
        # Those that have gone are not asked any more: each would cost a call's time.
        kept = [node for node in self._nodes if node in self._named or node in present]
        self._nodes = deque(dict.fromkeys([*kept, *present]))
        return owner, list(dict.fromkeys(masters))


def _address(node: Any, asked: Address) -> Address:
    """The address of a node in the reply. One that does not know its own is where it was asked."""
    host, port, _, *more = node
    if host == NO_HOST_NAME:
        named = dict(zip(more[0][::2], more[0][1::2], strict=True))
        host = named.get(b"ip")
    return Address(host.decode() if host else asked.host, port)
