"""What a benchmark has found, and how it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

Cell = str | float | int | None


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure that has a bound: at most, at least, or exactly this."""

    what: str
    value: float
    at_most: float | None = None
    at_least: float | None = None

    @property
    def met(self) -> bool:
        above = self.at_most is None or self.value <= self.at_most
        return above and (self.at_least is None or self.value >= self.at_least)

    def __str__(self) -> str:
        bounds = []
        if self.at_most is not None:
            bounds.append(f"at most {_text(self.at_most)}")
        if self.at_least is not None:
            bounds.append(f"at least {_text(self.at_least)}")
        verdict = "met" if self.met else "MISSED"
        return f"{self.what}: {_text(self.value)} ({' and '.join(bounds)}) {verdict}"


@dataclass(frozen=True, slots=True)
class Report:
    """A table of figures, the goals of some of them, and how they were measured."""

    title: str
    columns: Sequence[str]  # with units
    rows: Sequence[Sequence[Cell]]
    goals: Sequence[Goal] = ()
    notes: Sequence[str] = ()

    def show(self, console: Console) -> None:
        table = Table(title=self.title, title_justify="left")
        for number, column in enumerate(self.columns):
            table.add_column(column, justify="right" if number else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*(_text(cell) for cell in row))
        console.print(table)
        for line in (*self.notes, *self.goals):
            console.print(f"  {line}", markup=False, highlight=False)


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) else cell
