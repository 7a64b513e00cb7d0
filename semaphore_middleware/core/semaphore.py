"""The fair semaphore, as programs use it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any, Self, TypeAlias

from semaphore_middleware.core.admin import Admin
from semaphore_middleware.core.observer import (
    AcquireTimedOut,
    Event,
    Observer,
    Observers,
    StoreLost,
)
from semaphore_middleware.core.permit import Permit, PermitSet, UntilLost
from semaphore_middleware.core.session import Session
from semaphore_middleware.errors import AcquireTimeoutError, ClosedError, PermitLostError
from semaphore_middleware.model import chance
from semaphore_middleware.model.feedback import Backoff
from semaphore_middleware.model.lease import call_timeout
from semaphore_middleware.model.limits import LIMITLESS, Limit, parse_parts
from semaphore_middleware.model.options import NodeOptions
from semaphore_middleware.redis import embedded
from semaphore_middleware.redis.environment import default_node, url_from_environment
from semaphore_middleware.redis.keys import Keys
from semaphore_middleware.redis.link import Link
from semaphore_middleware.redis.location import Server
from semaphore_middleware.redis.recovery import Recovery
from semaphore_middleware.redis.store import Store

GivenLimit: TypeAlias = "int | Limit | Mapping[str, Any] | None"
"""A limit as `SEMAPHORE_LIMITS` has them, or a `Limit`. What a dict leaves out is not limited."""


class FairSemaphore:
    """A counting semaphore for each name, shared by all nodes that use one Redis server.

        async with FairSemaphore("redis://localhost") as semaphore:
            async with semaphore.permit("api.example.com", limit=3):
                ...

    When all permits of a scope are held, requests wait: within a node by priority and then by age,
    and the next permit goes to the node that holds the fewest, then to the one served longest ago
    (max-min fairness: D. Bertsekas and R. Gallager, Data Networks, 1987). A permit may serve
    further requests of its node for `turn` seconds (lock cohorting: D. Dice, V. J. Marathe and
    N. Shavit, Lock Cohorting: A General Technique for Designing NUMA Locks, 2012). What a node
    holds is a lease (C. Gray and D. Cheriton, Leases, 1989), renewed by a background task; what a
    dead node held is free when its lease ends.

    - `url`: an address as docs/settings.md has them (`redis://`, `redis+sentinel://` and so on);
      None takes `SEMAPHORE_REDIS_URL` or `REDIS_URL` from the environment, else starts an embedded
      server.
    - `node`: this node's name, to which a few random letters are added, other ones each time that
      it is opened.
    - `lease`: seconds after which the permits of a dead node are free; a day at most. Should be the
      same on all nodes.
    - `recovery_wait`: seconds without grants after the server has lost its data; None: the lease.
      Should be the same on all nodes.
    - `turn`: seconds for which a permit may serve further requests; 0: it serves one only.
    - `prefix`: the first part of every key.
    - `job`, `weight`: in whose share of a scope this node's permits count, and how large it is.
      Where several jobs wait, they share the permits by weight, and the nodes of each share its
      own. Of "news/fr" the part before the slash is shared first. Nodes without a job are one.
    - `backoff`: how long to pause after a refusal without Retry-After, and when a site counts as
      down (see `Permit.refused` and `Permit.failed`).
    - `history`: seconds for which the server keeps what was done to each site; 0: not at all.
    - `url_from` says in errors where the address was set.
    - `observers` (see `core/observer.py`) are opened before the server is reached, are passed each
      event, and are closed last, in reverse order.

    Raises `SettingsError` for a value that is not allowed. All times are in seconds. Its methods
    belong to the event loop that it was opened in, and to this process: where that is forked, the
    child opens it anew; threads have `SyncSemaphore`. Those that need the server wait while it
    cannot be reached. Operators' actions are in `admin`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        node: str | None = None,
        lease: float = 15.0,
        recovery_wait: float | None = None,
        turn: float = 0.1,
        prefix: str = "semaphore",
        job: str = "",
        weight: float = 1.0,
        backoff: Backoff = Backoff(),  # noqa: B008 - it is frozen
        history: float = 604800.0,
        url_from: str = "the server's URL",
        observers: Sequence[Observer] = (),
    ) -> None:
        self._options = NodeOptions(
            lease=lease,
            recovery_wait=lease if recovery_wait is None else recovery_wait,
            turn=turn,
            prefix=prefix,
            job=job,
            weight=weight,
            backoff=backoff,
            history=history,
        )
        if url is None:
            url, url_from = url_from_environment()
        self.url = url
        """The server's address; known once the semaphore is open."""
        self._given_name = node
        self._pid = os.getpid()
        self.node = self._draw_name()
        """This node's name. No two openings have the same."""
        self._is_name_new = True
        self._url_from = url_from
        if url is not None:
            self._server(url)  # a bad address is an error now, not when the semaphore is opened
        self._observers = Observers(observers)
        self._embedded: embedded.EmbeddedServer | None = None
        self._link: Link | None = None
        self._session: Session | None = None
        self._admin: Admin | None = None

    def __repr__(self) -> str:
        state = str(self._session) if self._session else "closed"
        return f"<FairSemaphore {self.node}: {state}>"

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self, wait: bool = True) -> None:
        """Connect to the server; waits, with a line in the log, while it cannot be reached.

        Raises `ServerRefusedError` if it is useless to wait, or no embedded server can be started;
        with `wait` False also `ServerUnreachableError`, after one attempt.
        """
        options = self._options
        self._forget_parent()
        if not self._is_name_new:
            self.node = self._draw_name()
        self._is_name_new = False
        try:
            await self._observers.open(self)
            if self.url is None:
                self._embedded = await asyncio.to_thread(embedded.start_or_join, options.prefix)
                self.url = self._embedded.url
            server = self._server(self.url)
            keys = Keys(options.prefix)
            store = Store(keys, self.node, options, Recovery(keys, options, self._note_loss))
            session = Session(server, store, options, self._observers.emit)
            self._link = session.link
            await session.start(wait)
        except BaseException:
            self._leave_embedded()
            await self._observers.close()
            raise
        self._session = session

    async def close(self) -> None:
        """Give all permits back and disconnect.

        Calls of `acquire` that still wait raise `ClosedError`; the body of an `async with permit()`
        is cancelled, and raises `PermitLostError`. Takes at most two seconds if the server cannot
        be reached; permits that could not be given back are free when their leases end. Raises
        only `ClosedError`, in another event loop than the one it was opened in.
        """
        self._forget_parent()
        if self._session is not None:
            self._opened()
        session, self._session = self._session, None
        admin, self._admin = self._admin, None
        try:
            if admin is not None:
                await admin.close()
            if session is not None:
                await session.stop()
        finally:
            self._leave_embedded()
            await self._observers.close()

    def _draw_name(self) -> str:
        # Two nodes of one name would share an account, and so permits: hence the letters. They are
        # enough that of 1,000 nodes that were given one name no two will draw the same.
        return f"{self._given_name or default_node()}-{chance.token(6)}"

    def _forget_parent(self) -> None:
        """In a forked child: what is open is its parent's."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._session = self._admin = None
            self._observers.forget()
            self._leave_embedded()  # a lock of the parent's stays with the parent
            self._is_name_new = False

    def emit(self, event: Event) -> None:
        """Pass an event to all observers, as long as they are open."""
        self._observers.emit(event)

    def _note_loss(self, seconds: float) -> None:
        if self._session is not None:  # else the server may be new
            self.emit(StoreLost(seconds))

    def _server(self, url: str) -> Server:
        options = self._options
        return Server(url, call_timeout(options.lease), self._url_from, options.prefix)

    def _leave_embedded(self) -> None:
        if self._embedded is not None:
            self._embedded.leave()
            self._embedded = self.url = None

    @asynccontextmanager
    async def permit(
        self, scope: str, limit: GivenLimit, timeout: float | None = None
    ) -> AsyncIterator[Permit]:
        """Hold a permit during the `async with`; its body is cancelled if the permit is lost.

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
        limit: GivenLimit,
        timeout: float | None = None,
        owner: object = None,
        priority: float = 0.0,
    ) -> Permit:
        """Wait for a permit of `scope`, of which all nodes together hold at most `limit`.

        `scope` is any string. `limit` is a `Limit`, or written as in `SEMAPHORE_LIMITS`: what a
        dict leaves out is not limited, and None leaves the limit to other nodes and operators.
        Where nodes name different limits, the lowest counts while the scope is in use. `timeout` is
        in seconds. May be cancelled at any time. The caller must
        `release()` the permit; `permit()` does so by itself. `owner` is kept as `Permit.owner`: it
        tells observers what the permit is for. Of this node's requests that wait for the scope, the
        one with the highest `priority` is served first.

        Raises `AcquireTimeoutError`, `ClosedError`, `SettingsError`, and `HostDownError` if the
        site has not responded for `backoff.down_after` (see `Permit.failed`).
        """
        permits = await self.acquire_all([(scope, limit)], timeout, owner, priority)
        permits.begin()
        return permits.permits[0]

    async def acquire_all(
        self,
        wanted: Sequence[tuple[str, GivenLimit]],
        timeout: float | None = None,
        owner: object = None,
        priority: float = 0.0,
    ) -> PermitSet:
        """Wait for a permit of each of several scopes, which are taken one after another.

        `wanted` are scopes and their limits, one at least, in the order in which all programs take
        them: by `order_of` in `model/hosts.py`. A permit is held while its request waits for the
        next one; if it is lost meanwhile, all are asked for again. The caller must call `begin()`
        when the request begins: under a delay or a rate the start counts from then on. `timeout`,
        in seconds, is for all of them together; otherwise as `acquire`, and raises what that does.
        """
        permits: list[Permit] = []
        if timeout is None:
            await self._take(permits, wanted, owner, priority)
            return PermitSet(permits)
        try:
            async with asyncio.timeout(timeout):
                await self._take(permits, wanted, owner, priority)
        except TimeoutError:
            raise self._timed_out(permits[-1], timeout) from None
        return PermitSet(permits)

    async def _take(
        self,
        permits: list[Permit],
        wanted: Sequence[tuple[str, GivenLimit]],
        owner: object,
        priority: float,
    ) -> None:
        """Add a permit of each scope to `permits`, and give all back if that fails. If one of them
        is lost while the request waits for another, begin anew.
        """
        while True:
            permits.clear()
            try:
                with UntilLost() as taken:
                    for scope, limit in wanted:
                        if permits:
                            taken.add(permits[-1])
                        permit = self._opened().request(
                            scope, checked_limit(scope, limit), owner, priority
                        )
                        permits.append(permit)
                        await permit._granted
                return
            except BaseException as error:
                for permit in permits:
                    permit.release()
                if not isinstance(error, PermitLostError):
                    raise

    def _timed_out(self, permit: Permit, timeout: float) -> AcquireTimeoutError:
        self.emit(AcquireTimedOut(permit))
        return AcquireTimeoutError(
            f"no permit for {permit.scope!r} within {round(timeout, 3):g} s "
            f"(limit {permit.limit.concurrency})"
        )

    @property
    def admin(self) -> Admin:
        """What operators see and set, with a connection of its own, closed with the semaphore.

        Raises `ClosedError`.
        """
        self._opened()
        if self._admin is None:
            self._admin = Admin(
                self.url,
                name=self.node,
                lease=self._options.lease,
                prefix=self._options.prefix,
                url_from=self._url_from,
            )
        return self._admin

    @property
    def problem(self) -> Exception | None:
        """Why the server could not be used when that was last tried, also by an `open` that waits
        for it; None: it could be used.
        """
        return self._link.problem if self._link is not None else None

    def permits(self) -> Collection[Permit]:
        """This node's permits: those that it holds, and those that it waits for."""
        return list(self._session.permits()) if self._session is not None else ()

    def limit_of(self, scope: str) -> int | None:
        """How many may hold a permit of `scope`, as this node last heard; None: it never did,
        or holds and wants none.

        Sends nothing.
        """
        return self._session.limit_of(scope) if self._session is not None else None

    def _opened(self) -> Session:
        if self._session is None:
            raise ClosedError("the semaphore is not open; use it in an 'async with'")
        if self._pid != os.getpid():
            raise ClosedError(
                "the semaphore was opened before this process was forked from another one: open it "
                "in this one, too"
            )
        if self._session.loop is not asyncio.get_running_loop():
            raise ClosedError(
                "the semaphore was opened in another event loop: open it in this one, too; threads "
                "use a SyncSemaphore"
            )
        return self._session


def checked_limit(scope: str, limit: GivenLimit) -> Limit:
    """The limit as a `Limit`. Raises `SettingsError`."""
    if isinstance(limit, Limit):
        return limit
    return _remembered_limit(scope, limit) if type(limit) is int else _read_limit(scope, limit)


def _read_limit(scope: str, limit: GivenLimit) -> Limit:
    parts = parse_parts(limit, f"the limit of {scope!r}")
    return Limit(**{**parts, "concurrency": parts.get("concurrency") or LIMITLESS})


_remembered_limit = lru_cache(maxsize=512)(_read_limit)
