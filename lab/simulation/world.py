"""Simulated time, and the hosts in it: an event loop each, which stands still if frozen."""

from __future__ import annotations

import asyncio
import heapq
import math
import threading
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from inspect import CORO_CLOSED, getcoroutinestate, iscoroutine
from itertools import count
from random import Random
from typing import Any, Never

from semaphore_middleware.link import chance

BEGIN_S = 1000.0
TIMER_LATE_S = 1e-9  # so that no timer comes too early for rounding
MOST_TURNS = 20_000  # of all loops at one time: more are an endless loop


class World:
    """The time, what is to happen in it, and the hosts that live in it. Until its end the product
    draws by this seed.
    """

    def __init__(self, seed: int = 0) -> None:
        self._drawn_from, chance.source = chance.source, Random(seed)
        self.now = BEGIN_S
        self.hosts: list[Host] = []
        self._dead: list[Host] = []  # keeps their coroutines: garbage collection would run them
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()

    def at(self, when: float, do: Callable[[], object]) -> None:
        """Do something at a time; what is due at the same time happens in this order."""
        heapq.heappush(self._due, (max(when, self.now), next(self._numbers), do))

    def after(self, seconds: float, do: Callable[[], object]) -> None:
        """Do something in so many seconds."""
        self.at(self.now + seconds, do)

    def run(self, until: float) -> None:
        """Let time pass. Of what is due at the same time, hosts come first."""
        turns = 0
        while True:
            next_at, next_host = self._due[0][0] if self._due else math.inf, None
            for host in self.hosts:
                if not host.is_frozen and host.loop.next_at <= next_at:
                    next_at, next_host = host.loop.next_at, host
            if next_at > until:
                self.now = max(self.now, until)
                return
            turns = turns + 1 if next_at <= self.now else 0
            if turns > MOST_TURNS:
                raise RuntimeError(f"{next_host and next_host.loop.left} spins at {self.now}")
            self.now = max(self.now, next_at)
            if next_host is None:
                heapq.heappop(self._due)[2]()
            else:
                next_host.loop.run_once()

    def bury(self, host: Host) -> None:
        """A host is no more."""
        self.hosts.remove(host)
        self._dead.append(host)

    def end(self) -> None:
        """Nothing runs any more; what never ended may be collected."""
        chance.source = self._drawn_from
        for host in (*self.hosts, *self._dead):
            for task in asyncio.all_tasks(host.loop):
                work = task.get_coro()
                # Collected as it is, it would make Python warn: it was never begun, or is in the
                # middle of what waits for something else to end, as at a killed node's start.
                while iscoroutine(work) and getcoroutinestate(work) != CORO_CLOSED:
                    with suppress(RuntimeError):
                        work.close()
            host.loop.close()


class Host:
    """A machine with one process. `loop` runs in simulated time, by a clock of its own. The loop of
    its `renewal_thread`, a thread beside it, goes on while `loop` is stalled.
    """

    def __init__(
        self, world: World, name: str, clock_ahead: float = 0.0, has_renewal_thread: bool = False
    ) -> None:
        self.world = world
        self.name = name
        self.loop = _Loop(world, clock_ahead)
        self.renewal_thread = (
            Host(world, f"renewal thread of {name}", clock_ahead) if has_renewal_thread else None
        )
        self.is_frozen = False
        self.thawed_at = self.stalled_at = -math.inf
        self.is_dead = False
        self.errors: list[str] = []
        self.loop.set_exception_handler(self._on_error)
        world.hosts.append(self)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run this on the host."""
        return self.loop.create_task(work)

    def freeze(self) -> None:
        self.block()
        if self.renewal_thread is not None:
            self.renewal_thread.freeze()

    def block(self) -> None:
        """Let its loop stand still, and nothing else."""
        self.is_frozen = True
        self.stalled_at = self.world.now

    @property
    def is_stalled(self) -> bool:
        """Whether its loop stands still, and the renewal thread does not."""
        return (
            self.is_frozen and self.renewal_thread is not None and not self.renewal_thread.is_frozen
        )

    def thaw(self) -> None:
        self.is_frozen = False
        self.thawed_at = self.world.now
        if self.renewal_thread is not None:
            self.renewal_thread.thaw()

    def kill(self) -> None:
        """End the process: nothing of it runs any more."""
        self.is_dead = True
        self.world.bury(self)
        if self.renewal_thread is not None:
            self.renewal_thread.kill()

    def _on_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        message = str(context.get("message"))
        if "never retrieved" not in message:
            self.errors.append(f"{message} {context.get('exception')!r}")


class _Loop(asyncio.BaseEventLoop):
    """An event loop that waits for nothing: the world calls it when something is due."""

    def __init__(self, world: World, clock_ahead: float) -> None:
        super().__init__()
        self._ready: deque[asyncio.Handle]  # the base class has them
        self._scheduled: list[Any]
        self._timer_cancelled_count: int
        self.world = world
        self._ahead = clock_ahead
        self._clock_resolution = 0.0
        self._selector = self  # which the base class asks for what has come from outside

    def time(self) -> float:
        return self.world.now + self._ahead

    @property
    def next_at(self) -> float:
        if self._ready:
            return self.world.now
        timers = self._scheduled
        while timers and timers[0]._cancelled:
            timer = heapq.heappop(timers)
            timer._scheduled = False
            self._timer_cancelled_count -= 1
        return timers[0]._when - self._ahead + TIMER_LATE_S if timers else math.inf

    @property
    def left(self) -> list[str]:
        """Callbacks that are still to come."""
        timers = [timer for timer in self._scheduled if not timer._cancelled]
        return [repr(handle) for handle in (*self._ready, *timers)]

    def run_once(self) -> None:
        of_the_test = events._get_running_loop()  # the reactor's, which is to go on
        events._set_running_loop(self)
        self._thread_id: int | None = threading.get_ident()
        try:
            self._run_once()  # type: ignore[attr-defined]
        finally:
            self._thread_id = None
            events._set_running_loop(of_the_test)

    def select(self, _timeout: float | None = None) -> Sequence[Any]:
        return ()

    def run_in_executor(self, *_: object) -> Never:
        """What a thread does, such as to resolve a name, takes real time."""
        error = RuntimeError("no thread is simulated")
        self.call_exception_handler({"message": "A thread was begun:", "exception": error})
        raise error

    def close(self) -> None:
        self._closed = True

    def _check_closed(self) -> None:
        pass  # what is collected after the end may still call

    def _process_events(self, _: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass
