"""A node's session with the server: sends updates in batches, and receives notifications."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress

from semaphore_middleware.core.cache import Cache
from semaphore_middleware.core.calls import Store
from semaphore_middleware.core.keys import Keys
from semaphore_middleware.core.observer import (
    Observers,
    Reconnected,
    RoundTrip,
    UnknownNotification,
)
from semaphore_middleware.core.protocol import Notification
from semaphore_middleware.core.update_queue import UpdateQueue
from semaphore_middleware.errors import ServerRefusedError, ServerUnreachableError
from semaphore_middleware.link.connection import CallTimeoutError, Connection
from semaphore_middleware.link.lease import RENEWAL
from semaphore_middleware.link.link import Link, Subscription
from semaphore_middleware.link.location import Server
from semaphore_middleware.link.renewal_thread import Heartbeat, RenewalThread
from semaphore_middleware.model.options import NodeOptions
from semaphore_middleware.model.reasons import Reason

logger = logging.getLogger(__name__)


class Session:
    """The tasks and connections that serve this node's update queue.

    There are two tasks, each with a connection: one for calls, one for the subscription. When a
    connection breaks, its task opens a new one, and everything is sent again.
    """

    def __init__(
        self,
        server: Server,
        store: Store,
        options: NodeOptions,
        observers: Observers,
        renewal_thread: RenewalThread | None = None,
    ) -> None:
        self.link = Link(server, lambda: f"No permit is granted until it can be used again; {self}")
        """For calls; the subscription has its own."""
        self._store = store
        self._recovery = store.recovery
        self.loop = asyncio.get_running_loop()
        """The event loop that the session runs in."""
        self._emit = observers.emit
        self._work = asyncio.Event()
        self.updates = UpdateQueue(store.node, options, observers, self.loop, self._work.set)
        """This node's leases."""
        self.cache = Cache(Keys(options.prefix), self._work.set)
        """Small values shared by all nodes."""
        self._connection: Connection | None = None  # over which everything was sent
        period = RENEWAL * options.lease
        self._subscription = Subscription(
            self.link,
            store.channels,
            period,
            self._on_message,
            f"some permits come up to {period:g} s late",
        )
        self._caller: asyncio.Task[None] | None = None
        self._heartbeat = Heartbeat(
            renewal_thread,
            self.link,
            options.lease,
            self._repeat,
            lambda: bool(self.updates.leases),
            self._on_stall,
        )
        self._lease_time = options.lease

    def __str__(self) -> str:
        return str(self.updates)

    async def start(self, wait: bool = True) -> None:
        """Connect to the server, and serve until `stop`.

        Raises `ServerRefusedError` if it is useless to wait; without `wait`, after one attempt,
        also `ServerUnreachableError`.
        """
        give_up = (ServerRefusedError,) if wait else (ServerRefusedError, ServerUnreachableError)
        try:
            await self.link.insist(self._join, give_up)
        except BaseException:
            await self.link.close()
            raise
        self.updates.epoch = self._recovery.epoch
        self._caller = asyncio.create_task(self._serve())
        self._subscription.start()
        self._heartbeat.start()

    async def stop(self, until: float) -> None:
        """Give everything back, until a time on the loop's clock at the latest, and disconnect."""
        try:
            await self._heartbeat.stop()
            self.updates.give_all_back()  # promise: a close gives back
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    while self.updates.leases:
                        self.updates.emptied.clear()
                        await self.updates.emptied.wait()
            if self.updates.leases:
                logger.warning(
                    "Could not give all permits back (%s): they are free when their leases end, in "
                    "%g s at most.",
                    self._why_not_empty(),
                    self._lease_time,
                )
        finally:
            self.updates.cancel_timers()
            if self._caller is not None:
                self._caller.cancel()
            await self._subscription.close()
            if self._caller is not None:
                await asyncio.gather(self._caller, return_exceptions=True)
            self.cache.give_up()

    def _why_not_empty(self) -> str:
        """Why some permits are not given back at the end."""
        if self.link.problem:
            return str(self.link.problem)
        in_use = sum(lease.in_use for lease in self.updates.leases.values())
        if in_use:
            return f"{in_use} in use, by requests not ended or responses not closed"
        return "no answer"

    # The two tasks ------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Make calls to the server, one at a time, while any update is due."""
        try:
            while True:
                await self._work.wait()
                self._work.clear()
                if not await self.link.attempt(self._call_once):
                    self._work.set()
        finally:
            await self.link.close()

    async def _call_once(self) -> None:
        try:
            async with self.link.use() as connection:
                await self._join_again(connection)
                await self._sync(connection)
        except Exception:
            self.cache.give_up()
            await self.link.close()  # over a new connection everything is sent again
            raise

    async def _join_again(self, connection: Connection) -> None:
        """Over a new connection: join the epoch, and send everything again."""
        if connection is self._connection:
            return
        await self._recovery.join_epoch(connection)
        self.updates.send_all()
        if self._recovery.epoch != self.updates.epoch:
            await self._begin_epoch()
        self._connection = connection
        self._emit(Reconnected)

    async def _sync(self, connection: Connection) -> None:
        """Make the next call, and apply the replies."""
        await self.cache.exchange(connection)  # first, as updates may return permits
        call = self.updates.next_call()
        if call.updates or call.checks_server:
            try:
                replies = await self._store.sync(connection, call.updates, call.checks_server)
            except CallTimeoutError:
                self.updates.on_timeout(call)
                raise
            if replies is None:
                await connection.check_server()  # the renewal thread must find the same incarnation
                await self._recovery.join_epoch(connection)
                await self._begin_epoch()
                return
            wall = self._store.wall if replies else None
            self._emit(RoundTrip, self.loop.time() - call.sent, wall)
            self.updates.on_replies(call, replies)
        else:
            self.updates.forget_empty(call.leases)

    async def _begin_epoch(self) -> None:
        """Move all leases to the joined epoch. A proxy may have left the subscription behind."""
        self.updates.epoch = self._recovery.epoch
        for lease in self.updates.leases.values():
            lease.on_new_epoch()
        self.updates.send_all()
        await self._subscription.renew()

    def _on_message(self, payload: bytes | None) -> None:
        if payload is None:  # subscribed, maybe again: earlier notifications were missed
            self.refresh()  # promise: missed messages
            return
        notification = Notification.read(payload)
        if notification is None:
            self._emit(UnknownNotification)
        elif notification.kind == "changed":
            if notification.change:
                logger.info("%s.", notification.change)
            for each in self.updates.leases.values():
                each.stop_reuse()  # promise: changed rule
            self.refresh()
        elif lease := self.updates.leases.get(notification.scope):
            match notification.kind, notification.numbers:
                case "granted", (lease_id, granted):
                    lease.on_granted(lease_id, granted)
                case "retry", (wait,):
                    self.updates.send_later(lease, wait / 1000)
                case "backoff", (paused_at, length):
                    lease.on_pause(paused_at, length)
                case _ if finding := notification.finding:
                    lease.on_finding(finding)

    def refresh(self) -> None:
        """Send everything again, as the replies have the present state of all sites."""
        self.updates.send_all()
        if self._recovery.left:  # an operator may have ended the wait
            self.updates.check_server()

    def reason_at(self, scope: str) -> tuple[Reason | None, float | None]:
        """See `FairSemaphore.reason_at`."""
        lease = self.updates.leases.get(scope)
        reason = lease.last_reply.reason if lease and lease.last_reply else None
        match reason and reason.name:
            case "recovery":
                return reason, self._recovery.left
            case "backoff" if lease:
                return reason, lease.pause_end - self._store.wall
        return reason, None

    def held_back_by(self, scope: str) -> str:
        """See `FairSemaphore.held_back_by`."""
        lease = self.updates.leases.get(scope)
        return lease.last_reply.held_back_by if lease and lease.last_reply else ""

    # While the loop is stalled -----------------------------------------------------------------

    async def _repeat(self, connect: Callable[[], Awaitable[Connection]]) -> bool:
        """In the renewal thread: renew the leases, by sending the last updates again. Only the
        deadlines of leases that the server still has are moved.
        """
        epoch, leases = self.updates.epoch, list(self.updates.leases.values())
        updates = [update for lease in leases for update in lease.to_repeat(epoch)]
        if not updates:
            return False
        connection = await connect()
        until = self._heartbeat.now() + self.updates.grace
        replies = await self._store.repeat(connection, epoch, updates) or ()
        last = {reply.update.scope: reply for reply in replies}  # of several, the last
        renewed = [lease for lease in leases if lease.scope in last]
        for lease in renewed:
            reply = last[lease.scope]
            end = until if reply.status == "ok" else -math.inf  # rule 30: only ok
            lease.repeated = reply.update.lease_id, end
        return any(lease.repeated[1] == until for lease in renewed)

    def _on_stall(self, seconds: float, was_named: bool) -> None:
        if not self.updates.was_in_use_since(self.loop.time() - seconds):
            return
        if not was_named:
            logger.warning(
                "This process stood still for %.1f s and could not renew its permits, which end "
                "after %.1f s. Does the machine swap, was it suspended, or does a callback compute "
                "in C for long?",
                seconds,
                self._lease_time,
            )
        self.updates.on_stall(seconds)

    async def _join(self) -> None:
        """At the start: check that nothing is missing, and join the epoch."""
        self._connection = connection = await open_checked(self.link, self._store)
        await self._recovery.join_epoch(connection)


async def open_checked(link: Link, store: Store) -> Connection:
    """The link's connection, once no right is missing. Raises as `Server.connect` does."""
    connection = await link.open()
    await store.check_rights(connection)
    await link.check_subscription(store.channels)
    return connection
