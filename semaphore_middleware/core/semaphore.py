"""The fair semaphore, as programs use it."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

from semaphore_middleware.core.admin import Steering
from semaphore_middleware.core.observer import AcquireTimedOut, Event, Observer, StoreLost
from semaphore_middleware.core.permit import Permit
from semaphore_middleware.core.session import Node
from semaphore_middleware.errors import AcquireTimeoutError, ClosedError
from semaphore_middleware.model.feedback import Backoff
from semaphore_middleware.model.inspection import Inspection
from semaphore_middleware.model.limits import Limit, check_concurrency
from semaphore_middleware.model.rules import Change, Rule
from semaphore_middleware.model.validation import check_number
from semaphore_middleware.redis import embedded
from semaphore_middleware.redis.connection import Server
from semaphore_middleware.redis.keys import Keys, check_prefix
from semaphore_middleware.redis.location import url_from_environment
from semaphore_middleware.redis.store import Store


class FairSemaphore:
    """A counting semaphore for each name, shared by all nodes that use one Redis server.

        async with FairSemaphore("redis://localhost") as semaphore:
            async with semaphore.permit("api.example.com", limit=3):
                ...

    Who finds all permits of a scope taken stands in a line on the server and is handed the next
    one: first come first served within a node, and nodes take turns (start-time fair queueing:
    P. Goyal, H. M. Vin and H. Cheng, Start-time Fair Queuing: A Scheduling Algorithm for Integrated
    Services Packet Switching Networks, 1996). A permit is a lease (C. Gray and D. Cheriton, Leases,
    1989), renewed by a background task; a node that dies gives back what it held when its leases
    end.

    `url` is a `redis://`, `rediss://` or `unix://` address; None takes `SEMAPHORE_REDIS_URL` or
    `REDIS_URL` from the environment, else starts an embedded server. `lease` and `recovery_wait`
    (by default the lease) are in seconds and should be the same on all nodes; `prefix` is the first
    part of every key; `node` is this node's name, to which a few random letters are added;
    `backoff` is how long a site is left alone that said "not now" (see `Permit.refused`), but not
    for how long; `url_from` says in errors where the address was set.
    `observers` are opened before the server is reached, hear of each event, and are closed last.

    Raises `SettingsError` for what is not allowed. All times are in seconds. Its methods belong to
    the event loop that it was opened in. Where they need the server and it is away, they wait;
    those that look or set may end with `ServerUnreachableError` if the server breaks off again and
    again when asked for this one thing.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        node: str | None = None,
        lease: float = 15.0,
        recovery_wait: float | None = None,
        prefix: str = "semaphore",
        backoff: Backoff = Backoff(),  # noqa: B008 - it is frozen
        url_from: str = "the server's URL",
        observers: Sequence[Observer] = (),
    ) -> None:
        lease = check_number(lease, "lease", least=0.001)
        if recovery_wait is not None:
            recovery_wait = check_number(recovery_wait, "recovery_wait")
        if url is None:
            url, url_from = url_from_environment()
        self.url = url
        """The server's address; known once the semaphore is open."""
        # Two nodes of one name would share ids, and so permits: hence the letters. They are enough
        # that of 1,000 nodes that were given one name no two will draw the same.
        self.node = f"{node or default_node()}-{secrets.token_hex(6)}"
        self._url_from = url_from
        self._lease = lease
        self._recovery_wait = lease if recovery_wait is None else recovery_wait
        self._prefix = check_prefix(prefix, "prefix")
        self._backoff = backoff
        if url is not None:
            self._server(url)  # a bad address is an error now, not when the semaphore is opened
        self._observers = observers
        self._open_observers: list[Observer] = []
        self._lodger: embedded.Lodger | None = None
        self._node: Node | None = None

    def __repr__(self) -> str:
        state = str(self._node) if self._node else "closed"
        return f"<FairSemaphore {self.node}: {state}>"

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self, wait: bool = True) -> None:
        """Reach the server; waits for one that cannot be reached, and says so in the log.

        Raises `ServerRefusedError` where waiting is in vain, or no embedded server can be started;
        with `wait` False also `ServerUnreachableError`, after one attempt.
        """
        try:
            for observer in self._observers:
                self._open_observers.append(observer)
                await observer.open(self)
            if self.url is None:
                self._lodger = await asyncio.to_thread(embedded.lodge)
                self.url = self._lodger.url
            server = self._server(self.url)
            keys = Keys(self._prefix)
            store = Store(
                server,
                keys,
                self.node,
                self._lease,
                self._recovery_wait,
                lambda seconds: self.emit(StoreLost(seconds)),
                self._backoff,
            )
            node = Node(server, store, self._lease, self.emit)
            await node.start(wait)
            self._steering = Steering(store, keys)
        except BaseException:
            self._leave_embedded()
            await self._close_observers()
            raise
        self._node = node

    async def close(self) -> None:
        """Give everything back and leave. Whoever still waits gets `ClosedError`; what runs in an
        `async with permit()` is cancelled, with `PermitLostError`. A server that is away is given
        two seconds: what could not be given back is over with its lease. Raises nothing.
        """
        node, self._node = self._node, None
        try:
            if node is not None:
                await node.stop()
        finally:
            self._leave_embedded()
            await self._close_observers()

    def emit(self, event: Event) -> None:
        """Pass an event to all observers, as long as they are open."""
        for observer in self._open_observers:
            observer.on_event(event)

    async def _close_observers(self) -> None:
        while self._open_observers:
            await self._open_observers.pop().close()

    def drain(self) -> None:
        """Let nobody in any more: who waits, and who asks from now on, gets `ClosedError`.

        Permits that are held stay held, and are renewed, until `close`. Raises nothing.
        """
        if self._node is not None:
            self._node.drain()

    def _server(self, url: str) -> Server:
        # A sixth of the lease, so that a call that hangs leaves time for another.
        return Server(url, min(5.0, self._lease / 6), self._url_from)

    def _leave_embedded(self) -> None:
        if self._lodger is not None:
            self._lodger.leave()
            self._lodger = self.url = None

    @asynccontextmanager
    async def permit(
        self, scope: str, limit: int | Limit, timeout: float | None = None
    ) -> AsyncIterator[Permit]:
        """Hold a permit for the length of the `async with`, whose body is cancelled if it is lost.

        Raises what `acquire` raises, and `PermitLostError`.
        """
        permit = await self.acquire(scope, limit, timeout)
        try:
            with permit.until_lost():
                yield permit
        finally:
            permit.release()

    async def acquire(
        self,
        scope: str,
        limit: int | Limit,
        timeout: float | None = None,
        owner: object = None,
    ) -> Permit:
        """Wait for a permit of `scope`, of which all nodes together hold at most `limit`.

        `scope` is any string. Where nodes name different limits, the lowest counts while the scope
        is in use. `timeout` is in seconds. May be cancelled at any time. Whoever gets the permit
        must `release()` it; `permit()` does so by itself. `owner` is kept as `Permit.owner`: it
        tells observers what the permit is for.

        Raises `AcquireTimeoutError`, `ClosedError`, `SettingsError`.
        """
        permit = self._opened().ask(scope, _limit(limit), owner)
        try:
            if timeout is None:
                await permit.granted()
            else:
                async with asyncio.timeout(timeout):
                    await permit.granted()
        except TimeoutError:
            permit.release()
            self.emit(AcquireTimedOut(scope))
            raise AcquireTimeoutError(
                f"no permit for {scope!r} within {timeout:g} s (limit {permit.limit.concurrency})"
            ) from None
        except BaseException:
            permit.release()
            raise
        return permit

    async def inspect(self, scope: str) -> Inspection:
        """Limit, holders and waiters of a scope, on all nodes. Changes nothing on the server.

        Raises `ClosedError`.
        """
        (seen,) = await self._opened().do(lambda link: self._steering.inspect(link, scope))
        return seen

    async def survey(self) -> list[Inspection]:
        """All scopes that are in use, that are remembered for what their sites answered, or that
        have a rule; by name. Changes nothing on the server, but looks at all of its keys.

        Raises `ClosedError`.
        """
        return await self._opened().do(self._steering.survey)

    async def rules(self) -> list[Rule]:
        """What operators have set with `configure`, `pause` and `resume`, by name.

        Raises `ClosedError`.
        """
        return await self._opened().do(self._steering.rules)

    def permits(self) -> Collection[Permit]:
        """This node's permits: those that it holds, and those that it waits for."""
        return self._node.permits() if self._node is not None else ()

    def limit_of(self, scope: str) -> int | None:
        """How many may hold a permit of `scope`, as this node last heard; None: it never did.

        Sends nothing.
        """
        return self._node.limit_of(scope) if self._node is not None else None

    async def configure(self, name: str, limit: int | Limit | Mapping[str, Any] | None) -> None:
        """Set the limit of a scope, or of each host below one (`"*.example.org"`), on the server.

        Written as in `SEMAPHORE_LIMITS`; what a dict leaves out stays as it is. It wins over what
        all nodes' settings say until `reset`, holds within a second everywhere, takes nothing from
        holders, and outlives the nodes. Raises `SettingsError`, `ClosedError`.
        """
        await self._change(Change.configure(name, limit, self.node))

    async def pause(self, name: str) -> None:
        """Grant no permit of this scope, or of hosts that fit the pattern, until `resume`.

        Takes nothing from holders. Raises `SettingsError` for a bad name, `ClosedError`.
        """
        await self._change(Change.pause(name, self.node))

    async def resume(self, name: str) -> None:
        """Go on after `pause`, although a pattern that fits is paused; also at once with a site
        that said "not now". Raises `SettingsError` for a bad name, `ClosedError`.
        """
        Change.resume(name, self.node)  # a bad name is an error at once
        await self._opened().do(lambda link: self._steering.resume(link, name, self.node))

    async def reset(self, name: str) -> None:
        """Let the nodes' settings hold again, and forget what the site's answers have taught.

        Raises `SettingsError` for a bad name, `ClosedError`.
        """
        await self._change(Change.reset(name))

    async def evict(self, node: str) -> tuple[int, int]:
        """Give back what a dead node holds, before its leases end, and its places in line.

        `node` is its full name, as `Member.node` has it. Says how many permits it held, and how
        many places it had. What a node holds that lives after all is lost to it at its next
        renewal, which ends its transfers; until then a site may see them on top of its limit.
        Raises `ClosedError`.
        """
        return await self._opened().do(lambda link: self._steering.evict(link, node))

    async def _change(self, change: Change) -> None:
        await self._opened().do(lambda link: self._steering.change(link, change))

    def _opened(self) -> Node:
        if self._node is None:
            raise ClosedError("the semaphore is not open; use it in an 'async with'")
        return self._node


def default_node() -> str:
    """This process, as people find it: host and process id."""
    return f"{socket.gethostname()}-{os.getpid()}"


def _limit(limit: int | Limit) -> Limit:
    return limit if isinstance(limit, Limit) else Limit(check_concurrency(limit, "limit"))
