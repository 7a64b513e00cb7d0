"""Tables that fit: columns as wide as what is in them, and long names shortened in the middle."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from semaphore_middleware.console.cli.formatting import NOTHING

SHORTEST_NAME = 16  # characters, however little room there is


@dataclass(frozen=True)
class Column:
    """A column's title, and what may be done to make the table fit."""

    title: str
    right: bool = False
    is_name: bool = False
    """Whether it may be shortened."""
    is_spare: bool = False
    """Whether it is left out where room is scarce and nothing is in it."""


Row = Sequence[Text | str]


class Output(Console):
    """Standard output: as wide as the terminal, and in a pipe as wide as need be."""

    def __init__(self) -> None:
        super().__init__(
            highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 10_000
        )

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # the command knows what to do; rich would end the process


def table(
    columns: Sequence[Column], rows: Sequence[Row], width: int, gap: str = "  "
) -> list[Text]:
    """The lines of a table, its head first."""
    cells = [[c if isinstance(c, Text) else Text(c) for c in row] for row in rows]
    shown = list(range(len(columns)))
    widths = [
        max(cell_len(column.title), *(row[i].cell_len for row in cells), 0)
        for i, column in enumerate(columns)
    ]
    if _excess(widths, shown, width, gap) > 0:
        shown = [
            i
            for i, column in enumerate(columns)
            if not column.is_spare or any(row[i].plain != NOTHING for row in cells)
        ]
    for i in shown:
        if columns[i].is_name and (excess := _excess(widths, shown, width, gap)) > 0:
            widths[i] = min(widths[i], max(SHORTEST_NAME, widths[i] - excess))
    head = [Text(column.title, "bold") for column in columns]
    return [_line([(columns[i], row[i], widths[i]) for i in shown], gap) for row in (head, *cells)]


def _excess(widths: Sequence[int], shown: Sequence[int], width: int, gap: str) -> int:
    return sum(widths[i] for i in shown) + len(gap) * (len(shown) - 1) - width


def _line(cells: Sequence[tuple[Column, Text, int]], gap: str) -> Text:
    padded: list[Text] = []
    for column, cell, width in cells:
        fitting = cell if cell.cell_len <= width else Text(shortened(cell.plain, width), cell.style)
        room = Text(" " * (width - fitting.cell_len))
        padded.append(room + fitting if column.right else fitting + room)
    line = Text(gap, no_wrap=True, overflow="crop").join(padded)
    line.rstrip()
    return line


def shortened(text: str, width: int) -> str:
    """Cut out of the middle, so that both a site's name and its domain can be told."""
    if cell_len(text) <= width:
        return text
    head, tail = text[: len(text) // 2], text[len(text) // 2 :]
    while head and tail and cell_len(head) + cell_len(tail) + 1 > width:
        if cell_len(head) > cell_len(tail):
            head = head[:-1]
        else:
            tail = tail[1:]
    return f"{head}…{tail}"
