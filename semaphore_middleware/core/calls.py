"""One node's calls to the scripts: it joins the server's epoch, and sends updates.

The epoch key names the incarnation of the server in which permits were granted. A server without
this key, or with that of another incarnation, may have lost its data: its reported age cannot prove
otherwise. So there is a recovery wait: no permit is granted while permits of an earlier incarnation
may be held.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Self, TypeAlias

from semaphore_middleware.core.keys import Keys
from semaphore_middleware.core.protocol import (
    VERSION,
    LeaseUpdate,
    Reply,
    milliseconds,
    pack_head,
    pack_update,
)
from semaphore_middleware.core.scripts import BEGIN_EPOCH, SYNC
from semaphore_middleware.errors import ServerRefusedError
from semaphore_middleware.link import chance
from semaphore_middleware.link.connection import Connection, NotInScriptsError
from semaphore_middleware.link.rights import try_rights
from semaphore_middleware.link.scripts import TRY_READING, Call, batches, run_scripts
from semaphore_middleware.link.text import encoded
from semaphore_middleware.model.options import NodeOptions

logger = logging.getLogger(__name__)

UPDATES_PER_CALL = 100
LOG_INTERVAL_S = 5.0  # between two log lines that count the recovery wait down
LOSSES_INTERVAL_S = 60.0  # between two log lines about a server that loses data again and again
TIMER_EARLY_S = 0.001  # a timer may fire this much too early: event loops count in milliseconds
Mode: TypeAlias = Literal["", "trusted", "look"]  # of the script `begin_epoch`


class Recovery:
    """Begins epochs for one node, or joins the present one, and counts the recovery wait down.

    `on_loss` is called once for each epoch that begins with a wait, with the seconds left of it.
    """

    def __init__(self, keys: Keys, options: NodeOptions, on_loss: Callable[[float], None]) -> None:
        self._keys = keys
        self._lease = options.lease
        wait = options.recovery_wait
        self._wait = options.lease if wait is None else wait
        self._on_loss = on_loss
        self._connection: Connection | None = None
        self._over_at: float | None = None  # when a wait that was logged ends, on the loop's clock
        self._countdown: asyncio.TimerHandle | None = None
        self._log_losses_at = -math.inf  # not before, if it goes on losing data
        self.epoch = b""
        """Id of the epoch in this node's updates; empty: none yet."""

    @property
    def left(self) -> float:
        """The seconds left of the recovery wait, as far as this node knows."""
        if self._over_at is None:
            return 0.0
        return max(0.0, self._over_at - asyncio.get_running_loop().time())

    async def join_epoch(self, connection: Connection) -> None:
        """Join the epoch of the server's present incarnation; begin it if nobody has.

        Raises `ServerUnreachableError`, and `ServerRefusedError` if nodes of another version use
        the server.
        """
        self.on_joined(connection, await begin_epoch(connection, self.call_to_join))

    async def look(self, connection: Connection) -> Begun:
        """What `join_epoch` would join; raises as that does, but changes nothing."""
        return await begin_epoch(connection, partial(self.call_to_join, mode="look"))

    def call_to_join(self, info: str, mode: Mode = "") -> Call:
        """The call of the script `begin_epoch`. If the server is in another incarnation, the
        updates that follow in the same round trip are of an earlier epoch, and it applies none.
        """
        # After a reconnect a node does not know how long the server was idle: see `clock.lua`.
        head = pack_head(self._lease, silent=0.0 if self.epoch else math.inf)
        # A node that has used another server may hold permits that a new server does not know of.
        wait_if_empty = self._wait if self.epoch else 0.0
        return pack_begin(self._keys, head, self._wait, wait_if_empty, info, mode)

    def on_joined(self, connection: Connection, begun: Begun) -> None:
        """Apply the reply to `call_to_join`."""
        connection.may_evict = begun.may_evict
        is_new = begun.epoch != self.epoch
        self.epoch = begun.epoch
        if is_new:
            if begun.left > 0:
                self._on_loss(begun.left)
            self.log_loss(begun, connection)
        self._note_wait(begun.left, connection)

    def log_loss(self, begun: Begun, connection: Connection) -> None:
        """Log that the server has lost data; if it does so again and again, once a minute."""
        now = asyncio.get_running_loop().time()
        if now < self._log_losses_at and (self.left or begun.may_evict):
            return
        self._log_losses_at = now + LOSSES_INTERVAL_S
        if begun.may_evict:
            logger.warning(
                "%s evicts keys when its memory is full. No permit is granted while it evicts "
                "keys, or for %.1f s afterwards: set its maxmemory-policy to noeviction.",
                connection.server_name,
                self._wait,
            )
        if begun.left > 0:
            logger.warning(
                "%s is new, or may have lost its data (prefix %r). No permit is granted for "
                "%.1f s, so that permits from before can expire.",
                connection.server_name,
                self._keys.prefix,
                begun.left,
            )

    def _note_wait(self, left: float, connection: Connection) -> None:
        """Note that the wait ends in `left` seconds; an operator may have ended it."""
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
        """Log the remaining wait every few seconds, and its end once."""
        self._countdown = None
        if self._over_at is None or self._connection is None or not self._connection.is_open:
            return  # the server reports it again over the next connection
        left = self._over_at - asyncio.get_running_loop().time()
        if left > TIMER_EARLY_S:  # mutant > -> >=: no clock tells this time
            if left >= 0.5:  # not: for another 0 s
                logger.info("No permit is granted for another %.0f s.", left)
            self._note_wait(left, self._connection)
        else:
            self._over_at = None
            logger.info("The wait is over: permits are granted again.")


async def begin_epoch(connection: Connection, pack: Callable[[str], Call]) -> Begun:
    """Run the script `begin_epoch`; `pack` gets the output of INFO if scripts may not use it."""
    try:
        (reply,) = await run_scripts(connection, [pack(await info_for_scripts(connection))])
    except NotInScriptsError:
        if connection.needs_info_for_scripts:
            raise
        connection.needs_info_for_scripts = True
        return await begin_epoch(connection, pack)
    return Begun.read(reply, connection.server_name)


async def info_for_scripts(connection: Connection) -> str:
    """The present output of INFO, for scripts that may not use it; empty if they may."""
    if not connection.needs_info_for_scripts:
        return ""
    await connection.check_server()
    return "".join(f"\n{name}:{value}" for name, value in connection.facts.items())


def pack_begin(
    keys: Keys,
    head: bytes,
    wait: float,
    wait_if_empty: float,
    info: str = "",
    mode: Mode = "",
) -> Call:
    """The call of the script `begin_epoch`: it begins an epoch unless the server's present
    incarnation has one.

    `wait` is the recovery wait in seconds, `wait_if_empty` that of a server which was started when
    no permit was held. `info` is the output of INFO, if the script may not use that. In the mode
    `trusted` there is no wait, and one that has begun ends; `look` changes nothing.
    """
    waits = milliseconds(wait), milliseconds(wait_if_empty)
    epoch = f"{VERSION}-{chance.token(8)}"
    arguments = (head, epoch, VERSION, *waits, mode, info)
    return Call(BEGIN_EPOCH, keys.of_all, arguments, though_full=True)


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
        """Raises `ServerRefusedError` if nodes of another version use the server."""
        epoch, version, left, may_evict = reply
        if not epoch:
            raise ServerRefusedError(
                f"{server_name} is in use by nodes of another version of this package "
                f"(protocol {version.decode('utf-8', 'replace')}, this node uses {VERSION}): "
                "stop those first, or give this node another server or prefix"
            )
        return cls(epoch, left / 1000, bool(may_evict))


class Store:
    """One node's calls to the scripts."""

    def __init__(
        self, keys: Keys, node: str, machine: int, options: NodeOptions, recovery: Recovery
    ) -> None:
        self._keys = keys
        self.node = node
        """The node's name."""
        self._machine = machine
        self._options = options
        self.recovery = recovery
        """Joins the server's epochs. Updates name the present one."""
        self._job = encoded(options.job)
        self.wall = 0.0
        """The server's wall clock in its last reply, in seconds."""
        self._answered_at = -math.inf  # when the last answered call was sent
        self._problems: set[tuple[str, str]] = set()  # those that were logged, by scope
        self.channels = (keys.channel(node), keys.changes)
        """This node's channel, and that of all nodes for changed rules."""

    async def check_rights(self, connection: Connection) -> None:
        """Try each command of the scripts once, on a trial key that does not stay.

        Raises `ServerRefusedError`, which names what is missing, and `ServerUnreachableError`.
        """
        keys = self._keys
        names = (*keys.of_all, *keys.of(""))
        await try_rights(connection, keys.trial, names, keys.tag, (BEGIN_EPOCH, SYNC))
        # Some scripts only read: the one, for instance, that explains long waits.
        await run_scripts(connection, [Call(TRY_READING, names, ())])

    async def sync(
        self, connection: Connection, updates: Sequence[LeaseUpdate], check: bool = False
    ) -> list[Reply] | None:
        """Send all updates in one go, in their order, and read all replies.

        None if the server is in another epoch: then it has applied nothing.

        With `check`, the same round trip first checks that the server is still in the known
        incarnation. If it is not, it applies none of the updates, as they are of an earlier epoch.
        Raises `ServerUnreachableError`; every update can then be sent again without harm.
        """
        calls = list(batches(updates, UPDATES_PER_CALL))
        known_epoch = self.recovery.epoch
        sent = asyncio.get_running_loop().time()
        packed = [self._pack(call, sent - self._answered_at, known_epoch) for call in calls]
        if check:
            connection.check_master()
            info = await info_for_scripts(connection)
            packed.insert(0, self.recovery.call_to_join(info))
        evicted = connection.facts.get("evicted_keys")
        # A server that lacks the scripts may be another one, to which a proxy has switched
        # unnoticed. (Redis 6.2 copies scripts to its replicas.)
        results = await run_scripts(connection, packed, before_loading=self.recovery.join_epoch)
        self._answered_at = sent
        if check:
            begun = Begun.read(results.pop(0), connection.server_name)
            self.recovery.on_joined(connection, begun)
        if connection.may_evict:
            await info_for_scripts(connection)  # the script may not be able to check for evictions
        if connection.facts.get("evicted_keys") != evicted:
            return None
        if self.recovery.epoch != known_epoch or any(result == [b"epoch"] for result in results):
            return None
        replies: list[Reply] = []
        for call, (*of_call, wall) in zip(calls, results, strict=True):
            replies += map(Reply.read, call, of_call)
            self.wall = wall / 1000
        for reply in replies:
            if reply.problem:
                self._log_problem(reply)
        return replies

    async def repeat(
        self, connection: Connection, epoch: bytes, updates: Sequence[LeaseUpdate]
    ) -> list[Reply] | None:
        """Send updates of this epoch again, from the renewal thread: no attribute changes.

        None if the server is in another epoch. Raises `ServerUnreachableError`.
        """
        calls = list(batches(updates, UPDATES_PER_CALL))
        evicted = connection.facts.get("evicted_keys")
        results = await run_scripts(connection, [self._pack(call, 0.0, epoch) for call in calls])
        if connection.may_evict:
            await info_for_scripts(connection)
        has_evicted = connection.facts.get("evicted_keys") != evicted
        if has_evicted or any(result == [b"epoch"] for result in results):
            return None
        replies: list[Reply] = []
        for call, (*of_call, _) in zip(calls, results, strict=True):
            replies += map(Reply.read, call, of_call)
        return replies

    def _log_problem(self, reply: Reply) -> None:
        """Log a problem with the server's data of a scope, once."""
        scope, problem = reply.update.scope, reply.problem
        if (scope, problem) in self._problems:
            return
        self._problems.add((scope, problem))
        if reply.status == "unreadable":
            keys = " or ".join(key.decode("utf-8", "replace") for key in self._keys.of(scope))
            problem = f"{keys} cannot be read: {problem}. No permit is granted until it is deleted"
        logger.error("%s: %s. Other sites are served.", scope, problem)

    def _pack(self, call: Sequence[LeaseUpdate], silent: float, epoch: bytes) -> Call:
        keys = [*self._keys.of_all]
        options = self._options
        head = pack_head(options.lease, chance.fraction(), silent, self._machine)
        arguments = [head, encoded(self.node), epoch, self._job]
        for update in call:
            keys += self._keys.of(update.scope)
            arguments.append(pack_update(update, options.backoff))
        return Call(SYNC, keys, arguments, though_full=True)  # promise: full server
