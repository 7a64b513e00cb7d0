"""One node's calls to the scripts: asks in, replies out."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

from semaphore_middleware.model.feedback import Backoff
from semaphore_middleware.model.hosts import encoded
from semaphore_middleware.redis.connection import Connection
from semaphore_middleware.redis.keys import Keys
from semaphore_middleware.redis.protocol import (
    EPOCH_KEPT_S,
    Ask,
    Reply,
    batches,
    clock_step_ms,
    milliseconds,
    pack_ask,
)
from semaphore_middleware.redis.recovery import Recovery
from semaphore_middleware.redis.scripts import evaluate


class Store:
    """One node's calls to the scripts.

    Without `recovery` it does nothing for scopes of an unknown epoch: nobody holds their permits.
    """

    def __init__(
        self,
        keys: Keys,
        node: str,
        lease: float,
        recovery: Recovery | None = None,
        backoff: Backoff = Backoff(),  # noqa: B008 - it is frozen
    ) -> None:
        self._keys = keys
        self._node = encoded(node)
        self._lease = lease
        self._recovery = recovery
        self._backoff = backoff

    @property
    def channels(self) -> tuple[bytes, bytes]:
        """The channel on which this node is notified of grants that another node's call has caused,
        and the one on which all nodes are notified of changed rules.
        """
        return self._keys.grants + self._node, self._keys.changes

    def meet(self, connection: Connection) -> None:
        """Take note of a new connection, before it is used."""
        if self._recovery is not None:
            self._recovery.note_state(connection)

    async def run(
        self, connection: Connection, asks: Sequence[Ask], first_apart: bool = False
    ) -> list[Reply]:
        """Send all asks in one go, in their order, and read all replies.

        `first_apart`: somebody waits for what the first call, a release as a rule, sets free.
        Raises `ServerUnreachableError`; every ask can then be sent again without harm.
        """
        replies: list[Reply] = []
        while asks:
            calls = list(batches(asks))
            packed = [self._pack(connection, call) for call in calls]
            results = await evaluate(connection, packed, first_apart)
            unknown: list[Ask] = []
            now = time.monotonic()
            for call, per_scope in zip(calls, results, strict=True):
                for ask, result in zip(call, per_scope, strict=True):
                    if result[0] != b"ok":
                        unknown.append(ask)
                        continue
                    replies.append(Reply.read(ask, result))
                    if self._recovery is not None:
                        self._recovery.note_known(self._keys.of(ask.scope).epoch, now)
            if unknown and self._recovery is not None:
                epochs = {self._keys.of(ask.scope).epoch for ask in unknown}
                await self._recovery.begin_epochs(connection, epochs)
            asks = unknown if self._recovery is not None else ()
        return replies

    def _pack(self, connection: Connection, batch: Sequence[Ask]) -> tuple[Any, ...]:
        keys: list[bytes] = []
        arguments: list[Any] = [
            self._keys.grants,
            self._node,
            connection.state.run_id,
            int(connection.state.evicts),
            milliseconds(self._lease),
            clock_step_ms(self._lease),
            milliseconds(EPOCH_KEPT_S),
            random.random(),
        ]
        for ask in batch:
            keys += self._keys.of(ask.scope)
            arguments += pack_ask(ask, self._backoff)
        return (batch[0].verb, len(keys), *keys, *arguments)
