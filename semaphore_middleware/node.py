"""One node's talk with the server: what is to be said, what is heard, and when time is up.

Nothing is ever sent for one request. What a node wants is kept in tables: to ask, to release, to
renew; one task says all of it in one round trip and takes up what came meanwhile in the next. Every
verb is idempotent, so after a gap the tables are simply said again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from contextlib import suppress

from semaphore_middleware.connection import Link, Server, patience
from semaphore_middleware.errors import ClosedError, ServerRefusedError, ServerUnreachableError
from semaphore_middleware.limits import Limit
from semaphore_middleware.messages import Answer, Ask, Inspection, Message, asks
from semaphore_middleware.permit import Permit, Stage
from semaphore_middleware.store import GRACE, RENEWAL, Store

logger = logging.getLogger(__name__)

SAY_AGAIN = 5.0  # seconds between two log lines about a server that does not serve
FAREWELL = 2.0  # seconds that leaving may take to give everything back


class Node:
    def __init__(
        self, server: Server, store: Store, lease: float, on_event: Callable[[str], None]
    ) -> None:
        self._server = server
        self._store = store
        self._lease = lease
        self._grace = GRACE * lease  # from sending a call that lengthens a lease to the deadline
        self._count = on_event

        self._numbers = itertools.count(1)
        self._permits: dict[int, Permit] = {}  # waiting and held, in the order of asking
        self._to_ask: dict[int, Permit] = {}
        self._to_release: dict[int, tuple[str, Limit]] = {}
        self._to_inspect: list[tuple[str, asyncio.Future[Inspection]]] = []
        self._say_all_due = False
        self._draining = False
        self._work = asyncio.Event()
        self._all_released = asyncio.Event()
        self._complained = -SAY_AGAIN

        self._renewal: asyncio.TimerHandle | None = None
        self._deadlines: asyncio.TimerHandle | None = None
        self._again: dict[str, asyncio.TimerHandle] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def __str__(self) -> str:
        held = len(self._in_stage(Stage.HELD))
        return f"{held} held, {len(self._permits) - held} waiting"

    async def start(self) -> None:
        """Reach the server. Raises `ServerRefusedError` where waiting is in vain."""
        self._loop = asyncio.get_running_loop()
        self._link = await self._reach(give_up=ServerRefusedError)
        self._tasks = [asyncio.create_task(self._serve()), asyncio.create_task(self._listen())]

    def drain(self) -> None:
        """Let nobody in any more."""
        self._draining = True
        for permit in self._in_stage(Stage.WAITING):
            permit.refuse(ClosedError("the semaphore is closing"))

    async def stop(self) -> None:
        self.drain()
        for permit in list(self._permits.values()):
            permit.release()
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL):
                while self._to_release:
                    self._all_released.clear()
                    await self._all_released.wait()
        for what in (*self._again.values(), self._renewal, self._deadlines, *self._tasks):
            if what is not None:
                what.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # What is to be said -------------------------------------------------------------------------

    def ask(self, scope: str, limit: Limit) -> Permit:
        """Want a permit; its future tells when it is there."""
        if self._draining:
            raise ClosedError("the semaphore is closing")
        permit = Permit(scope, limit, next(self._numbers), self._loop, self._give_back)
        self._permits[permit.number] = permit
        self._to_ask[permit.number] = permit
        self._work.set()
        if self._renewal is None:
            self._renewal = self._loop.call_later(RENEWAL * self._lease, self._renew)
        return permit

    async def inspect(self, scope: str) -> Inspection:
        answer: asyncio.Future[Inspection] = self._loop.create_future()
        self._to_inspect.append((scope, answer))
        self._work.set()
        return await answer

    def _give_back(self, permit: Permit) -> None:
        self._permits.pop(permit.number, None)
        self._to_ask.pop(permit.number, None)
        if permit.deadline:  # else the server has never heard of it
            self._to_release[permit.number] = permit.scope, permit.limit
            self._work.set()

    def _say_all(self) -> None:
        """Ask for all that wait and renew all that is held: after a gap, and to keep the leases."""
        self._say_all_due = True
        self._work.set()

    def _gather(self, now: float) -> list[Ask]:
        everything, self._say_all_due = self._say_all_due, False
        held = self._in_stage(Stage.HELD) if everything else []
        waiting = self._in_stage(Stage.WAITING) if everything else [*self._to_ask.values()]
        self._to_ask.clear()
        for permit in waiting:
            # Counted from the first call until one is answered: any of them may have been heard.
            permit.deadline = permit.deadline or now + self._grace
        return [
            *asks("release", ((n, *what) for n, what in self._to_release.items())),
            *asks("renew", ((p.number, p.scope, p.limit) for p in held)),
            *asks("acquire", ((p.number, p.scope, p.limit) for p in waiting)),
        ]

    def _in_stage(self, stage: Stage) -> list[Permit]:
        return [permit for permit in self._permits.values() if permit.stage is stage]

    # What is heard ------------------------------------------------------------------------------

    def _settle(self, answer: Answer, sent: float) -> None:
        ask = answer.ask
        if ask.verb == "release":
            for number in ask.numbers:
                self._to_release.pop(number, None)
        else:
            for number in ask.numbers:
                if (permit := self._permits.get(number)) and number not in answer.lost:
                    permit.deadline = sent + self._grace
        for number in answer.lost:
            self._lose(number)
        for number in answer.granted:
            self._grant(number)
        if ask.verb == "acquire":
            for number in ask.numbers:
                if (permit := self._permits.get(number)) and permit.stage is Stage.WAITING:
                    permit.waited = True
        if answer.again is not None:
            self._ask_again(ask.scope, answer.again)

    def _hear(self, payload: bytes | None) -> None:
        if payload is None:  # subscribed, maybe anew: what was said before was not heard
            self._say_all()
            return
        message = Message.read(payload)
        if message is None:
            self._count("strange_messages")
            return
        for number in message.granted:
            self._grant(number)
        for number, wait in message.again:
            if permit := self._permits.get(number):
                self._ask_again(permit.scope, wait)

    def _grant(self, number: int) -> None:
        permit = self._permits.get(number)
        if permit is None or permit.stage is not Stage.WAITING:
            return  # told twice, or given back while the grant was under way
        now = self._loop.time()
        if now < permit.deadline:
            permit.grant(now)
            self._check_by(permit.deadline)
            return
        # So late that the server may count it as over already: give it back, and ask anew.
        self._give_back(permit)
        permit.number, permit.deadline = next(self._numbers), 0.0
        self._permits[permit.number] = permit
        self._to_ask[permit.number] = permit

    def _lose(self, number: int) -> None:
        permit = self._permits.pop(number, None)
        if permit is not None and permit.stage is Stage.HELD:
            self._count("lost")
            logger.warning("Lost a permit for %r; its work is stopped.", permit.scope)
            permit.lose()

    # Time ---------------------------------------------------------------------------------------

    def _renew(self) -> None:
        assert self._renewal is not None
        late = self._loop.time() - self._renewal.when()
        self._renewal = None
        if late > RENEWAL * self._lease:
            self._count("stalls")
            logger.warning(
                "This process stood still for %.1f s, and so could not renew its permits. A permit "
                "outlives %.1f s: is it the machine, or a callback that computes for long?",
                late,
                self._lease,
            )
        if self._permits:
            self._say_all()
            self._renewal = self._loop.call_later(RENEWAL * self._lease, self._renew)

    def _check_by(self, deadline: float) -> None:
        if self._deadlines is not None:
            if self._deadlines.when() <= deadline:
                return
            self._deadlines.cancel()
        self._deadlines = self._loop.call_at(deadline, self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._deadlines = None
        now = self._loop.time()
        for permit in self._in_stage(Stage.HELD):
            if permit.deadline <= now:
                self._lose(permit.number)
        if held := self._in_stage(Stage.HELD):
            self._check_by(min(permit.deadline for permit in held))

    def _ask_again(self, scope: str, wait: float) -> None:
        """One timer a scope, for its first waiter here: only time is in that one's way."""
        if timer := self._again.pop(scope, None):
            timer.cancel()
        self._again[scope] = self._loop.call_later(wait, self._ask_for_first, scope)

    def _ask_for_first(self, scope: str) -> None:
        self._again.pop(scope, None)
        for permit in self._permits.values():
            if permit.scope == scope and permit.stage is Stage.WAITING:
                self._to_ask[permit.number] = permit
                self._work.set()
                return

    # The two tasks ------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Say what is to be said, a round trip at a time; what comes up meanwhile goes together."""
        failures = 0
        try:
            while True:
                await self._work.wait()
                self._work.clear()
                sent = self._loop.time()
                try:
                    for answer in await self._store.run(self._link, self._gather(sent)):
                        self._settle(answer, sent)
                    await self._look()
                    failures = 0
                except Exception as error:
                    # Whatever it is, those who wait must not wait for ever for a task that is gone.
                    if not isinstance(error, ServerUnreachableError | ServerRefusedError):
                        logger.exception("This should not happen; going on with a new connection.")
                    self._complain(error)
                    await self._link.close()
                    await asyncio.sleep(patience(failures))
                    failures += 1
                    self._link = await self._reach(give_up=())
                    self._count("reconnects")
                    self._say_all()
                if not self._to_release:
                    self._all_released.set()
        finally:
            await self._link.close()
            for _, seen in self._to_inspect:
                if not seen.done():
                    seen.set_exception(ClosedError("the semaphore was closed"))

    async def _look(self) -> None:
        while self._to_inspect:
            scope, answer = self._to_inspect[0]
            seen = await self._store.inspect(self._link, scope)
            del self._to_inspect[0]
            if not answer.done():
                answer.set_result(seen)

    async def _listen(self) -> None:
        """Hear of grants that other nodes' calls have caused."""
        for attempt in itertools.count():
            try:
                link = await self._server.connect()
                await link.listen(self._store.channel, self._lease / 3, self._hear)
            except (ServerUnreachableError, ServerRefusedError) as error:
                logger.debug("%s", error)  # the other task says what there is to say
            await asyncio.sleep(patience(attempt))

    async def _reach(self, give_up: type[Exception] | tuple[()]) -> Link:
        link = await self._server.reach(self._complain, give_up)
        self._store.meet(link.life)
        return link

    def _complain(self, error: Exception) -> None:
        if self._loop.time() - self._complained >= SAY_AGAIN:
            self._complained = self._loop.time()
            logger.warning("%s. No permit is granted until it serves again; %s.", error, self)
