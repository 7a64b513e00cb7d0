"""`scrapy semaphore watch`: `status`, live in a terminal."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from semaphore_middleware.console.cli.commands import CommandError, Status, check_installed
from semaphore_middleware.console.cli.connect import admin_of
from semaphore_middleware.console.cli.formatting import time_of
from semaphore_middleware.console.cli.status import add_choice, choice_of
from semaphore_middleware.console.poller import Poller, snapshots
from semaphore_middleware.console.snapshot import EMPTY, ORDERS, Choice, Snapshot

if TYPE_CHECKING:
    from rich.console import Console
    from scrapy.settings import BaseSettings

INTERVAL_S = 0.5  # from one survey of the server to the next
REDRAW_S = 1.0  # from one drawing of the screen to the next if nothing is new
KEY = re.compile(r"\x1b[\[O][0-9;]*[~A-Z]|.", re.DOTALL)
LINES = {"\x1b[A": -1, "\x1bOA": -1, "k": -1, "\x1b[B": 1, "\x1bOB": 1, "j": 1}
PAGES = {"\x1b[5~": -1, "b": -1, "\x1b[6~": 1, " ": 1}
ENDS = {"\x1b[H": 0, "\x1b[1~": 0, "g": 0, "\x1b[F": 1, "\x1b[4~": 1, "G": 1}
BACKSPACE = ("\x7f", "\b")


def add_options(parser: argparse.ArgumentParser, _verb: str) -> None:
    """Describe `watch`, and declare its options."""
    parser.description = (
        "Show live who holds permits and who waits, twice a second: as many sites as fit. Of each: "
        "how much of its limit is held, and the requests started a second, as they are and how "
        "they were; 'paused'; 'backoff' where nothing starts for a while because the site refused "
        "a request; 'every' and 'at' where a delay or a rate spaces starts. Keys: s takes the next "
        "order, / filters, w shows only sites where requests wait; arrows and pages scroll, g and "
        "G go to the ends; q or Ctrl-C quits."
    )
    add_choice(parser)


def run(settings: BaseSettings, options: argparse.Namespace) -> None:
    """Show the screen until the user quits."""
    if not sys.stdout.isatty():
        raise CommandError("watch needs a terminal; see 'status'", Status.WRONG)
    check_installed("rich")
    asyncio.run(_run(settings, View(choice_of(options))))


@dataclass
class View:
    """What of all scopes the screen shows, and the keys that change it."""

    choice: Choice
    first: int = 0
    """How many of the chosen scopes stand above the screen."""
    rows: int = 0
    """How many are chosen."""
    page: int = 1
    """How many fit on the screen."""
    is_typing: bool = False
    """True while the user types a filter."""

    def press(self, key: str) -> bool:
        """Act on a key. False: the user quits."""
        choice = self.choice
        if self.is_typing:
            if key in ("\r", "\n", "\x1b"):
                self.is_typing = False
            if key == "\x1b":
                self.choice = replace(choice, match="")
            elif key in BACKSPACE:
                self.choice = replace(choice, match=choice.match[:-1])
            elif key.isprintable():
                self.choice = replace(choice, match=choice.match + key)
        elif key in "qQ":
            return False
        elif key == "/":
            self.is_typing, self.first = True, 0
        elif key == "w":
            self.choice, self.first = replace(choice, waiting=not choice.waiting), 0
        elif key == "s":
            orders = [*ORDERS]
            following = orders[(orders.index(choice.order) + 1) % len(orders)]
            self.choice, self.first = replace(choice, order=following), 0
        elif key in ENDS:
            self.first = ENDS[key] * sys.maxsize
        else:
            self.first += LINES.get(key, 0) + self.page * PAGES.get(key, 0)
        self.turn_to(self.rows, self.page)
        return True

    def turn_to(self, rows: int, page: int) -> None:
        """Stay within so many rows, on a screen for `page` of them."""
        self.rows, self.page = rows, page
        self.first = max(0, min(self.first, rows - page))


async def _run(settings: BaseSettings, view: View) -> None:
    from semaphore_middleware.console.cli.tables import Output

    async with admin_of(settings) as admin:
        await admin.rules()  # a missing server is an error now; later it is shown
        poller = Poller(snapshots(admin), INTERVAL_S)
        try:
            await Watch(poller, admin.server, Output(), view).run()
        finally:
            await poller.stop()


class Watch:
    """The screen and the keyboard, until the user quits. `server` is the address to show."""

    def __init__(self, poller: Poller[Snapshot], server: str, console: Console, view: View) -> None:
        from rich.live import Live

        from semaphore_middleware.console.cli.tables import Tracks

        self._poller = poller
        self._server = server
        self._view = view
        self._tracks = Tracks()
        self._quit = asyncio.Event()
        self._changed = asyncio.Event()
        self._screen = ExitStack()  # closed: the terminal is the shell's
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
                self._tracks.note(shown or EMPTY)
            self._changed.set()

    async def _draw(self) -> None:
        from semaphore_middleware.console.cli.tables import screen

        while True:
            tracks = self._tracks.chosen(self._view.choice)
            snapshot, size = self._poller.snapshot or EMPTY, self._console.size
            shown = screen(tracks, snapshot, self._server, self._view, size, self._problem())
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
            self._take_screen()
            yield
        finally:
            self._screen.close()
            for number in handlers:
                loop.remove_signal_handler(number)

    def _take_screen(self) -> None:
        self._screen.enter_context(single_keys(self._read_keys))
        self._screen.enter_context(self._live)

    def _read_keys(self) -> None:
        keys = KEY.findall(os.read(sys.stdin.fileno(), 100).decode(errors="ignore"))
        if not keys or not all(map(self._view.press, keys)):  # no keys: the terminal is gone
            self._quit.set()
        self._changed.set()

    def _suspend(self) -> None:
        """On Ctrl-Z, give the terminal to the shell as it was, and take it back after `fg`."""
        self._screen.close()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take_screen()
        self._changed.set()


@contextmanager
def single_keys(on_key: Callable[[], None]) -> Iterator[None]:
    """Call `on_key` at each key in this context, without Enter; Ctrl-C stays a signal."""
    if not sys.stdin.isatty():
        yield
        return
    file, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    modes = termios.tcgetattr(file)
    tty.setcbreak(file)
    loop.add_reader(file, on_key)
    try:
        yield
    finally:
        loop.remove_reader(file)
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(file, termios.TCSADRAIN, modes)
