"""The progress of a demonstration: a live bar in a terminal, else a line every few seconds."""

from __future__ import annotations

import time
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

LINE_INTERVAL_S = 2.0  # where there is no terminal


@dataclass(frozen=True)
class DemoState:
    """The figures to show."""

    nodes: int  # running ones
    fetched: int  # pages
    found: int  # pages, fetched or not
    held: int  # permits
    limit: int
    waiting: int  # requests without a permit

    def __str__(self) -> str:
        return (
            f"{self.nodes} nodes, {self.fetched} of {self.found} pages, "
            f"{self.held}/{self.limit} permits held, {self.waiting} requests waiting"
        )


class ProgressDisplay(Progress):
    """Shows the state of a demonstration on a console, as a context manager."""

    def __init__(self, console: Console) -> None:
        text = TextColumn("{task.description}")
        columns = (SpinnerColumn(), text, BarColumn(bar_width=None), TimeElapsedColumn())
        super().__init__(
            *columns,
            console=console,
            auto_refresh=False,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self.add_task("")
        self._next_line_at = 0.0

    def show(self, state: DemoState) -> None:
        """Show this state, if it is time to."""
        text = str(state)
        if not self.disable:
            self.update(
                self._task,
                completed=state.fetched,
                total=state.found,
                description=text,
                refresh=True,
            )
        elif time.monotonic() >= self._next_line_at:
            self._next_line_at = time.monotonic() + LINE_INTERVAL_S
            self.console.print(text, highlight=False)
