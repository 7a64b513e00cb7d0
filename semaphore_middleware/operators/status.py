"""`scrapy semaphore status` and `watch`: the permits, the waiting requests and the limits."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from semaphore_middleware.errors import SemaphoreError
from semaphore_middleware.model.validation import check_choice, check_integer
from semaphore_middleware.operators.snapshot import ORDERS, Choice, Snapshot, look_at
from semaphore_middleware.operators.verbs import (
    CommandError,
    Status,
    Verb,
    admin_of,
    check_installed,
)

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live
    from scrapy.settings import BaseSettings

SHOWN = 100  # scopes, and nodes, unless the options set another number
INTERVAL_S = 1.0  # between two looks of `watch`
MAX_SHARE = 0.2  # of the time that looks may take, however many scopes there are


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `status` and `watch`."""
    add = parser.add_argument
    text = "a site's host, or '*.' and a host for all below it; shows its nodes, too"
    add("names", metavar="SCOPE", nargs="*", default=[], help=text)
    add("--json", action="store_true", help="print JSON; see docs/commands.md")
    add("--nodes", action="store_true", help="show each node's sums over all scopes shown")
    text = "only scopes and nodes whose names contain TEXT, and their nodes and scopes"
    add("--filter", metavar="TEXT", help=text)
    add("--waiting", action="store_true", help="only where requests wait")
    text = f"{', '.join(ORDERS)}: the largest first (default: waiting); host: by name"
    add("--sort", metavar="ORDER", default="waiting", help=text)
    add("--top", metavar="N", help=f"the first N of each table (default: {SHOWN})")
    add("--all", action="store_true", help="all rows of each table")


class View:
    """The part of a server's state chosen by the options.

    Raises `SettingsError`, and `CommandError` without a server or without rich.
    """

    def __init__(self, settings: BaseSettings, options: argparse.Namespace) -> None:
        if not options.json:
            check_installed("rich", " (--json works without it)")
        allowed = "waiting, held, wait or host"
        order = check_choice(options.sort, "--sort", ORDERS, allowed=allowed)
        top = None if options.all else SHOWN
        if options.top is not None:
            if options.all:
                raise CommandError("give either --top or --all", Status.WRONG)
            top = check_integer(options.top, "--top", least=1, text=True)
        self._choice = Choice(options.filter or "", order, options.waiting, top)
        self._options = options
        self.is_json: bool = options.json
        self.admin = admin_of(settings)

    async def look(self) -> Snapshot:
        """The present state. Raises `SemaphoreError`, and `CommandError` for an unknown name."""
        if self._options.names:
            return await look_at(self.admin, self._options.names)
        seen, rules = await self.admin.survey(), await self.admin.rules()
        return Snapshot.of(seen, rules, server=await self.admin.server_state())

    def print(self, snapshot: Snapshot) -> None:
        """Print it, as tables or as JSON."""
        if self.is_json:
            chosen = snapshot.chosen(self._choice)
            print(json.dumps(chosen.as_json(), indent=2), flush=True)
        else:
            from semaphore_middleware.operators.tables import Output

            Output().print(self.tables(snapshot))

    def tables(self, snapshot: Snapshot, room: int | None = None) -> Group:
        """The tables, of at most `room` rows unless the options set another number."""
        from semaphore_middleware.operators.tables import tables_of

        options = self._options
        is_free = not (options.all or options.top)
        choice = replace(self._choice, top=room) if room and is_free else self._choice
        chosen = snapshot.chosen(choice)
        more = " (--all shows all)" if is_free and len(chosen.scopes) == choice.top else ""
        where = f"{self.admin.server}, prefix {self.admin.prefix!r}"
        return tables_of(chosen, where, bool(options.names), options.nodes, more)


def run_status(settings: BaseSettings, options: argparse.Namespace) -> None:
    """Print the server's state."""
    view = View(settings, options)

    async def run() -> None:
        async with view.admin:
            view.print(await view.look())

    asyncio.run(run())


STATUS = Verb("show who holds permits, who waits, and which limits apply", run_status, add_options)

# `watch` -----------------------------------------------------------------------------------------


def run_watch(settings: BaseSettings, options: argparse.Namespace) -> None:
    """Show the server's state again and again, until Ctrl-C."""
    with suppress(KeyboardInterrupt):
        asyncio.run(_watch(View(settings, options)))


async def _watch(view: View) -> None:
    async with view.admin:
        snapshot = await view.look()  # a problem ends the command now; later it is shown
        problem, took = "", 0.0
        with nullcontext() if view.is_json else _live() as live:
            while True:
                if live is not None:
                    _redraw(live, view, snapshot, problem)
                elif problem:
                    print(problem, file=sys.stderr)
                else:
                    view.print(snapshot)
                await asyncio.sleep(max(INTERVAL_S, took / MAX_SHARE - took))
                began, problem = time.monotonic(), ""
                try:
                    snapshot = await view.look()
                except (SemaphoreError, CommandError) as error:
                    problem = f"trying again: {error}"
                took = time.monotonic() - began


def _live() -> AbstractContextManager[Live | None]:
    """The redrawn part of the terminal; None if the output cannot be redrawn."""
    from rich.live import Live

    from semaphore_middleware.operators.tables import Output

    out = Output()
    can_redraw = out.is_terminal and not out.is_dumb_terminal
    return Live(console=out, auto_refresh=False) if can_redraw else nullcontext()


def _redraw(live: Live, view: View, snapshot: Snapshot, problem: str) -> None:
    from rich.console import Group
    from rich.text import Text

    tables = view.tables(snapshot, room=max(1, live.console.height - 5))
    live.update(Group(tables, Text(problem, "bold red")) if problem else tables, refresh=True)
    live.console.show_cursor()  # so that it is visible, however the command ends


WATCH = Verb(
    "show the same live, once a second",
    run_watch,
    add_options,
    "Show what 'status' shows, once a second, until Ctrl-C: as many rows as fit. A terminal is "
    "redrawn; elsewhere, or with TERM=dumb, each update is printed below the previous one.",
)
