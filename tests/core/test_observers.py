"""Observers: which events they are notified of, and what happens to their errors."""

import asyncio
import logging
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from semaphore_middleware import FairSemaphore, SettingsError
from semaphore_middleware.core import observer
from semaphore_middleware.core.observer import FAILURES, Observer, Observers
from semaphore_middleware.model.events import Event
from tests.support.crawls import Log
from tests.support.nodes import Recorder
from tests.support.servers import RedisServer
from tests.support.times import TIMEOUT_S

NOBODY: Any = None  # a semaphore that no observer uses


@dataclass(frozen=True, slots=True)
class Heard(Event):
    number: int


@dataclass(frozen=True, slots=True)
class Unheard(Event):
    def __post_init__(self) -> None:
        raise AssertionError("an event that nobody hears is not made")


class Hearer(Recorder):
    kinds = (Heard,)


class Broken(Observer):
    def on_event(self, event: Event) -> None:
        raise RuntimeError(f"no {event}")


class Raises(Observer):
    """Raises an error in one of its methods."""

    def __init__(self, error: type[BaseException], at: str = "on_event") -> None:
        self.error = error
        self.at = at

    def _come_to(self, place: str) -> None:
        if place == self.at:
            raise self.error

    async def open(self, _: object) -> None:
        self._come_to("open")

    def on_event(self, _: Event) -> None:
        self._come_to("on_event")

    async def close(self) -> None:
        self._come_to("close")


async def test_an_event_that_nobody_hears_is_not_made() -> None:
    hearer = Hearer()
    observers = Observers([hearer])
    observers.emit(Heard, 1)  # nothing is open yet
    await observers.open(NOBODY)
    observers.emit(Heard, 2)
    observers.emit(Unheard)
    await observers.close(until=asyncio.get_running_loop().time() + 1.0)
    observers.emit(Heard, 3)
    assert hearer.events == [Heard(2)]


async def test_what_an_observer_raises_stops_nothing(server: RedisServer, caplog: Log) -> None:
    recorder = Recorder()
    kinds = (*FAILURES, TimeoutError)
    errors = [Raises(error, at) for error in kinds for at in ("on_event", "close")]
    observers = [recorder, Broken(), *errors]
    async with FairSemaphore(server.url, recovery_wait=0.0, observers=observers) as semaphore:
        for _ in range(2):
            async with semaphore.permit("s", 1):
                pass
    assert recorder.count(observer.PermitGranted) == recorder.count(observer.PermitReleased) == 2
    failures = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert all("The observer " in failure.message for failure in failures)
    assert sum("could not be closed" in failure.message for failure in failures) == len(kinds)


@pytest.mark.parametrize("error", FAILURES)
async def test_an_observer_that_cannot_be_opened_is_named(
    server: RedisServer, error: type[BaseException]
) -> None:
    semaphore = FairSemaphore(server.url, observers=[Raises(error, "open")])
    with pytest.raises(SettingsError, match=f"observer Raises cannot be opened: {error.__name__}"):
        await semaphore.open()


INTERRUPTED = """
import asyncio, sys
from semaphore_middleware import FairSemaphore
from semaphore_middleware.core.observer import Observer, PermitReleased

class Broken(Observer):
    kinds = (PermitReleased,)

    def on_event(self, event):
        raise KeyboardInterrupt

async def use():
    async with FairSemaphore(sys.argv[1], recovery_wait=0.0, observers=[Broken()]) as semaphore:
        async with semaphore.permit("s", 1):
            pass
        await asyncio.sleep(60.0)

asyncio.run(use())
"""


def test_ctrl_c_in_an_observer_ends_the_program_when_the_permit_is_back(
    server: RedisServer,
) -> None:
    command = [sys.executable, "-c", INTERRUPTED, server.url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert ended.stderr.endswith("KeyboardInterrupt\n")
    assert server.members() == {}


@pytest.mark.parametrize("kinds", [None, "PermitReleased", [Event], (Event, 5), (int,)])
async def test_the_kinds_of_an_observer_are_checked_as_it_is_opened(kinds: Any) -> None:
    observer = type("Odd", (Observer,), {"kinds": kinds})()
    with pytest.raises(SettingsError, match=r"Odd\.kinds = .*: allowed is a tuple"):
        await Observers([observer]).open(NOBODY)


class Closing(Observer):
    """Is closed when its event is set."""

    def __init__(self, may_end: asyncio.Event) -> None:
        self.may_end = may_end
        self.is_closed = False

    def on_event(self, _: Event) -> None: ...

    async def close(self) -> None:
        self.is_closed = True
        await self.may_end.wait()


async def test_a_close_that_is_cancelled_closes_all() -> None:
    both = [Closing(asyncio.Event()) for _ in range(2)]
    observers = Observers(both)
    await observers.open(NOBODY)
    closing = asyncio.create_task(observers.close(asyncio.get_running_loop().time() + TIMEOUT_S))
    await asyncio.sleep(0)
    assert [one.is_closed for one in both] == [False, True]
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert [one.is_closed for one in both] == [True, True]
