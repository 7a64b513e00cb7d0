"""One node's calls to the scripts: statements in, replies out."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from typing import Any

from semaphore_middleware.errors import ServerRefusedError, ServerUnreachableError
from semaphore_middleware.model import chance
from semaphore_middleware.model.hosts import encoded
from semaphore_middleware.model.options import NodeOptions
from semaphore_middleware.redis.connection import Connection, is_full
from semaphore_middleware.redis.keys import Keys
from semaphore_middleware.redis.protocol import (
    Batch,
    Reply,
    Statement,
    batches,
    milliseconds,
    pack_head,
    pack_statement,
)
from semaphore_middleware.redis.recovery import Recovery
from semaphore_middleware.redis.rights import try_rights
from semaphore_middleware.redis.scripts import evaluate, script

logger = logging.getLogger(__name__)

STATEMENTS_PER_CALL = 100
SCRIPTS = ("begin_epoch", "sync")  # without which a node does nothing


class Store:
    """One node's calls to the scripts."""

    def __init__(self, keys: Keys, node: str, options: NodeOptions, recovery: Recovery) -> None:
        self._keys = keys
        self._node = encoded(node)
        self._options = options
        self.recovery = recovery
        """Joins the server's epochs; statements name the one that it knows."""
        self._job = encoded(options.job), f"{options.weight:g}".encode()
        self.wall = 0.0
        """The server's wall clock in its last reply, in seconds."""
        self._heard_at = -math.inf  # when the last call was sent that was answered
        self._problems: set[tuple[str, str]] = set()  # those that were logged, by scope
        self.channels = (keys.channel(node), keys.changes)
        """The channel on which this node is notified of what other nodes' calls have caused, and
        the one on which all nodes are notified of changed rules.
        """

    async def check_rights(self, connection: Connection) -> None:
        """Use each command that the scripts use, once, on keys of no scope. Leaves nothing.

        Raises `ServerRefusedError`, which names what is missing, and `ServerUnreachableError`.
        """
        keys = self._keys
        names = (*keys.trials, keys.epoch, keys.rules, *keys.of_robotstxt(""), *keys.of(""))
        await try_rights(connection, names, keys.channel(""), keys.tag, map(script, SCRIPTS))
        # A node looks at a scope where a request waits for long.
        look = ("inspect", 2, keys.epoch, keys.rules, pack_head(0.0), "")
        await evaluate(connection, [look], read_only=True)

    async def sync(
        self, connection: Connection, statements: Sequence[Statement], look: bool = False
    ) -> list[Reply] | None:
        """Send all statements in one go, in their order, and read all replies; None if the server
        is in another epoch, of which nothing was done.

        With `look` the server is asked first whether it still is in the life that is known, in the
        same round trip. If it is not, the statements are of an earlier epoch when it hears them.
        Raises `ServerUnreachableError`; every statement can then be sent again without harm.
        """
        calls = list(batches(statements, STATEMENTS_PER_CALL))
        known_epoch = self.recovery.epoch
        sent = asyncio.get_running_loop().time()
        packed = [self._pack(call, sent - self._heard_at) for call in calls]
        if look:
            connection.look_for_master()
            packed.insert(0, self.recovery.call_to_join())
        # A server that lacks the scripts may be another one, to which a proxy leads without notice.
        # (Redis 6.2 gives them to its replicas.)
        results = await evaluate(
            connection, packed, before_loading=self.recovery.join_epoch, though_full=True
        )
        self._heard_at = sent
        if look:
            self.recovery.on_joined(connection, results.pop(0))
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

    async def note(self, connection: Connection, batch: Batch) -> float:
        """Add to the history what this node did to sites. Returns the server's wall clock, in
        seconds. A batch can be sent again without harm.

        Raises `ServerUnreachableError`, and `ServerRefusedError` if it has no memory for that.
        """
        arguments: list[Any] = [milliseconds(self._options.history), self._node, batch.number]
        arguments += [batch.minute, int(batch.is_last), self._job[0]]
        for tally in batch.tallies:
            arguments += [encoded(tally.scope), tally.pack()]
        scopes = [tally.scope for tally in batch.tallies]
        keys = self._keys.of_batch(self._node, batch.minute, scopes)
        call = ("note_history", len(keys), *keys, *arguments)
        try:
            (wall,) = await evaluate(connection, [call])
        except ServerUnreachableError as error:
            if is_full(error.__cause__):
                raise ServerRefusedError(str(error)) from error
            raise
        return float(wall / 1000)

    def _log_problem(self, reply: Reply) -> None:
        """Log once what is wrong with what the server knows of a scope."""
        scope, problem = reply.statement.scope, reply.problem
        if (scope, problem) in self._problems:
            return
        self._problems.add((scope, problem))
        if reply.status == "unreadable":
            keys = " or ".join(key.decode("utf-8", "replace") for key in self._keys.of(scope))
            problem = f"{keys} cannot be read: {problem}. No permit is granted until it is deleted"
        logger.error("%s: %s. Other sites are served.", scope, problem)

    def _pack(self, call: Sequence[Statement], silent: float) -> tuple[Any, ...]:
        keys: list[bytes] = [self._keys.epoch, self._keys.rules]
        options = self._options
        head = pack_head(options.lease, chance.fraction(), silent, options.history)
        arguments = [head, self._node, self.recovery.epoch, *self._job]
        for statement in call:
            keys += self._keys.of(statement.scope)
            arguments.append(pack_statement(statement, options.backoff))
        return ("sync", len(keys), *keys, *arguments)
