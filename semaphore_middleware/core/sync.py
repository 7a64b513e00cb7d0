"""The semaphore for threads: the asyncio one, on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from multiprocessing.util import Finalize
from typing import Self, Unpack
from weakref import WeakSet

from semaphore_middleware.core.observer import Observer
from semaphore_middleware.core.permit import Permit
from semaphore_middleware.core.semaphore import FairSemaphore, checked_limit
from semaphore_middleware.errors import AcquireTimeoutError, ClosedError
from semaphore_middleware.model.hosts import check_scope
from semaphore_middleware.model.limits import GivenLimit, Limit
from semaphore_middleware.model.options import GivenOptions
from semaphore_middleware.model.validation import check_timeout


class Options(GivenOptions, total=False):
    """All keyword arguments of a `FairSemaphore`, with the same meanings."""

    node: str | None
    url_from: str
    observers: Sequence[Observer]


class SyncSemaphore:
    """A `FairSemaphore` for programs with threads, for instance with requests or Celery.

        semaphore = SyncSemaphore("redis://localhost")

        with semaphore.permit("api.example.com", limit=3):
            requests.get("https://api.example.com/", timeout=10)

    It takes the arguments of a `FairSemaphore`, and raises `SettingsError` for values that are not
    allowed. It is one node: make one for the whole process, and use it in all threads. The first
    permit starts a daemon thread, whose event loop calls the server. A forked process starts its
    own thread, and is another node; its parent keeps the permits that it holds. All permits are
    given back by `close`, or when the interpreter exits.
    """

    def __init__(self, url: str | None = None, **options: Unpack[Options]) -> None:
        self._semaphore = FairSemaphore(url, **options)
        self._semaphore._renewal_thread = None  # no callback of a user stalls our thread's loop
        self._is_closed = False
        self._start_anew()
        _semaphores.add(self)

    def _start_anew(self) -> None:
        """Begin without a thread: this is new, or in a forked child."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._end: Future[None] = Future()
        self._at_exit: Finalize[None] | None = None
        self._opening: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<SyncSemaphore of {self._semaphore!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def permit(
        self, scope: str, limit: GivenLimit, timeout: float | None = None
    ) -> Iterator[Permit]:
        """Hold a permit during the `with`; the arguments are those of `FairSemaphore.acquire`. As a
        decorator of a function (not a coroutine function) it takes a permit for each call.

        A thread cannot be stopped from outside. So if the permit is lost, `Permit.lost` becomes
        true, the body runs on, and the end of the `with` raises `PermitLostError`, unless the body
        has raised an error. Meanwhile the site may see one request too many; this process begins no
        other there. `timeout`, in seconds, also covers the time until the server can be reached.

        Raises what `FairSemaphore.open` and `acquire` raise, and `PermitLostError`.
        """
        scope = check_scope(scope)
        timeout = check_timeout(timeout, "timeout")
        permit = self._acquire(scope, checked_limit(scope, limit), timeout)
        try:
            yield permit
        finally:
            permit.release()  # in a forked child it does nothing: the permit is the parent's
        if permit._error is not None:
            raise permit._error

    def close(self) -> None:
        """Give all permits back and disconnect, in 2 s at most.

        Threads that still wait for a permit get `ClosedError`. If a thread goes on working under a
        permit, the permit is free when its lease ends, and the `with` raises `PermitLostError`.
        """
        with self._lock:
            self._is_closed = True
            thread = self._thread
            if thread is None or self._end.done():
                return
            self._end.set_result(None)
        thread.join()
        if self._at_exit is not None:
            self._at_exit.cancel()  # it would keep this in memory

    # The threads' side --------------------------------------------------------------------------

    def _acquire(self, scope: str, limit: Limit, timeout: float | None) -> Permit:
        granted: Future[Permit] = Future()
        try:
            with self._lock:  # a request before `close` gets an answer
                if self._is_closed:
                    raise ClosedError("the semaphore is closed")
                loop = self._loop or self._start()
                asyncio.run_coroutine_threadsafe(self._grant(granted, scope, limit, timeout), loop)
            return granted.result()
        except BaseException:
            # After Ctrl-C nobody waits for the permit any more, or takes it.
            if not granted.cancel() and granted.exception() is None:
                granted.result().release()
            raise

    def _start(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()

        def run() -> None:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(self._until_closed())

        thread = threading.Thread(target=run, name="SyncSemaphore", daemon=True)
        thread.start()  # since Python 3.12 a RuntimeError, once the main thread has ended
        self._loop = loop
        self._thread = thread
        # Not atexit: multiprocessing ends its children without it.
        self._at_exit = Finalize(None, self.close, exitpriority=0)
        return loop

    # On the event loop --------------------------------------------------------------------------

    async def _until_closed(self) -> None:
        await asyncio.wrap_future(self._end)
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        await self._semaphore.close()

    async def _grant(
        self, granted: Future[Permit], scope: str, limit: Limit, timeout: float | None
    ) -> None:
        """Get a permit, and pass it to the waiting thread."""
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None

        def stop(granted: Future[Permit]) -> None:
            if granted.cancelled():
                loop.call_soon_threadsafe(task.cancel)

        granted.add_done_callback(stop)
        try:
            left = await self._open(scope, timeout)
            permit = await self._semaphore.acquire(scope, limit, left)
        except BaseException as error:
            if granted.set_running_or_notify_cancel():
                is_end = isinstance(error, asyncio.CancelledError)
                granted.set_exception(ClosedError("the semaphore is closing") if is_end else error)
            return
        permit._is_of_thread = True
        if granted.set_running_or_notify_cancel():
            granted.set_result(permit)
        else:
            permit.release()

    async def _open(self, scope: str, timeout: float | None) -> float | None:
        """Wait until the semaphore is open. Returns what is left of the timeout."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._semaphore.open())
        opening = self._opening
        if opening.done() and not opening.exception():
            return timeout
        began = asyncio.get_running_loop().time()
        longest = self._semaphore.longest_call if timeout == 0 else timeout
        try:
            async with asyncio.timeout(longest):
                await asyncio.shield(opening)
        except TimeoutError:
            why = self._semaphore.problem or "the server cannot be reached"
            raise AcquireTimeoutError(
                f"no permit for {scope!r} within {longest:g} s: {why}"
            ) from None
        except Exception:
            if self._opening is opening:
                self._opening = None  # the next permit tries again
            raise
        if not timeout:
            return timeout
        return max(0.001, timeout + began - asyncio.get_running_loop().time())  # 0: no wait at all


_semaphores: WeakSet[SyncSemaphore] = WeakSet()


def _start_anew_in_child() -> None:
    for semaphore in list(_semaphores):
        semaphore._start_anew()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_start_anew_in_child)
