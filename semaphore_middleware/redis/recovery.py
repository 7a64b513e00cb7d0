"""The recovery wait: no permit is granted while those of an earlier life of the server may be held.

The epoch key says in which life of the server permits were granted. A server without one, or with
that of another life, may have lost what it knew: nothing that it says of its age proves otherwise.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import Callable

from semaphore_middleware.errors import ServerRefusedError
from semaphore_middleware.redis.connection import Connection
from semaphore_middleware.redis.keys import Keys
from semaphore_middleware.redis.protocol import VERSION, milliseconds, pack_head
from semaphore_middleware.redis.scripts import evaluate

logger = logging.getLogger(__name__)

LOG_INTERVAL_S = 5.0  # between two log lines that count the recovery wait down
TIMER_LAG_S = 0.001  # a timer may be so early: event loops count in milliseconds


class Recovery:
    """Begins epochs for one node, or joins the present one, and counts the recovery wait down.

    `wait` is how many seconds nothing is granted after a loss; `on_loss` is called with the seconds
    that are left of it, once for each epoch.
    """

    def __init__(
        self, keys: Keys, lease: float, wait: float, on_loss: Callable[[float], None]
    ) -> None:
        self._keys = keys
        self._lease = lease
        self._wait = wait
        self._on_loss = on_loss
        self._connection: Connection | None = None
        self._over_at: float | None = None  # when a wait that was logged ends, on the loop's clock
        self._countdown: asyncio.TimerHandle | None = None
        self.epoch = b""
        """Id of the epoch that this node knows; empty: none yet."""

    @property
    def is_waiting(self) -> bool:
        """Whether nothing is granted yet, as far as this node knows."""
        return self._over_at is not None

    async def join_epoch(self, connection: Connection) -> bool:
        """Join the epoch of the server's present life; begin it if nobody has.

        Returns whether it is another one than this node knew. Raises `ServerUnreachableError`, and
        `ServerRefusedError` where nodes of another version use the server.
        """
        state = await connection.read_state()
        # A server that was started empty cannot have lost permits, but this node may hold some that
        # are from another one.
        wait = 0.0 if state.started_empty and not self.epoch else self._wait
        # A node that comes back vouches for no quiet time: see `clock.lua`.
        head = pack_head(self._lease, silent=0.0 if self.epoch else math.inf)
        epoch, left = await begin_epoch(connection, self._keys, head, wait)
        is_new = epoch != self.epoch
        self.epoch = epoch
        if is_new and state.evicted is not None:
            logger.warning(
                "%s evicts keys when its memory is full. Each time, no permit is granted "
                "for a while: set its maxmemory-policy to noeviction.",
                connection.server_name,
            )
        if is_new and left > 0:
            self._on_loss(left)
            logger.warning(
                "%s is new, or may have lost its data. No permit is granted for %.1f s, until "
                "all that were granted before are given back or have expired.",
                connection.server_name,
                left,
            )
        self._note_wait(left, connection)
        return is_new

    def _note_wait(self, left: float, connection: Connection) -> None:
        """The wait ends in so many seconds: an operator may have ended it."""
        self._connection = connection
        loop = asyncio.get_running_loop()
        if left > 0:
            self._over_at = loop.time() + left
            if self._countdown is None:
                self._countdown = loop.call_later(min(left, LOG_INTERVAL_S), self._count_down)
        elif self._over_at is not None:
            self._over_at = loop.time()
            if self._countdown is not None:
                self._countdown.cancel()
            self._count_down()

    def _count_down(self) -> None:
        """Log every few seconds how long the wait still takes, and once that it is over."""
        self._countdown = None
        if self._over_at is None or self._connection is None or not self._connection.is_open:
            return  # the server says it again over the next connection
        left = self._over_at - asyncio.get_running_loop().time()
        if left > TIMER_LAG_S:
            logger.info("No permit is granted for another %.0f s.", left)
            self._note_wait(left, self._connection)
        else:
            self._over_at = None
            logger.info("The wait is over: permits are granted again.")


async def begin_epoch(
    connection: Connection, keys: Keys, head: bytes, wait: float, is_trusted: bool = False
) -> tuple[bytes, float]:
    """Begin the epoch of the server's present life, unless there is one. `wait` is in seconds; with
    `is_trusted` none is waited for, also if a wait was begun already.

    Returns the epoch's id, and for how many seconds nothing is granted from now on. Raises
    `ServerUnreachableError`, and `ServerRefusedError` where nodes of another version use the
    server.
    """
    epoch_id = f"{VERSION}-{secrets.token_hex(8)}"
    arguments = (connection.state.life, epoch_id, VERSION, milliseconds(wait), int(is_trusted))
    call = ("begin_epoch", 2, keys.epoch, keys.rules, head, *arguments)
    ((epoch, version, left),) = await evaluate(connection, [call])
    if not epoch:
        raise ServerRefusedError(
            f"{connection.server_name} is in use by nodes of another version of this package "
            f"(protocol {version.decode('utf-8', 'replace')}, this node speaks {VERSION}): "
            "stop those first, or give this node another server or prefix"
        )
    return epoch, left / 1000
