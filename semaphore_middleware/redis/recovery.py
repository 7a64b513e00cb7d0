"""The recovery wait: no permit is granted while those of an earlier life of the server may be held.

The epoch key says in which life of the server permits were granted. A server without one, or with
that of another life, may have lost what it knew: nothing that it says of its age proves otherwise.
"""

from __future__ import annotations

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


class Recovery:
    """Begins epochs for one node, or joins the present one.

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
        self._life = ""
        self.epoch = b""
        """Id of the epoch that this node knows; empty: none yet."""

    def is_same_life(self, connection: Connection) -> bool:
        """Whether the server is, as far as its last state tells, in the life of the known epoch."""
        return connection.state.life == self._life

    async def join_epoch(self, connection: Connection) -> bool:
        """Join the epoch of the server's present life; begin it if nobody has.

        Returns whether it is another one than this node knew. Raises `ServerUnreachableError`, and
        `ServerRefusedError` where nodes of another version use the server.
        """
        state = connection.state
        # A server that was started empty cannot have lost permits, but this node may hold some that
        # are from another one.
        wait = 0.0 if state.started_empty and not self.epoch else self._wait
        epoch_id = f"{VERSION}-{secrets.token_hex(8)}"
        # A node that comes back vouches for no quiet time: see `clock.lua`.
        head = pack_head(self._lease, silent=0.0 if self.epoch else math.inf)
        arguments = (head, state.life, epoch_id, VERSION, milliseconds(wait))
        keys = (self._keys.epoch, self._keys.rules)
        (reply,) = await evaluate(connection, [("begin_epoch", len(keys), *keys, *arguments)])
        epoch, version, left = reply
        if not epoch:
            raise ServerRefusedError(
                f"{connection.server_name} is in use by nodes of another version of this package "
                f"(protocol {version.decode('utf-8', 'replace')}, this node speaks {VERSION}): "
                "stop those first, or give this node another server or prefix"
            )
        self._life = state.life
        if epoch == self.epoch:
            return False
        self.epoch = epoch
        if state.evicted is not None:
            logger.warning(
                "%s evicts keys when its memory is full. Each time, no permit is granted "
                "for a while: set its maxmemory-policy to noeviction.",
                connection.server_name,
            )
        if left > 0:
            self._on_loss(left / 1000)
            logger.warning(
                "%s is new, or may have lost its data. No permit is granted for %.1f s, until "
                "all that were granted before are given back or have expired.",
                connection.server_name,
                left / 1000,
            )
        return True
