"""A thread that renews leases while a busy callback stalls the event loop.

A session publishes its last updates as values that nobody changes; the thread sends them again,
over a connection of its own, and requests no permits. A loop's heartbeat shows whether it is
stalled; while it runs, its session renews its leases itself.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import selectors
import sys
import sysconfig
import threading
import time
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import TypeAlias

from semaphore_middleware.errors import ServerRefusedError, ServerUnreachableError
from semaphore_middleware.link.connection import Connection
from semaphore_middleware.link.lease import RENEWAL
from semaphore_middleware.link.link import Link
from semaphore_middleware.link.text import digits

logger = logging.getLogger(__name__)

# Shares of a lease:
BEAT = 0.1  # between two heartbeats of a loop
LATE = 0.3  # since the last heartbeat: then the loop counts as stalled
MOST_LEASES = 20  # renewed in a stall at most: a process that hangs must not keep a site
THREAD = "scrapy-semaphore renewal"
NOT_RENEWED = (
    "Leases of a stalled event loop cannot be renewed: %s. They end soon, unless another attempt "
    "succeeds."
)
LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
RUNNER = frozenset({asyncio.Handle._run.__code__, selectors.DefaultSelector.select.__code__})
"""The functions of an asyncio loop that call a callback, and that wait."""

Repeat: TypeAlias = Callable[[Callable[[], Awaitable[Connection]]], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Beat:
    """A moment in which a loop ran, by the renewal thread's clock and by the loop's."""

    at: float
    on_loop: float
    starved: float = 0.0
    """Seconds that the loop's thread has waited for a processor."""


class Heartbeat:
    """The heartbeat of one session's event loop, and its renewals while the heartbeat stops.

    `repeat(connect)` runs in the renewal thread: it sends again what the session sent last, and
    returns whether that has renewed anything. `is_in_use()` is false if there is nothing to lose.
    After a stall `on_stall` is called on the loop, with its length in seconds, and whether the log
    has named what stalled the loop. Without a `renewal_thread` nothing is repeated.
    """

    def __init__(
        self,
        renewal_thread: RenewalThread | None,
        link: Link,
        lease: float,
        repeat: Repeat,
        is_in_use: Callable[[], bool],
        on_stall: Callable[[float, bool], None],
    ) -> None:
        self._renewal_thread = renewal_thread
        self._clock = renewal_thread.clock if renewal_thread else time.monotonic
        self._link = link
        self._lease = lease
        self._repeat = repeat
        self._is_in_use = is_in_use
        self._on_stall = on_stall
        self._timer: asyncio.TimerHandle | None = None
        self._runner: frozenset[CodeType] = RUNNER
        # The loop and the renewal thread share these without a lock, by single assignments:
        self._beat = Beat(math.inf, math.inf)
        self._named: Beat | None = None  # the stall after this one was logged

    # On the loop --------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the heartbeat."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._native_thread = threading.get_native_id()
        self._beat_now()
        if self._renewal_thread is not None:
            self._renewal_thread.add(self)

    async def stop(self) -> None:
        """Stop the heartbeat: from now on nothing is repeated."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            if self._renewal_thread is not None:
                await self._renewal_thread.remove(self)

    def _beat_now(self) -> None:
        starved = starved_for(self._native_thread) if self._renewal_thread is not None else 0.0
        self._beat = Beat(self._clock(), self._loop.time(), starved)
        self._timer = self._loop.call_later(BEAT * self._lease, self._on_time)

    def _on_time(self) -> None:
        last = self._beat
        if self._runner is RUNNER:
            self._runner |= functions_below(sys._getframe())
        self._beat_now()
        seconds = self._beat.on_loop - last.on_loop
        if seconds > LATE * self._lease:
            self._on_stall(seconds, self._named is last)

    # In the renewal thread --------------------------------------------------------------------

    def now(self) -> float:
        """The loop's time, computed: its clock may stand still while the loop is stalled."""
        beat = self._beat
        return beat.on_loop + self._clock() - beat.at

    async def keep(self) -> None:
        """Renew the leases in each stall of the loop, until this is cancelled."""
        while not self._loop.is_closed():  # a loop that has ended is not stalled
            beat = self._beat
            late_at = beat.at + LATE * self._lease
            await asyncio.sleep(late_at - self._clock())
            if self._clock() > late_at + BEAT * self._lease:
                # The whole process has stood still: let the loop beat first.
                await asyncio.sleep(BEAT * self._lease)
            if self._beat is beat and not self._loop.is_closed():
                await self._keep_through(beat)

    async def _keep_through(self, beat: Beat) -> None:
        """Renew the leases until the loop beats again, or has been stalled for too long."""
        assert self._renewal_thread is not None
        connection: Connection | None = None

        async def connect() -> Connection:
            nonlocal connection
            if connection is None or not connection.is_open:
                connection = await self._link.connect_again()
            return connection

        if self._is_in_use():
            self._log_cause(beat)
        next_at, is_kept, has_warned = -math.inf, True, False
        try:
            while self._beat is beat and not self._loop.is_closed():
                now = self._clock()
                # rule 30: renewed
                # rule 30: twenty leases
                if is_kept and next_at <= now < beat.at + MOST_LEASES * self._lease:
                    try:
                        is_kept = await self._repeat(connect)
                        next_at = now + RENEWAL * self._lease
                    except (ServerUnreachableError, ServerRefusedError) as error:
                        if not has_warned:
                            self._renewal_thread.warn(NOT_RENEWED, error)
                        has_warned = True
                    except Exception:
                        is_kept = False
                        logger.exception("Unexpected error (a bug); leases are not renewed.")
                await asyncio.sleep(BEAT * self._lease)
        finally:
            if connection is not None:
                await connection.close()

    def _log_cause(self, beat: Beat) -> None:
        """Log what stalls the loop, once a stall."""
        assert self._renewal_thread is not None
        self._named = beat
        if self._renewal_thread.is_news(self._thread, beat):
            seconds = self._clock() - beat.at
            callback = name_of(sys._current_frames().get(self._thread), self._runner)
            cause, hint = (
                f"{callback} has stalled the event loop",
                "Can it run in a thread?",
            )
            if not callback or starved_for(self._native_thread) - beat.starved > seconds / 2:
                cause, hint = "The event loop could not run", "Is this machine overloaded?"
            text = (
                "%s for %s s. No request begins or ends meanwhile; its leases are renewed for at "
                "most %s s. %s"
            )
            most = digits(MOST_LEASES * self._lease)
            self._renewal_thread.warn(text, cause, digits(seconds), most, hint)


def name_of(frame: FrameType | None, runner: Collection[CodeType]) -> str:
    """The function that a thread's callback is in, such as `parse_pdf (spiders/x.py:41)`: the
    innermost one outside libraries, otherwise the innermost. Empty: no callback runs.
    """
    inner: list[FrameType] = []
    while frame is not None and frame.f_code not in runner:
        inner.append(frame)
        frame = frame.f_back
    of_libraries = (*LIBRARIES, "<")
    own = (one for one in inner if not one.f_code.co_filename.startswith(of_libraries))
    if (found := next(own, inner[0] if inner else None)) is None:
        return ""
    path = "/".join(Path(found.f_code.co_filename).parts[-2:])
    return f"{found.f_code.co_name} ({path}:{found.f_lineno})"


def functions_below(frame: FrameType) -> frozenset[CodeType]:
    """The functions that called this one: in a callback, those that run its loop."""
    found, below = set(), frame.f_back
    while below is not None:
        found.add(below.f_code)
        below = below.f_back
    return frozenset(found)


def starved_for(thread: int) -> float:
    """How many seconds a thread of this process has been ready to run, but had no processor; 0 if
    the system is not Linux.
    """
    try:
        times = Path(f"/proc/self/task/{thread}/schedstat").read_text().split()
        return int(times[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


class RenewalThread:
    """The thread that renews the leases of all stalled event loops of this process. It runs as long
    as there is a heartbeat. A forked child begins without one.
    """

    clock = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self.start_anew()

    def start_anew(self) -> None:
        """Begin without heartbeats and without a thread, also in a forked child."""
        self._lock = threading.Lock()
        self._kept: dict[Heartbeat, Future[None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: Future[None] = Future()
        self._named_at: dict[int, float] = {}  # by thread: when its last stall was logged

    def add(self, heartbeat: Heartbeat) -> None:
        """Renew the leases of the heartbeat's session whenever it stops."""
        with self._lock:
            if self._loop is None:
                self._loop, self._ended = asyncio.SelectorEventLoop(), Future()
                work = threading.Thread(
                    target=_run, args=(self._loop, self._ended), name=THREAD, daemon=True
                )
                work.start()
            self._kept[heartbeat] = asyncio.run_coroutine_threadsafe(heartbeat.keep(), self._loop)

    async def remove(self, heartbeat: Heartbeat) -> None:
        """Renew its leases no more. The thread ends with the last heartbeat."""
        with self._lock:
            work = self._kept.pop(heartbeat, None)
            if work is None or self._loop is None:
                return  # it is the parent's, in a forked child
            work.cancel()
            if self._kept:
                return
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None
            ended = self._ended
        await asyncio.shield(asyncio.wrap_future(ended))  # only the thread sets it

    def is_news(self, thread: int, beat: Beat) -> bool:
        """Record that a stall of this thread's loop is logged; False if another session has."""
        is_news = self._named_at.get(thread, -math.inf) < beat.at
        self._named_at[thread] = self.clock()
        return is_news

    def warn(self, *arguments: object) -> None:
        """Log a warning, in another thread: logging itself may be what stalls a loop."""
        threading.Thread(target=logger.warning, args=arguments, daemon=True).start()


def _run(loop: asyncio.AbstractEventLoop, ended: Future[None]) -> None:
    try:
        loop.run_forever()
        while left := asyncio.all_tasks(loop):  # which were cancelled
            loop.run_until_complete(asyncio.wait(left))
        loop.close()
    finally:
        ended.set_result(None)


RENEWAL_THREAD = RenewalThread()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=RENEWAL_THREAD.start_anew)
