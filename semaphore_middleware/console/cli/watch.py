"""`scrapy semaphore watch`: `status`, live in a terminal."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import termios
import tty
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from semaphore_middleware.console.cli.commands import CommandError, Status, check_installed
from semaphore_middleware.console.cli.connect import admin_of
from semaphore_middleware.console.cli.formatting import time_of
from semaphore_middleware.console.poller import Poller, snapshots
from semaphore_middleware.console.snapshot import EMPTY, ScopeRow, Snapshot, in_order
from semaphore_middleware.model.inspection import Inspection

if TYPE_CHECKING:
    from rich.console import Console
    from scrapy.settings import BaseSettings

INTERVAL_S = 0.5  # from one survey of the server to the next
REDRAW_S = 1.0  # from one drawing of the screen to the next if nothing is new


def add_options(parser: argparse.ArgumentParser, _verb: str) -> None:
    """Describe `watch`; it has no options of its own."""
    parser.description = (
        "Show live who holds permits and who waits, twice a second: the sites where most "
        "requests wait, as many as fit. Of each: how much of its limit is held, and the requests "
        "started a second, as they are and how they were; 'paused'; 'backoff' where nothing starts "
        "for a while because the site refused a request; 'every' and 'at' where a delay or a rate "
        "spaces starts. q or Ctrl-C quits."
    )


def run(settings: BaseSettings, _options: argparse.Namespace) -> int:
    """Show the screen until the user quits."""
    if not sys.stdout.isatty():
        raise CommandError("watch needs a terminal; see 'status'", Status.WRONG)
    check_installed("rich")
    asyncio.run(_run(settings))
    return Status.DONE


async def _run(settings: BaseSettings) -> None:
    from semaphore_middleware.console.cli.tables import Output

    async with admin_of(settings) as admin:
        await admin.rules()  # a missing server is an error now; later it is shown
        poller = Poller(snapshots(admin), INTERVAL_S)
        try:
            await Watch(poller, admin.server, Output()).run()
        finally:
            await poller.stop()


class Watch:
    """The screen and the keyboard, until the user quits. `server` is the address to show."""

    def __init__(self, poller: Poller[Snapshot], server: str, console: Console) -> None:
        from rich.live import Live

        from semaphore_middleware.console.cli.watch import History

        self._poller = poller
        self._server = server
        self._history = History()
        self._quit = asyncio.Event()
        self._changed = asyncio.Event()
        self._keyboard = Keyboard(self._read_keys)
        self._console = console
        self._live = Live(console=console, screen=True, auto_refresh=False)

    async def run(self) -> None:
        """Show the screen. Returns when the user quits."""
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
        shown = None
        while True:
            await self._poller.next()
            if self._poller.snapshot is not shown:
                shown = self._poller.snapshot
                self._history.note(shown or EMPTY)
            self._changed.set()

    async def _draw(self) -> None:
        from semaphore_middleware.console.cli.tables import screen, server_notice

        while True:
            width, height = self._console.size
            totals = (self._poller.snapshot or EMPTY).totals
            tracks = self._history.tracks
            problem = self._problem() or server_notice(totals)
            shown = screen(tracks, totals, self._server, width, height, problem)
            self._live.update(shown, refresh=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(REDRAW_S):
                    await self._changed.wait()
            self._changed.clear()

    def _problem(self) -> str:
        if self._poller.error is not None:
            return f"trying again: {self._poller.error}"
        late_by = self._poller.late_by
        return f"no answer for {time_of(late_by)}" if late_by else ""

    # The terminal -------------------------------------------------------------------------------

    @contextmanager
    def _terminal(self) -> Iterator[None]:
        """Take over the whole screen, single keys and signals in this context."""
        loop = asyncio.get_running_loop()
        handlers = {
            signal.SIGINT: self._quit.set,
            signal.SIGTERM: self._quit.set,
            signal.SIGHUP: self._quit.set,
            signal.SIGTSTP: self._suspend,
            signal.SIGWINCH: self._changed.set,
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
        if not keys or b"q" in keys.lower():  # no keys: the terminal is gone
            self._quit.set()

    def _suspend(self) -> None:
        """On Ctrl-Z, give the terminal to the shell as it was, and take it back after `fg`."""
        with self._keyboard.released():
            self._live.stop()
            os.kill(os.getpid(), signal.SIGSTOP)
        self._live.start()
        self._changed.set()


class Keyboard:
    """Calls `on_key` at each key, without waiting for Enter; Ctrl-C stays a signal."""

    def __init__(self, on_key: Callable[[], None]) -> None:
        self._on_key = on_key
        self._file = sys.stdin.fileno()
        self._modes_before = termios.tcgetattr(self._file) if sys.stdin.isatty() else None

    def __enter__(self) -> None:
        if self._modes_before is not None:
            tty.setcbreak(self._file)
            asyncio.get_running_loop().add_reader(self._file, self._on_key)

    def __exit__(self, *_: object) -> None:
        if self._modes_before is not None:
            asyncio.get_running_loop().remove_reader(self._file)
            with suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(self._file, termios.TCSADRAIN, self._modes_before)

    @contextmanager
    def released(self) -> Iterator[None]:
        """Restore the terminal's former modes in this context."""
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()

    def read(self) -> bytes:
        """The keys pressed since the last call; empty if the terminal is gone."""
        return os.read(self._file, 100)


SAMPLES = 30  # surveys to remember


@dataclass
class Track:
    """One scope over the last surveys."""

    row: ScopeRow
    held: deque[int] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    starts: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))

    @property
    def is_over(self) -> bool:
        """True if nothing has happened in any of the remembered surveys."""
        return len(self.held) == SAMPLES and not any(self.held) and not any(self.starts)

    def note(self, row: ScopeRow) -> None:
        """Add the scope's row of a survey."""
        self.row = row
        self.held.append(row.held)
        if row.starts_per_second is not None:
            self.starts.append(row.starts_per_second)


class History:
    """All scopes over the last surveys. An idle scope keeps its row until the row is empty."""

    def __init__(self) -> None:
        self._tracks: dict[str, Track] = {}

    def note(self, snapshot: Snapshot) -> None:
        """Add a survey."""
        for row in snapshot.scopes:
            self._tracks.setdefault(row.scope, Track(row)).note(row)
        for scope in self._tracks.keys() - {row.scope for row in snapshot.scopes}:
            track = self._tracks[scope]
            idle = Inspection(scope, track.row.limit, (), track.row.limit_max)
            track.note(ScopeRow.of(idle, starts_per_second=0.0))
            if track.is_over:
                del self._tracks[scope]

    @property
    def tracks(self) -> Sequence[Track]:
        """All tracks, in the order of `status`."""
        return [self._tracks[row.scope] for row in in_order(t.row for t in self._tracks.values())]
