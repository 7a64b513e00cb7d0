"""A session in virtual time: its timers fire as if time passed, and no test waits for them."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ParamSpec

from semaphore_middleware.core.observer import Event
from semaphore_middleware.core.session import Session
from semaphore_middleware.redis.connection import CallTimeoutError
from semaphore_middleware.redis.protocol import Reply, Statement
from tests.core.lone_node import LEASE_S, REPLY, TURN_S
from tests.support.nodes import Loop

CALL_TIMEOUT_S = LEASE_S / 6

P = ParamSpec("P")


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer when there is nothing else to do."""

    def __init__(self) -> None:
        self.clock = 0.0
        super().__init__(JumpingSelector(self))

    def time(self) -> float:
        return self.clock


class JumpingSelector(selectors.SelectSelector):
    """Waits for nothing: moves the loop's clock ahead in its place."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing will ever happen any more"
        self._loop.clock += max(0.0, timeout)
        return super().select(0)


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run the test on a loop with a clock of its own."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        loop = Loop(VirtualLoop)
        try:
            loop.run(test(*args, **kwargs))
        finally:
            loop.close()

    return run


class FakeServer:
    """A server that grants what is asked for, up to a limit; with all that the session needs of it.

    It stands for `Server`, `Store`, `Recovery` and `Connection` at once.
    """

    def __init__(self) -> None:
        self.channels = (b"node", b"changes")
        self.recovery = self
        self.calls: list[tuple[float, Sequence[Statement]]] = []  # when each was sent
        self.round_trip = 0.0  # seconds
        self.is_silent = False
        self.looks = 0  # at the server's life
        self.epoch = b"one"
        self.is_waiting = False
        self.granted: int | None = None  # no more than this to an account
        self.changes: dict[str, Any] = {}  # parts of the replies
        self.tell: Callable[[bytes | None], None] = lambda _: None

    async def reach(self, *_: object) -> FakeServer:
        return self

    connect = reach

    async def close(self, *_: object) -> None:
        pass

    check_rights = close

    async def join_epoch(self, _: object) -> None:
        self.looks += 1

    async def listen(
        self, _: object, __: float, on_message: Callable[[bytes | None], None]
    ) -> None:
        self.tell = on_message
        on_message(None)
        await asyncio.Event().wait()

    async def sync(self, _: object, statements: Sequence[Statement], look: bool) -> list[Reply]:
        self.calls.append((asyncio.get_running_loop().time(), statements))
        self.looks += look
        if self.is_silent:
            await asyncio.sleep(CALL_TIMEOUT_S)
            raise CallTimeoutError("no answer")
        await asyncio.sleep(self.round_trip)
        return [self._reply(said) for said in statements]

    def _reply(self, said: Statement) -> Reply:
        most = said.asked if self.granted is None else self.granted
        granted = max(said.believed, min(said.asked, most))
        parts: dict[str, Any] = {**REPLY, **self.changes}
        return Reply(said, term=said.term, granted=granted, **parts)

    @property
    def times(self) -> list[float]:
        """When each of the `calls` was sent."""
        return [time for time, _ in self.calls]

    @property
    def sizes(self) -> list[int]:
        """How many statements each of them had."""
        return [len(said) for _, said in self.calls]


class Setup:
    """A session with a fake server. All that is said so far has been heard."""

    def __init__(self) -> None:
        self.server = FakeServer()
        self.events: list[Event] = []
        fake: Any = self.server
        self.session = Session(fake, fake, LEASE_S, TURN_S, self.events.append)
        self.loop: Any = asyncio.get_running_loop()

    async def __aenter__(self) -> Setup:
        await self.session.start()
        await settle()
        self.server.calls.clear()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.stop()


async def settle() -> None:
    """Let all happen that needs no time."""
    for _ in range(50):
        await asyncio.sleep(0)
