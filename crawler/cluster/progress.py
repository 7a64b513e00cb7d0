"""A cluster's progress: a live bar in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

SAY_AGAIN = 2.0  # seconds between lines where there is no terminal


@dataclass(frozen=True)
class State:
    nodes: int  # that run
    fetched: int
    found: int
    held: int  # permits
    limit: int
    waiting: int  # requests that wait for one

    def __str__(self) -> str:
        return (
            f"{self.fetched} of {self.found} pages found so far, "
            f"{self.held}/{self.limit} permits held, {self.waiting} requests wait"
        )


class Display:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._quiet_until = 0.0
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.fields[nodes]} nodes"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed}/{task.total} pages"),
            TextColumn("{task.fields[held]}/{task.fields[limit]} permits held"),
            TextColumn("{task.fields[waiting]} wait"),
            TimeElapsedColumn(),
            console=console,
            auto_refresh=False,
            transient=True,
        )
        self._task = self._bar.add_task("", total=0, nodes=0, held=0, limit=0, waiting=0)

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def show(self, state: State) -> None:
        if self._console.is_terminal:
            self._bar.update(
                self._task,
                completed=state.fetched,
                total=state.found,
                nodes=state.nodes,
                held=state.held,
                limit=state.limit,
                waiting=state.waiting,
            )
            self._bar.refresh()
        elif time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + SAY_AGAIN
            self._console.print(str(state), highlight=False)
