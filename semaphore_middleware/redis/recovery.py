"""The recovery wait: no permit is granted while those of an earlier life of the server may be held.

The epoch key says in which life of the server permits were granted. A server without one, or with
that of another life, may have lost what it knew: nothing that it says of its age proves otherwise.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from semaphore_middleware.errors import ServerRefusedError
from semaphore_middleware.model import chance
from semaphore_middleware.model.options import NodeOptions
from semaphore_middleware.redis.connection import Connection
from semaphore_middleware.redis.keys import Keys
from semaphore_middleware.redis.protocol import VERSION, milliseconds, pack_head
from semaphore_middleware.redis.scripts import evaluate

logger = logging.getLogger(__name__)

LOG_INTERVAL_S = 5.0  # between two log lines that count the recovery wait down
TIMER_EARLY_S = 0.001  # a timer may fire this much too early: event loops count in milliseconds


class Recovery:
    """Begins epochs for one node, or joins the present one, and counts the recovery wait down.

    `on_loss` is called with the seconds that are left of it, once for each epoch.
    """

    def __init__(self, keys: Keys, options: NodeOptions, on_loss: Callable[[float], None]) -> None:
        self._keys = keys
        self._lease = options.lease
        self._wait = options.recovery_wait
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
        (reply,) = await evaluate(connection, [self.call_to_join()], though_full=True)
        return self.on_joined(connection, reply)

    def call_to_join(self) -> tuple[Any, ...]:
        """The call of a script that joins the epoch. If the server is in another life, what follows
        in the same round trip is of an earlier epoch there, and does nothing.
        """
        # A node that comes back vouches for no quiet time: see `clock.lua`.
        head = pack_head(self._lease, silent=0.0 if self.epoch else math.inf)
        # One that knew another server may hold permits, which a new server knows nothing of.
        wait_if_empty = self._wait if self.epoch else 0.0
        return pack_begin(self._keys, head, self._wait, wait_if_empty)

    def on_joined(self, connection: Connection, reply: Sequence[Any]) -> bool:
        """The reply to `call_to_join`. Returns and raises as `join_epoch` does."""
        begun = Begun.read(reply, connection.server_name)
        is_new = begun.epoch != self.epoch
        self.epoch = begun.epoch
        if is_new and begun.may_evict:
            logger.warning(
                "%s evicts keys when its memory is full. Each time, no permit is granted "
                "for a while: set its maxmemory-policy to noeviction.",
                connection.server_name,
            )
        if is_new and begun.left > 0:
            self._on_loss(begun.left)
            logger.warning(
                "%s is new, or may have lost its data (prefix %r). No permit is granted for "
                "%.1f s, until all that were granted before are given back or have expired.",
                connection.server_name,
                self._keys.prefix,
                begun.left,
            )
        self._note_wait(begun.left, connection)
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
        if left > TIMER_EARLY_S:
            if left >= 0.5:  # else it would be for another 0 s
                logger.info("No permit is granted for another %.0f s.", left)
            self._note_wait(left, self._connection)
        else:
            self._over_at = None
            logger.info("The wait is over: permits are granted again.")


def pack_begin(
    keys: Keys, head: bytes, wait: float, wait_if_empty: float, is_trusted: bool = False
) -> tuple[Any, ...]:
    """The call of a script that begins the epoch of the server's present life, unless there is one.

    `wait` is in seconds, and so is `wait_if_empty`, where the server was started when no permit was
    held; with `is_trusted` none is waited for, also if a wait was begun already.
    """
    waits = milliseconds(wait), milliseconds(wait_if_empty)
    epoch = f"{VERSION}-{chance.token(8)}"
    arguments = (head, epoch, VERSION, *waits, int(is_trusted))
    return ("begin_epoch", 2, keys.epoch, keys.rules, *arguments)


@dataclass(frozen=True, slots=True)
class Begun:
    """The server's present epoch, as it replies to a call of `pack_begin`."""

    epoch: bytes
    """Its id."""
    left: float
    """For how many seconds nothing is granted from now on."""
    may_evict: bool
    """Whether the server may evict keys."""

    @classmethod
    def read(cls, reply: Sequence[Any], server_name: str) -> Self:
        """Raises `ServerRefusedError` where nodes of another version use the server."""
        epoch, version, left, may_evict = reply
        if not epoch:
            raise ServerRefusedError(
                f"{server_name} is in use by nodes of another version of this package "
                f"(protocol {version.decode('utf-8', 'replace')}, this node speaks {VERSION}): "
                "stop those first, or give this node another server or prefix"
            )
        return cls(epoch, left / 1000, bool(may_evict))
