"""The fair semaphore, as programs use it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from typing import Self, TypeAlias, Unpack

from semaphore_middleware.core.cache import Cache
from semaphore_middleware.core.calls import Recovery, Store
from semaphore_middleware.core.keys import Keys
from semaphore_middleware.core.observer import (
    AcquireTimedOut,
    NodeJoined,
    Observer,
    Observers,
    StoreLost,
    make_observers,
)
from semaphore_middleware.core.operations import Operations, find_operations
from semaphore_middleware.core.permit import Permit, PermitSet, UntilLost
from semaphore_middleware.core.session import Session
from semaphore_middleware.errors import (
    AcquireTimeoutError,
    ClosedError,
    PermitLostError,
    SemaphoreError,
)
from semaphore_middleware.link import chance, embedded
from semaphore_middleware.link.environment import (
    EMBEDDED,
    LONGEST_NODE,
    default_node,
    machine,
    url_from_environment,
    warn_of_others,
)
from semaphore_middleware.link.lease import call_timeout
from semaphore_middleware.link.link import Link
from semaphore_middleware.link.location import Server
from semaphore_middleware.link.renewal_thread import RENEWAL_THREAD, RenewalThread
from semaphore_middleware.model.events import Event, Fields
from semaphore_middleware.model.hosts import check_scope
from semaphore_middleware.model.limits import LIMITLESS, GivenLimit, Limit, parse_parts
from semaphore_middleware.model.options import GivenOptions, NodeOptions, check_node
from semaphore_middleware.model.reasons import Reason
from semaphore_middleware.model.validation import (
    check_priority,
    check_timeout,
    not_allowed,
)

Progress: TypeAlias = Callable[[int, bool], object]
"""Takes how many of its permits a request has, and whether it must wait for the next one."""


CLOSE_S = 2.0
"""How long a semaphore takes at most to close."""
CLOSE_OBSERVERS_S = 0.5
"""The least part of it that is kept for the observers."""


class FairSemaphore:
    """A counting semaphore for each name, shared by all nodes of one Redis server.

        async with FairSemaphore("redis://localhost") as semaphore:
            async with semaphore.permit("api.example.com", limit=3):
                ...

    - `url`: the server's address, in one of the forms of docs/settings.md (`redis://`,
      `redis+sentinel://` and so on); None: the environment's `SEMAPHORE_REDIS_URL` or `REDIS_URL`,
      or an embedded server if neither is set; "embedded": always the embedded server.
    - `node`: this node's name, to which random letters are added, different ones at each opening.
    - `url_from`: where the address was set, for errors.
    - `observers`: each an `Observer` of `semaphore_middleware.core.observer`. They are opened
      before the server is reached, get each event, and are closed last, in reverse order.
    - `options`: those of `NodeOptions`, such as `lease`, `reuse_window` and `job`.

    Raises `SettingsError` for a value that is not allowed. All times are in seconds. Use it in the
    event loop and the process that have opened it: a forked child must open it again; threads use
    `SyncSemaphore`. Methods that need the server wait while it cannot be reached. Operators'
    actions are in `admin`.

    When all permits of a scope are held, requests wait: within a node by priority and then by age.
    The next permit goes to the node that holds the fewest, then to the one served longest ago
    (max-min fairness: D. Bertsekas and R. Gallager, Data Networks, 1987). A permit may serve
    further requests of its node for `reuse_window` seconds (lock cohorting: D. Dice, V. J. Marathe
    and N. Shavit, Lock Cohorting: A General Technique for Designing NUMA Locks, 2012). A node holds
    permits under a lease, which a background task renews: a dead node's permits are free when its
    lease ends (C. Gray and D. Cheriton, Leases, 1989).
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        node: str | None = None,
        url_from: str = "the server's URL",
        observers: Sequence[Observer] = (),
        **options: Unpack[GivenOptions],
    ) -> None:
        self._options = NodeOptions(**options)
        for name, value in (("url", url), ("node", node)):
            if value is not None and not isinstance(value, str):
                raise not_allowed(value, name, "a text, or None", may_be_secret=name == "url")
        if node is not None:
            check_node(node, "node")
        if url is None:
            url, url_from = url_from_environment()
        self.url = url = None if url == EMBEDDED else url
        """The server's address; known once the semaphore is open."""
        self._is_embedded_by_default = not (url or url_from)
        self._given_name = node
        self._pid = os.getpid()
        self.node = self._draw_name()
        """This node's name. No two openings have the same."""
        self._is_name_new = True
        self._machine = machine()
        self._url_from = url_from
        if url is not None:
            self._server(url)  # a bad address is an error now, not when the semaphore is opened
        self._observers = Observers(observers)
        self._embedded: embedded.EmbeddedServer | None = None
        self._link: Link | None = None
        self._session: Session | None = None
        self._admin: Operations | None = None
        self._closing: asyncio.Task[None] | None = None
        self._renewal_thread: RenewalThread | None = RENEWAL_THREAD

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
        with `wait` False also `ServerUnreachableError`, after one attempt. Raises `SemaphoreError`
        if it is open already.
        """
        options = self._options
        loop = asyncio.get_running_loop()
        self._forget_parent()
        await self._until_closed()
        if self._session is not None and not self._session.loop.is_closed():
            raise SemaphoreError("the semaphore is open already: open it once, and share it")
        if not self._is_name_new:
            self.node = self._draw_name()
        self._is_name_new = False
        try:
            if self.url is None:
                self._embedded = await asyncio.to_thread(embedded.start_or_join, options.prefix)
                self.url = self._embedded.url
            server = self._server(self.url)
            if self._is_embedded_by_default or server.is_loopback:
                warn_of_others(str(server), not self._is_embedded_by_default)
            await self._observers.open(self, make_observers(options, server))
            keys = Keys(options.prefix)
            recovery = Recovery(keys, options, self._note_loss)
            store = Store(keys, self.node, self._machine, options, recovery)
            session = Session(server, store, options, self._observers, self._renewal_thread)
            self._link = session.link
            await session.start(wait)
            self.emit(NodeJoined)
        except BaseException:
            await self._observers.close(loop.time() + CLOSE_OBSERVERS_S)
            self._leave_embedded()
            raise
        self._session = session

    async def close(self) -> None:
        """Give all permits back and disconnect.

        Calls of `acquire` that still wait raise `ClosedError`; the body of an `async with permit()`
        is cancelled, and raises `PermitLostError`. Takes at most two seconds if the server cannot
        be reached; permits that could not be given back are free when their leases end. If this
        call is cancelled, as in such a body, the semaphore still closes, and the next call waits
        for the end of that. Raises only `ClosedError`, if called in another event loop than `open`.
        """
        self._forget_parent()
        if self._session is not None:
            session, admin = self._opened(), self._admin
            self._session = None
            self._admin = None
            self._closing = asyncio.create_task(self._close(session, admin))
        await self._until_closed()

    async def _close(self, session: Session, admin: Operations | None) -> None:
        until = asyncio.get_running_loop().time() + CLOSE_S
        try:
            if admin is not None:
                await admin.close()
            await session.stop(until - CLOSE_OBSERVERS_S)
        finally:
            await self._observers.close(until)
            self._leave_embedded()
            self._closing = None

    async def _until_closed(self) -> None:
        """Wait for the end of a `close` that has begun, whoever has called it."""
        closing = self._closing
        if closing is not None and closing.get_loop() is asyncio.get_running_loop():
            await asyncio.shield(closing)

    def _draw_name(self) -> str:
        # Two nodes with the same name would share leases, and so permits. There are enough letters
        # for 1,000 nodes that were given one name to draw different ones.
        letters = f"-{chance.token(6)}"
        return (self._given_name or default_node())[: LONGEST_NODE - len(letters)] + letters

    def _forget_parent(self) -> None:
        """In a forked child, forget what is open: it is the parent's."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._session = None
            self._admin = None
            self._closing = None
            self._observers.forget()
            self._leave_embedded()  # the parent keeps its own lock
            self._is_name_new = False

    def emit(self, kind: Callable[[*Fields], Event], *fields: *Fields) -> None:
        """Notify all observers, while they are open, of an event of this class."""
        self._observers.emit(kind, *fields)

    def _note_loss(self, seconds: float) -> None:
        if self._session is not None:  # otherwise the server may be new
            self.emit(StoreLost, seconds)

    @property
    def longest_call(self) -> float:
        """The longest time that a call to the server may take, in seconds."""
        return call_timeout(self._options.lease)

    def _server(self, url: str) -> Server:
        options = self._options
        return Server(
            url,
            self.longest_call,
            self._url_from,
            options.prefix,
            options.credentials,
            options.redis_options,
        )

    def _leave_embedded(self) -> None:
        if self._embedded is not None:
            self._embedded.leave()
            self._embedded = None
            self.url = None

    @asynccontextmanager
    async def permit(
        self, scope: str, limit: GivenLimit, timeout: float | None = None
    ) -> AsyncIterator[Permit]:
        """Hold a permit during the `async with`; its body is cancelled if the permit is lost.

        As a decorator of a coroutine function it takes a permit for each call. Raises what
        `acquire` raises, and `PermitLostError`.
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
        priority: float = 0.0,
    ) -> Permit:
        """Wait for a permit of `scope`. All nodes together hold at most `limit`.

        `scope` is a text of 1 to 1000 characters: not a URL, and without control characters.
        `limit` is a number, a `Limit`, or a `LimitDict`; None leaves it to other nodes and
        operators. Where nodes name different limits, the lowest counts while the scope is in use.
        `timeout` is in seconds; 0 takes a permit that is free now, or none. Of this node's requests
        that wait for the scope, the one with the highest `priority` is served first. May be
        cancelled at any time. The caller must `release()` the permit; `permit()` does so by itself.

        Raises `AcquireTimeoutError`, `ClosedError`, `SettingsError`, and `HostDownError` if the
        site has not responded for `backoff.down_after` (see `Permit.failed`).
        """
        permits = await self.acquire_all([(scope, limit)], timeout, priority=priority)
        permits.begin()
        return permits.permits[0]

    async def acquire_all(
        self,
        wanted: Sequence[tuple[str, GivenLimit]],
        timeout: float | None = None,
        owner: object = None,
        priority: float = 0.0,
        on_progress: Progress | None = None,
    ) -> PermitSet:
        """Wait for a permit of each of several scopes, taken one after another.

        `wanted` are scopes and their limits, one at least, in the order in which all programs take
        them: by `semaphore_middleware.model.hosts.order_of`. `timeout`, in seconds, is for all of
        them together. Otherwise this works as `acquire` does, and raises the same errors. A permit
        is held while its request waits for the next one; if it is lost meanwhile, all are requested
        again. The caller must call `begin()` when the request begins: under a delay or a rate the
        start counts from then on. `owner` is kept as `Permit.owner`, which shows observers the
        purpose of the permits.

        `on_progress(taken, waits)` is called with `waits` true when the server has no permit free
        for the next scope, and with `waits` false when the request goes on to another scope.
        """
        checked = [(check_scope(scope), checked_limit(scope, limit)) for scope, limit in wanted]
        timeout = check_timeout(timeout, "timeout")
        priority = check_priority(priority, "priority")
        permits: list[Permit] = []
        if timeout is None:
            await self._take(permits, checked, owner, priority, on_progress)
            return PermitSet(permits)
        if timeout == 0.0:
            on_progress = partial(_give_up_at_wait, on_progress)
        try:
            async with asyncio.timeout(timeout or self.longest_call):
                await self._take(permits, checked, owner, priority, on_progress)
        except (_NotNowError, TimeoutError):
            raise self._timed_out(permits[-1], timeout) from None
        return PermitSet(permits)

    async def _take(
        self,
        permits: list[Permit],
        wanted: Sequence[tuple[str, Limit]],
        owner: object,
        priority: float,
        on_progress: Progress | None,
    ) -> None:
        """Add a permit of each scope to `permits`, or give all back on an error. If one of them is
        lost while the request waits for another, begin again.
        """
        while True:
            permits.clear()
            try:
                with UntilLost() as taken:
                    for scope, limit in wanted:
                        if permits:
                            taken.add(permits[-1])
                            if on_progress is not None:
                                on_progress(len(permits), False)
                        on_wait = on_progress and partial(on_progress, len(permits), True)
                        permit = self._opened().updates.request(
                            scope, limit, owner, priority, on_wait
                        )
                        permits.append(permit)
                        await permit._granted
                return
            except BaseException as error:
                for permit in permits:
                    permit.release()
                if not isinstance(error, PermitLostError):
                    raise
                if on_progress is not None:
                    on_progress(0, False)

    def _timed_out(self, permit: Permit, timeout: float) -> AcquireTimeoutError:
        self.emit(AcquireTimedOut, permit)
        reason, _ = self.reason_at(permit.scope)
        why = self.problem or (reason and reason.sentence)
        return AcquireTimeoutError(
            f"no permit for {permit.scope!r} within {round(timeout, 3):g} s ({permit.limit})"
            + (f": {why}" if why else "")
        )

    def name_limit(self, scope: str, source: object, limit: Limit | None) -> None:
        """Name a limit of a scope for all requests of this node, in addition to the limits that
        they name themselves: also for those that wait already.

        It counts, as theirs do, while this node has requests there. Each `source` has one limit of
        a scope, which a later call replaces, or takes back by None. Does nothing when closed.
        """
        if self._session is not None:
            self._session.updates.name_limit(scope, source, limit)

    @property
    def admin(self) -> Operations:
        """The operators' view and actions: an `Admin`, with its own connection, closed with the
        semaphore.

        Raises `ClosedError`.
        """
        self._opened()
        if self._admin is None:
            self._admin = find_operations()(
                self.url,
                name=self.node,
                lease=self._options.lease,
                prefix=self._options.prefix,
                url_from=self._url_from,
                credentials=self._options.credentials,
                redis_options=self._options.redis_options,
            )
        return self._admin

    @property
    def cache(self) -> Cache:
        """Small values shared by all nodes. Raises `ClosedError`."""
        return self._opened().cache

    @property
    def problem(self) -> Exception | None:
        """The error of the last attempt to use the server, also by an `open` that waits for it;
        None: it succeeded.
        """
        return self._link.problem if self._link is not None else None

    def refresh(self) -> None:
        """Fetch the present state of all sites where requests wait or hold permits."""
        if self._session is not None:
            self._session.refresh()

    def reason_at(self, scope: str) -> tuple[Reason | None, float | None]:
        """Why this node's requests of a scope wait, by the server's last reply (None: it is not
        known), and for how many seconds from then on (None: it is not a matter of time alone).
        """
        return self._session.reason_at(scope) if self._session is not None else (None, None)

    def held_back_by(self, scope: str) -> str:
        """Why this node's requests of a scope wait, by the server's last reply, in a word or two:
        `delay 1.5 s`; empty: it is not known.
        """
        return self._session.held_back_by(scope) if self._session is not None else ""

    def permits(self) -> Collection[Permit]:
        """This node's permits: those that it holds, and those that it waits for."""
        return list(self._session.updates.permits()) if self._session is not None else ()

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


class _NotNowError(Exception):
    """No permit is free now."""


def _give_up_at_wait(on_progress: Progress | None, taken: int, waits: bool) -> None:
    if on_progress is not None:
        on_progress(taken, waits)
    if waits:
        raise _NotNowError


def checked_limit(scope: str, limit: GivenLimit) -> Limit:
    """The limit as a `Limit`. Raises `SettingsError`."""
    if isinstance(limit, Limit):
        return limit
    return _remembered_limit(scope, limit) if type(limit) is int else _read_limit(scope, limit)


def _read_limit(scope: str, limit: GivenLimit) -> Limit:
    parts = parse_parts(limit, f"the limit of {scope!r}")
    return Limit(**{**parts, "concurrency": parts.get("concurrency") or LIMITLESS})


_remembered_limit = lru_cache(maxsize=512)(_read_limit)
