"""The recovery wait: no permit is granted while those of an earlier run of the server may be held.

Each bucket has an epoch key, which says in which run of the server its permits were granted. A
script that finds an unknown epoch does nothing, and the node then begins a new one.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable

from semaphore_middleware.redis.connection import Connection
from semaphore_middleware.redis.keys import Keys
from semaphore_middleware.redis.protocol import EPOCH_KEPT_S, clock_step_ms, milliseconds
from semaphore_middleware.redis.scripts import evaluate
from semaphore_middleware.redis.server_state import ServerState

logger = logging.getLogger(__name__)


class Recovery:
    """Begins epochs for one node. It outlives connections: it remembers the server's last state.

    `wait` is how many seconds nothing is granted after a loss; `on_loss` is called with the seconds
    that are left of it, once for each. All times in its fields are of the monotonic clock.
    """

    def __init__(
        self, keys: Keys, lease: float, wait: float, on_loss: Callable[[float], None]
    ) -> None:
        self._keys = keys
        self._step = clock_step_ms(lease)
        self._wait = wait
        self._on_loss = on_loss
        self._state: ServerState | None = None
        self._known_since: dict[bytes, float] = {}  # epoch key -> when it was last as it should be
        self._nothing_lost_since = -math.inf
        self._waiting_until = -math.inf

    def note_state(self, connection: Connection) -> None:
        """Compare the server's state with the last one. Call it before a connection is used."""
        state, before = connection.state, self._state
        if before is None or before.run_id != state.run_id:
            self._known_since.clear()
            if state.evicts:
                logger.warning(
                    "%s evicts keys when its memory is full. Each time, no permit is granted "
                    "for a while: set its maxmemory-policy to noeviction.",
                    connection.server_name,
                )
        if before is None or before.condition != state.condition:
            now = time.monotonic()
            if state.may_have_lost:
                self._nothing_lost_since = now  # it has, but it does not say when
            elif state.started_empty:
                self._nothing_lost_since = -math.inf
            else:
                self._nothing_lost_since = now - state.uptime
        self._state = state

    def note_known(self, epoch: bytes, now: float) -> None:
        """A script found this epoch as it should be."""
        self._known_since[epoch] = now

    async def begin_epochs(self, connection: Connection, epochs: Iterable[bytes]) -> None:
        """Record this run of the server in epochs that are unknown or missing, and from when on
        permits may be granted: when all permits of the run before are over.

        A missing epoch may have been lost with everything else, or never have been there, or have
        expired: the server's own counts tell. Raises `ServerUnreachableError`.
        """
        state = await connection.read_state()
        self.note_state(connection)
        now = time.monotonic()
        recent = now - EPOCH_KEPT_S / 2
        if any(self._known_since.get(epoch, -math.inf) > recent for epoch in epochs):
            self._nothing_lost_since = now  # it was there in this run, and cannot have expired
        elif await self._others_have_waited(connection, state):
            self._nothing_lost_since = -math.inf
        wait = max(0.0, self._wait - (now - self._nothing_lost_since))
        arguments = (
            state.run_id,
            int(state.evicts),
            milliseconds(wait),
            milliseconds(EPOCH_KEPT_S),
            self._step,
        )
        calls = [("begin_epoch", 1, epoch, *arguments) for epoch in epochs]
        longest = max(await evaluate(connection, calls)) / 1000
        if longest > 0 and now >= self._waiting_until:
            self._on_loss(longest)
            logger.warning(
                "%s has just started, or has lost its data. No permit is granted for %.1f s, until "
                "all that were granted before are given back or have expired.",
                connection.server_name,
                longest,
            )
        self._waiting_until = max(self._waiting_until, now + longest)

    async def _others_have_waited(self, connection: Connection, state: ServerState) -> bool:
        """Whether a node has seen no loss for a whole recovery wait since the server's last one.

        On a server that was flushed at some time not each new crawl need wait. A key says so, which
        this node writes if it has waited itself.
        """
        if not state.may_have_lost:
            return False
        key, condition = self._keys.recovered, repr(state.condition).encode()
        if time.monotonic() - self._nothing_lost_since >= self._wait:
            await connection.call([("SET", key, condition, "PX", milliseconds(EPOCH_KEPT_S))])
            return True
        (reply,) = await connection.call([("GET", key)])
        return bool(reply == condition)
