"""`scrapy semaphore watch`: `status`, live in a terminal."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from semaphore_middleware.console.cli.connect import (
    CommandError,
    Status,
    check_rich,
    session,
)
from semaphore_middleware.console.cli.formatting import time_of
from semaphore_middleware.errors import ServerUnreachableError

if TYPE_CHECKING:
    from rich.console import Console
    from scrapy.settings import BaseSettings

    from semaphore_middleware.core.admin import Admin

PACE = 0.5  # seconds from one look at the server to the next
SHARE = 0.2  # of the time that looking may take, however many scopes there are
SLOWEST = 5.0  # seconds from one look to the next, all the same
LATE = 2.0  # seconds after which an answer that has not come is worth a word
TICK = 1.0  # seconds after which the screen is drawn anew although nothing is new


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show live who holds permits and who waits, twice a second: the sites with the longest "
        "lines, as many as fit. Of each: how much of its limit is held, and the permits granted a "
        "second, as they are and how they were; 'paused', 'quiet' where the site said \"not now\", "
        "and 'every' where starts are spaced. q or Ctrl-C quits."
    )


def run(settings: BaseSettings, _options: argparse.Namespace) -> int:
    if not sys.stdout.isatty():
        raise CommandError("watch needs a terminal; see 'status'", Status.WRONG)
    check_rich()
    asyncio.run(_run(settings))
    return Status.DONE


async def _run(settings: BaseSettings) -> None:
    from semaphore_middleware.console.cli.output import Paper

    async with session(settings) as semaphore:
        await Watch(semaphore, Paper()).run()


class Watch:
    """Looks and draws until the user has seen enough."""

    def __init__(self, semaphore: Admin, console: Console) -> None:
        from rich.live import Live

        from semaphore_middleware.console.rates import Board

        self._semaphore = semaphore
        self._server = semaphore.server
        self._board = Board()
        self._trouble = ""
        self._asked_at: float | None = None
        self._quit = asyncio.Event()
        self._news = asyncio.Event()
        self._keyboard = Keyboard(self._read_keys)
        self._console = console
        self._live = Live(console=console, screen=True, auto_refresh=False)

    async def run(self) -> None:
        tasks = [asyncio.create_task(work()) for work in (self._look, self._draw, self._quit.wait)]
        try:
            with self._terminal():
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end

    async def _look(self) -> None:
        while True:
            began = self._asked_at = time.monotonic()
            try:
                seen = await self._semaphore.survey()
            except ServerUnreachableError as error:  # it answers, but not this
                self._trouble = str(error)
            else:
                self._trouble = ""
                self._board.note(seen, time.monotonic())
            took = time.monotonic() - began
            self._asked_at = None
            self._news.set()
            await asyncio.sleep(min(SLOWEST, max(PACE, took / SHARE)) - took)

    async def _draw(self) -> None:
        from semaphore_middleware.console.cli.screen import screen

        while True:
            width, height = self._console.size
            shown = screen(self._board, self._server, width, height, self._what_is_wrong())
            self._live.update(shown, refresh=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK):
                    await self._news.wait()
            self._news.clear()

    def _what_is_wrong(self) -> str:
        if self._trouble:
            return self._trouble
        waited = 0.0 if self._asked_at is None else time.monotonic() - self._asked_at
        if waited < LATE:
            return ""
        return f"no answer for {time_of(waited)}; this goes on when the server is back"

    # The terminal -------------------------------------------------------------------------------

    @contextmanager
    def _terminal(self) -> Iterator[None]:
        """The whole screen and single keys, while this lasts."""
        loop = asyncio.get_running_loop()
        handlers = {
            signal.SIGINT: self._quit.set,
            signal.SIGTERM: self._quit.set,
            signal.SIGHUP: self._quit.set,
            signal.SIGTSTP: self._step_aside,
            signal.SIGWINCH: self._news.set,
        }
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            with self._keyboard, self._live:
                yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)

    def _read_keys(self) -> None:
        keys = self._keyboard.read()
        if not keys or b"q" in keys.lower():  # nothing: the terminal is gone
            self._quit.set()

    def _step_aside(self) -> None:
        """Ctrl-Z: the shell gets the terminal as it was, and we have it again after `fg`."""
        with self._keyboard.let_go():
            self._live.stop()
            os.kill(os.getpid(), signal.SIGSTOP)
        self._live.start()
        self._news.set()


class Keyboard:
    """Calls `on_key` when a key was pressed, be it not Enter; Ctrl-C stays a signal."""

    def __init__(self, on_key: Callable[[], None]) -> None:
        self._on_key = on_key
        self._file = sys.stdin.fileno()
        self._as_it_was = termios.tcgetattr(self._file) if sys.stdin.isatty() else None

    def __enter__(self) -> None:
        if self._as_it_was is not None:
            tty.setcbreak(self._file)
            asyncio.get_running_loop().add_reader(self._file, self._on_key)

    def __exit__(self, *_: object) -> None:
        if self._as_it_was is not None:
            asyncio.get_running_loop().remove_reader(self._file)
            with suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(self._file, termios.TCSADRAIN, self._as_it_was)

    @contextmanager
    def let_go(self) -> Iterator[None]:
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()

    def read(self) -> bytes:
        return os.read(self._file, 100)
