"""Operators' actions: inspect scopes, set limits, pause sites, evict dead nodes."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Self

from semaphore_middleware.core.keys import Keys
from semaphore_middleware.core.protocol import pack_change, pack_head
from semaphore_middleware.errors import ClosedError, ServerRefusedError, ServerUnreachableError
from semaphore_middleware.link import chance, embedded
from semaphore_middleware.link.connection import Connection
from semaphore_middleware.link.environment import EMBEDDED, url_from_environment
from semaphore_middleware.link.index import Index
from semaphore_middleware.link.lease import call_timeout
from semaphore_middleware.link.link import Link
from semaphore_middleware.link.location import Server
from semaphore_middleware.link.scripts import Call, Script, batches, run_scripts
from semaphore_middleware.link.text import decoded, encoded
from semaphore_middleware.model.hosts import EVERY, parse_name, patterns_for, scope_name
from semaphore_middleware.model.inspection import Inspection, ServerState
from semaphore_middleware.model.limits import GivenLimit
from semaphore_middleware.model.options import DEFAULT_PREFIX, check_node
from semaphore_middleware.model.rules import LoggedChange, Rule, RuleChange, patterns_above
from semaphore_middleware.model.validation import check_number, check_prefix
from semaphore_middleware.operators.records import (
    read_change,
    read_inspection,
    read_rule,
    read_server_state,
)
from semaphore_middleware.operators.scripts import CHANGE_RULE, EVICT, FORGET, INSPECT

CALL_TIMEOUT_S = 30.0  # a call takes milliseconds; with 50,000 sites in use, some seconds
SCOPES_PER_CALL = 200  # scopes read or changed in one round trip


class Admin:
    """The operators' view of one server, and their actions on it, for all of its nodes.

        async with Admin("redis://localhost") as admin:
            await admin.configure("api.example.com", 5)
            print(await admin.inspect("api.example.com"))

    - `url`: the server's address, written as in docs/settings.md (`redis://`, `redis+sentinel://`
      and so on); None: `SEMAPHORE_REDIS_URL` or `REDIS_URL` of the environment, otherwise the
      embedded server if it runs; "embedded": always the embedded server.
    - `name`: the author of the rules set here; by default user@host.
    - `lease` (seconds) and `prefix`: the same as the nodes'.
    - `url_from`: where the address was set, for errors.
    - `credentials` and `redis_options`: as in `NodeOptions`.

    It opens a connection of its own at the first call. Each call makes one attempt and takes at
    most 30 s; after an error the next call reconnects.

    Raises `SettingsError` for an invalid argument, and `ServerUnreachableError` without an address.
    Methods raise `SettingsError` for an invalid name or value; those that call the server also
    raise `ServerUnreachableError`, `ServerRefusedError`, and, after `close`, `ClosedError`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        name: str | None = None,
        lease: float = 15.0,
        prefix: str = DEFAULT_PREFIX,
        url_from: str = "the server's URL",
        credentials: Callable[[], object] | None = None,
        redis_options: Mapping[str, Any] | None = None,
    ) -> None:
        if url is None:
            url, url_from = url_from_environment()
        url = embedded.find() if url in (None, EMBEDDED) else url
        if url is None:
            raise ServerUnreachableError(embedded.why_none(" in the environment"))
        self.name = check_node(name or user_at_host(), "name")
        """The author of the rules set here."""
        self.lease = check_number(lease, "lease", least=0.001)
        """Seconds that a node keeps its permits without a renewal."""
        self._keys = Keys(check_prefix(prefix, "prefix"))
        timeout = call_timeout(self.lease)
        self._link = Link(Server(url, timeout, url_from, prefix, credentials, redis_options))
        self._running: set[asyncio.Timeout] = set()
        self._closed = False

    @property
    def server(self) -> str:
        """The server's address, without a password."""
        return str(self._link.server)

    @property
    def prefix(self) -> str:
        """The first part of all keys."""
        return self._keys.prefix

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; calls that still run end with `ClosedError`. Raises nothing."""
        self._closed = True
        for timeout in self._running:
            if not timeout.expired():
                timeout.reschedule(asyncio.get_running_loop().time())
        await self._link.close()

    # Read ---------------------------------------------------------------------------------------

    async def inspect(self, scope: str) -> Inspection:
        """A scope's limit, holders and waiters, on all nodes. Changes nothing on the server."""
        scope = scope_name(scope)
        async with self.connected() as connection:
            seen = await self._inspect(connection, [scope])
        if not seen:
            key = self._keys.of(scope)[0].decode("utf-8", "replace")
            raise ServerRefusedError(f"the key {key} on {self.server} is not a scope: delete it")
        return seen[0]

    async def survey(self) -> list[Inspection]:
        """All scopes that are in use, have a rule, or are remembered for their sites' answers; by
        name.

        Changes nothing on the server, except that a lost index of scopes is rebuilt from all keys.
        """
        async with self.connected() as connection:
            ruled = {rule.name for rule in await self._rules(connection) if not rule.is_pattern}
            listed = await self._scopes(connection)
            seen = await self._inspect(connection, sorted(ruled))
            seen += await self._inspect(connection, sorted(listed - ruled), "kept")
        return sorted(seen, key=lambda scope: scope.scope)

    async def server_state(self) -> ServerState:
        """The wait left after a loss of data, and the time since a node last called."""
        call = self._pack(INSPECT, ())
        async with self.connected() as connection:
            (reply,) = await run_scripts(connection, [call])
        return read_server_state(*reply)

    async def rules(self) -> list[Rule]:
        """The rules set with `configure`, `pause` and `resume`, by name."""
        async with self.connected() as connection:
            return await self._rules(connection)

    async def rule(self, name: str) -> Rule | None:
        """The rule for exactly this scope or pattern; None: there is none."""
        if name != EVERY:
            name = parse_name(name, f"the limit of {name!r}")
        return next((rule for rule in await self.rules() if rule.name == name), None)

    async def changes(self) -> list[LoggedChange]:
        """The rule changes of the last 31 days, the oldest first; at most 1,000."""
        async with self.connected() as connection:
            (texts,) = await connection.execute([("ZRANGE", self._keys.changed_rules, 0, -1)])
        return [*map(read_change, texts)]

    # Change -------------------------------------------------------------------------------------

    async def configure(self, name: str, limit: GivenLimit) -> None:
        """Set the limit of a scope, or of each host below one (`"*.example.org"`), on the server.

        `limit` is written as in `SEMAPHORE_LIMITS`; parts that a dict leaves out stay as they are.
        It overrides all nodes' settings until `reset`, applies everywhere within a second, takes no
        permit from its holder, and outlives the nodes.
        """
        await self._change(RuleChange.configure(name, limit, self.name))

    async def pause(self, name: str) -> None:
        """Grant no permit for this scope, or for any that the pattern fits, until `resume`; `"*"`
        fits all. Overrides an earlier `resume`.

        Takes no permit from its holder.
        """
        pause = RuleChange.pause(name, self.name)
        async with self.connected() as connection:
            rules = await self._rules(connection) if pause.is_pattern else []
            resumed = [rule for rule in rules if rule.paused is False]
            below = [rule for rule in resumed if pause.names[0] in patterns_for(rule.name)]
            exempt = [RuleChange.end_exemption(rule, self.name) for rule in below]
            await self._apply(connection, *exempt, pause)

    async def resume(self, name: str) -> None:
        """Grant permits again after `pause`, even if a fitting pattern is paused; also end the
        backoff of a site that refused a request.
        """
        names = RuleChange.resume(name, self.name).names  # an invalid name is an error at once
        above = patterns_above(names)
        async with self.connected() as connection:
            rules = await self._rules(connection)
            is_pattern_paused = any(rule.paused for rule in rules if rule.name in above)
            await self._apply(connection, RuleChange.resume(name, self.name, is_pattern_paused))

    async def reset(self, name: str) -> None:
        """Remove a rule, so that the nodes' settings apply again. Also forget what was learned from
        the site's answers, and the limits of nodes without requests there. `"*"` removes all
        rules, and keeps what was learned.
        """
        if name != EVERY:
            return await self._change(RuleChange.reset(name, self.name))
        async with self.connected() as connection:
            (rules,) = await connection.execute([("HGETALL", self._keys.rules)])
            names = map(decoded, rules[::2])
            return await self._apply(connection, RuleChange.reset_all(names, self.name))

    async def evict(self, node: str) -> tuple[int, int]:
        """Give back a dead node's permits, before its leases end, and take it out of the queues.

        `node` is its full name, as in `Member.node`. Returns the numbers of its permits and of its
        waiting requests. A node that is still alive loses its permits at its next renewal, which
        ends its transfers; until then a site may see more requests than its limit.
        """
        held = waiting = 0
        async with self.connected() as connection:
            for some in batches(sorted(await self._scopes(connection)), SCOPES_PER_CALL):
                call = self._pack(EVICT, some, encoded(node))
                ((of_call, waiting_of_call),) = await run_scripts(connection, [call])
                held += of_call
                waiting += waiting_of_call
            what = f"evicted the node {node}: {held} permits, {waiting} waiting requests"
            await self._notify(connection, what)
        return held, waiting

    async def trust(self) -> None:
        """End the recovery wait, or skip it on a server that no node has used yet.

        Call it only if no permit granted earlier is still held: otherwise a site may see too many
        requests, for one lease at most. Raises `ServerRefusedError` also if nodes of another
        version of this package use the server.
        """
        from semaphore_middleware.core.calls import begin_epoch, pack_begin  # only here

        pack = partial(pack_begin, self._keys, pack_head(self.lease), 0, 0, mode="trusted")
        async with self.connected() as connection:
            await begin_epoch(connection, pack)
            await self._notify(connection, "ended the wait in which no permit is granted")

    # Calls --------------------------------------------------------------------------------------

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Connection]:
        """A connection for one action of at most 30 s, opened if there is none."""
        if self._closed:
            raise ClosedError("this Admin is closed")
        timeout = asyncio.timeout(CALL_TIMEOUT_S)
        self._running.add(timeout)
        try:
            async with timeout, self._link.use() as connection:
                yield connection
        except (TimeoutError, ServerUnreachableError):
            if self._closed:
                raise ClosedError("this Admin is closed") from None
            if not timeout.expired():
                raise
            raise ServerUnreachableError(
                f"lost {self.server}: no answer within {CALL_TIMEOUT_S:g} s"
            ) from None
        finally:
            self._running.discard(timeout)

    def _pack(self, script: Script, scopes: Sequence[str], node: bytes = b"", *more: Any) -> Call:
        """A call of `inspect`, `evict` or `forget` for these scopes."""
        keys = [*self._keys.of_all]
        for scope in scopes:
            keys += self._keys.of(scope)
        head = pack_head(self.lease, chance.fraction())
        return Call(script, keys, (head, node, *more), though_full=script is EVICT)

    async def _inspect(
        self, connection: Connection, scopes: Sequence[str], *which: str
    ) -> list[Inspection]:
        """These scopes, except overwritten ones. "kept" leaves out those without a key, too."""
        seen: list[Inspection] = []
        done = 0
        while done < len(scopes):
            some = scopes[done : done + SCOPES_PER_CALL]
            call = self._pack(INSPECT, some, b"", *which)
            ((_, *replies),) = await run_scripts(connection, [call])
            for scope, reply in zip(some, replies, strict=False):
                if reply is not None:
                    seen.append(read_inspection(scope, reply))
            done += len(replies)
        return seen

    async def _scopes(self, connection: Connection) -> set[str]:
        """The scopes with a key, and some whose key has expired recently."""

        async def search() -> list[bytes]:
            found = await connection.scan(self._keys.scopes)
            return [encoded(self._keys.scope_of(key)) for key in found]

        return set(map(decoded, await Index(self._keys.index).names(connection, search)))

    async def _rules(self, connection: Connection) -> list[Rule]:
        (reply,) = await connection.execute([("HGETALL", self._keys.rules)])
        rules = [
            read_rule(decoded(name), text)
            for name, text in zip(reply[::2], reply[1::2], strict=True)
        ]
        return sorted(filter(None, rules), key=lambda rule: rule.name)

    async def _change(self, change: RuleChange) -> None:
        async with self.connected() as connection:
            await self._apply(connection, change)

    async def _apply(self, connection: Connection, *changes: RuleChange) -> None:
        """Change rules, and notify all nodes; the last change is the one that was asked for."""
        calls: list[Call] = []
        keys = (self._keys.epoch, self._keys.rules, self._keys.changed_rules)
        for change in changes:
            for name in change.names:
                parts = (json.dumps(change.set, default=str).encode(), *change.unset)
                calls.append(Call(CHANGE_RULE, keys, (encoded(name), encoded(change.by), *parts)))
                if change.forgets and not change.is_pattern:
                    calls.append(self._pack(FORGET, [name], b"", change.forgets))
        await run_scripts(connection, calls)
        await self._notify(connection, changes[-1].text)

    async def _notify(self, connection: Connection, what: str) -> None:
        """Notify all nodes of a change, and of who has made it."""
        await connection.execute([("PUBLISH", self._keys.changes, pack_change(self.name, what))])


def user_at_host() -> str:
    """The user of this process and this machine's name, for `Rule.by`."""
    try:
        user = getpass.getuser()
    except (ImportError, KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid()) if hasattr(os, "getuid") else "somebody"
    return f"{user}@{socket.gethostname()}"
