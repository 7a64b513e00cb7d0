"""Background session with Redis: sends batched statements, listens for grants.

All that is due goes in one round trip, and what comes up meanwhile goes in the next. A statement
that no request waits for is held back for some milliseconds, so that others can go with it: a call
costs more than what it carries.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice

from semaphore_middleware.core.account import Account, common_turn_end
from semaphore_middleware.core.diary import Diary
from semaphore_middleware.core.observer import (
    Event,
    ProcessStalled,
    Reconnected,
    RobotsTxtNotified,
    RoundTrip,
    Subscribed,
    UnknownNotification,
)
from semaphore_middleware.core.permit import Permit
from semaphore_middleware.errors import ClosedError, ServerRefusedError, ServerUnreachableError
from semaphore_middleware.model import chance
from semaphore_middleware.model.lease import GRACE, RENEWAL
from semaphore_middleware.model.limits import Limit
from semaphore_middleware.model.options import NodeOptions
from semaphore_middleware.redis.connection import CallTimeoutError, Connection
from semaphore_middleware.redis.link import Link, Subscription
from semaphore_middleware.redis.location import Server
from semaphore_middleware.redis.protocol import Notification
from semaphore_middleware.redis.store import Store

logger = logging.getLogger(__name__)

ACCOUNTS_AT_ONCE = 1000  # in one round trip, so that neither side is kept from others for long
BATCH_DELAY_S = 0.010  # for how long a statement that no request waits for is held back
BUSY_INTERVAL_S = 1 / 50  # between two requests: if it is shorter, a call for each costs too much
INTERVAL_SAMPLES = 16  # requests that the mean interval is taken over, about
NOTE_SPREAD_S = 5.0  # after a minute's end: not all nodes speak of it at once
SHUTDOWN_TIMEOUT_S = 2.0  # for giving everything back at the end
TIMER_LAG_S = 0.001  # timers are so late, since the event loop's poll counts in milliseconds


class Session:
    """This node's accounts, and the tasks that tell the server of them and hear its grants.

    It has two connections: one for calls, one for the subscription. It opens new ones as long as it
    runs, and then everything is said again.
    """

    def __init__(
        self, server: Server, store: Store, options: NodeOptions, emit: Callable[[Event], None]
    ) -> None:
        self.link = Link(server, self._state_while_away)
        """For calls; the subscription has its own."""
        self._store = store
        self._recovery = store.recovery
        self._lease = lease = options.lease
        self.loop = asyncio.get_running_loop()
        """To which all of it belongs."""
        self.grace = GRACE * lease
        """Seconds from sending a statement to the deadline that its answer sets."""
        self.turn = options.turn
        self.emit = emit
        self.now = self.loop.time
        self.diary = Diary(self.now) if options.history else None
        """What goes into the server's history; None: nothing does."""
        self.accounts: dict[str, Account] = {}
        """By scope: those in which there is anything."""
        self._last_term = 0
        self._to_speak: dict[Account, None] = {}
        self._to_end_turns: dict[Account, None] = {}
        self._is_draining = False
        self._accounts_at_once = ACCOUNTS_AT_ONCE  # fewer after a time-out
        self._is_note_due = False  # what the diary has to say
        self._is_look_due = False  # whether the server still is in the life that is known
        self._work = asyncio.Event()
        self._settled = asyncio.Event()
        self._asked_at = -math.inf
        self._request_interval = 1.0  # seconds between two requests, on average
        self._batch_timer: asyncio.TimerHandle | None = None
        self._turns_timer: asyncio.TimerHandle | None = None
        self._renewal: asyncio.TimerHandle | None = None
        self._note_timer: asyncio.TimerHandle | None = None
        self._deadlines: asyncio.TimerHandle | None = None
        self._retry_timers: dict[Account, asyncio.TimerHandle] = {}
        self._epoch = b""  # in which the accounts are
        self._subscription = Subscription(
            self.link,
            store.channels,
            RENEWAL * lease,
            self._on_message,
            f"some permits come up to {RENEWAL * lease:g} s late",
        )
        self._caller: asyncio.Task[None] | None = None

    def __str__(self) -> str:
        held = sum(len(account.held) for account in self.accounts.values())
        waiting = sum(len(account.waiting) for account in self.accounts.values())
        return f"{held} held, {waiting} waiting"

    def permits(self) -> Iterator[Permit]:
        """All permits that are held or waited for."""
        for account in list(self.accounts.values()):
            yield from [*account.held, *account.waiting]

    def limit_of(self, scope: str) -> int | None:
        """The limit in force, as last heard; None: this node has nothing to do with the scope."""
        account = self.accounts.get(scope)
        return account.limit_in_force if account else None

    async def start(self, wait: bool = True) -> None:
        """Connect to the server, and serve until `stop`.

        Raises `ServerRefusedError` if it is useless to wait; without `wait`, after one attempt,
        also `ServerUnreachableError`.
        """
        give_up = (ServerRefusedError, *(() if wait else (ServerUnreachableError,)))
        try:
            await self.link.insist(self._join, give_up)
        except BaseException:
            await self.link.close()
            raise
        self._epoch = self._recovery.epoch
        self._note()  # first that this node is there
        self._caller = asyncio.create_task(self._serve())
        self._subscription.start()

    async def stop(self) -> None:
        """Give everything back, for at most `SHUTDOWN_TIMEOUT_S`, and disconnect."""
        try:
            self._give_all_back()
            with suppress(TimeoutError):
                async with asyncio.timeout(SHUTDOWN_TIMEOUT_S):
                    while self.accounts:
                        await self._until_settled()
                    self._note()
                    while self.diary is not None and not self.diary.is_closed:
                        await self._until_settled()
        finally:
            self._stop_timers()
            if self._caller is not None:
                self._caller.cancel()
            await self._subscription.close()
            if self._caller is not None:
                await asyncio.gather(self._caller, return_exceptions=True)

    async def _until_settled(self) -> None:
        self._settled.clear()
        await self._settled.wait()

    # Requests -----------------------------------------------------------------------------------

    def request(
        self,
        scope: str,
        limit: Limit,
        owner: object = None,
        priority: float = 0.0,
    ) -> Permit:
        """Ask for a permit. Raises `ClosedError` once this stops."""
        if self._is_draining:
            raise ClosedError("the semaphore is closing")
        account = self.accounts.get(scope)
        if account is None:
            account = self.accounts[scope] = Account(scope, limit, self)
        permit = Permit(scope, limit, self.loop, account, owner, priority)
        interval = min(1.0, permit._asked_at - self._asked_at)
        self._request_interval += (interval - self._request_interval) / INTERVAL_SAMPLES
        self._asked_at = permit._asked_at
        account.request(permit)
        if self._renewal is None:
            self._renewal = self.loop.call_later(RENEWAL * self._lease, self._renew)
        return permit

    def _give_all_back(self) -> None:
        """Refuse requests that wait, and those to come, with `ClosedError`, and release all
        permits; what runs under one is cancelled, and releases it at its end.
        """
        self._is_draining = True
        for account in self.accounts.values():
            account.drain()
            for permit in account.waiting:
                permit._refuse(ClosedError("the semaphore is closing"))
        for permit in list(self.permits()):
            if permit._when_lost:
                permit._lose(f"the semaphore was closed over a permit for {permit.scope!r}")
            else:
                permit.release()

    # For accounts -------------------------------------------------------------------------------

    def new_term(self, above: int = 0) -> int:
        """A number that no account of this node has had, above `above`."""
        self._last_term = max(self._last_term, above) + 1
        return self._last_term

    def speak(self, account: Account, at_once: bool) -> None:
        """Send the account's statement: at once, or within some milliseconds if requests come so
        fast that a call for each would cost too much.
        """
        self._to_speak[account] = None
        if at_once or (account.waiting and self._request_interval > BUSY_INTERVAL_S):
            self._work.set()
        elif self._batch_timer is None:
            self._batch_timer = self.loop.call_later(BATCH_DELAY_S, self._end_batch)

    def _end_batch(self) -> None:
        self._batch_timer = None
        self._work.set()

    def speak_at_turns_end(self, account: Account) -> None:
        """Call the account's `end_turns` at the next multiple of the turn's length."""
        if not self.turn:
            self.speak(account, at_once=False)
            return
        self._to_end_turns[account] = None
        if self._turns_timer is None:
            end = common_turn_end(self.now(), self.turn)
            self._turns_timer = self.loop.call_at(end, self._end_turns)

    def _end_turns(self) -> None:
        self._turns_timer = None
        accounts, self._to_end_turns = self._to_end_turns, {}
        for account in accounts:
            account.end_turns()

    def retry(self, account: Account, wait: float) -> None:
        """Let the account speak again in so many seconds: only time keeps its requests waiting."""
        if timer := self._retry_timers.pop(account, None):
            timer.cancel()
        wait = max(0.0, wait - TIMER_LAG_S)
        self._retry_timers[account] = self.loop.call_later(wait, self._speak_again, account)

    def _speak_again(self, account: Account) -> None:
        self._retry_timers.pop(account, None)
        if account.waiting:
            self.speak(account, True)

    def _forget_empty(self, account: Account) -> None:
        if account.is_empty and self.accounts.get(account.scope) is account:
            del self.accounts[account.scope]
            if self.diary is not None:
                self.diary.forget(account.scope)
            if timer := self._retry_timers.pop(account, None):
                timer.cancel()
            if not self.accounts:
                self._settled.set()

    # Time ---------------------------------------------------------------------------------------

    def _renew(self) -> None:
        assert self._renewal is not None
        late = self.now() - self._renewal.when()
        self._renewal = None
        if late > RENEWAL * self._lease:
            self.emit(ProcessStalled(late))
            logger.warning(
                "This process stood still for %.1f s and could not renew its permits, which end "
                "after %.1f s. Does a callback compute for long, does the machine swap, or was it "
                "suspended?",
                late,
                self._lease,
            )
        if self.accounts:
            self._is_look_due = True
            self._say_all()
            self._renewal = self.loop.call_later(RENEWAL * self._lease, self._renew)

    def _note(self) -> None:
        """Say what there is for the history. That an idle node says so, too, tells it from one that
        was killed.
        """
        if self.diary is not None:
            self._is_note_due = True
            self._work.set()

    def _say_all(self) -> None:
        """Say everything again: after a gap, and to keep the leases."""
        self._to_speak |= dict.fromkeys(self.accounts.values())
        self._work.set()

    def _check_deadlines(self) -> None:
        """End what is over, and look again at the next deadline."""
        now = self.now()
        for account in list(self.accounts.values()):
            account.end_if_over(now)
            self._forget_empty(account)
        next_deadline = min(
            (account.deadline for account in self.accounts.values()), default=math.inf
        )
        self._deadlines = None
        if next_deadline < math.inf:
            self._deadlines = self.loop.call_at(next_deadline, self._check_deadlines)

    def _stop_timers(self) -> None:
        timers = (self._batch_timer, self._turns_timer, self._renewal, self._deadlines)
        for timer in (*timers, self._note_timer, *self._retry_timers.values()):
            if timer is not None:
                timer.cancel()

    # The two tasks ------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Send what is due, one round trip at a time."""
        try:
            while True:
                await self._work.wait()
                self._work.clear()
                if not await self.link.attempt(self._speak_once):
                    self._work.set()
        finally:
            await self.link.close()

    async def _speak_once(self) -> None:
        try:
            await self._sync(await self._connect())
        except Exception:
            await self.link.close()  # over a new connection everything is said again
            raise

    async def _connect(self) -> Connection:
        """The connection to the server, in whose epoch this is."""
        if self.link.is_open:
            return await self.link.open()
        connection = await self.link.open()
        await self._recovery.join_epoch(connection)
        self._say_all()
        # Not whether this joined another one: an earlier call may have, whose reply was lost.
        if self._recovery.epoch != self._epoch:
            await self._begin_epoch()
        self.emit(Reconnected())
        return connection

    async def _sync(self, connection: Connection) -> None:
        """Say what is to be said, and hear the replies."""
        look, self._is_look_due = self._is_look_due, False  # after an error it is looked at anyway
        accounts = self._take_due()
        sent = self.now()
        statements = [one for account in accounts for one in account.pending_statements(sent)]
        if statements or look:
            if statements and self._deadlines is None:
                self._deadlines = self.loop.call_at(sent + self.grace, self._check_deadlines)
            try:
                replies = await self._store.sync(connection, statements, look)
            except CallTimeoutError:
                self._accounts_at_once = max(1, len(accounts) // 2)
                raise
            self._accounts_at_once = min(ACCOUNTS_AT_ONCE, self._accounts_at_once + 1)
            if replies is None:
                await self._recovery.join_epoch(connection)
                await self._begin_epoch()
                return
            heard = self.now()
            self.emit(RoundTrip(heard - sent))
            if self.diary is not None and replies:
                self.diary.set_clock(self._store.wall, sent, heard)
            for reply in replies:
                if account := self.accounts.get(reply.statement.scope):
                    account.on_reply(reply, sent)
        for account in accounts:
            self._forget_empty(account)
        if self._is_note_due:
            await self._say_diary(connection)

    async def _say_diary(self, connection: Connection) -> None:
        """Say a part of what there is for the history; if that was all, go on when the minute has
        ended, at a time of this node's own.
        """
        assert self.diary is not None, "there is something to note"
        is_last = self._is_draining and not self.accounts
        batch, sent = self.diary.next_batch(is_last), self.now()
        try:
            wall = await self._store.note(connection, batch)
            self.diary.set_clock(wall, sent, self.now())
        except ServerRefusedError as error:
            logger.warning("The history lacks a minute of this node: %s", error)
        self._is_note_due = self.diary.on_said(batch)
        if self._is_note_due:
            self._work.set()
        elif not is_last:
            wait = self.diary.seconds_left + NOTE_SPREAD_S * chance.fraction()
            self._note_timer = self.loop.call_later(wait, self._note)
        self._settled.set()

    def _take_due(self) -> list[Account]:
        """The accounts that speak in this round trip; those that are left speak in the next."""
        accounts = list(islice(self._to_speak, self._accounts_at_once))
        for account in accounts:
            del self._to_speak[account]
        if self._to_speak:
            self._work.set()
        return accounts

    async def _begin_epoch(self) -> None:
        """Go on in the epoch that was joined. The subscription is made anew: a proxy may have left
        it at a server that is in use no more.
        """
        self._epoch = self._recovery.epoch
        for account in self.accounts.values():
            account.on_new_epoch()
        self._say_all()
        await self._subscription.renew()

    def _on_message(self, payload: bytes | None) -> None:
        if payload is None:  # subscribed, maybe anew: earlier notifications were missed
            self.emit(Subscribed())
            self._look_if_waiting()
            self._say_all()
            return
        notification = Notification.read(payload)
        if notification is None:
            self.emit(UnknownNotification())
        elif notification.kind == "changed":
            for account in self.accounts.values():
                account.stop_turns()
            self._look_if_waiting()
            self._say_all()
        elif notification.kind == "robotstxt":
            self.emit(RobotsTxtNotified(notification.scope))
        else:
            self._on_notification(notification)

    def _look_if_waiting(self) -> None:
        """An operator may have ended the recovery wait."""
        self._is_look_due |= self._recovery.is_waiting

    def _on_notification(self, notification: Notification) -> None:
        account = self.accounts.get(notification.scope)
        if account is None:
            return
        match notification.kind, notification.numbers:
            case "granted", (term, granted):
                account.on_granted(term, granted)
            case "retry", (wait,):
                self.retry(account, wait / 1000)
            case "backoff", (paused_at,):
                account.on_backoff(paused_at)
            case "down", (down_for,):
                account.on_down(down_for / 1000)

    async def _join(self) -> None:
        """At the start: see that nothing is missing, and join the epoch."""
        connection = await self.link.open()
        await self._store.check_rights(connection)
        await self.link.check_subscription(self._store.channels)
        await self._recovery.join_epoch(connection)

    def _state_while_away(self) -> str:
        return f"No permit is granted until it can be used again; {self}"
