"""The tables of `scrapy semaphore` and `scrapy frontier`, and the screen of `watch`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from semaphore_middleware.console.cli.formatting import (
    NOTHING,
    count,
    held_of,
    limit_word,
    rate_word,
    set_time,
    time_of,
    time_or_nothing,
    without_letters,
)
from semaphore_middleware.console.cli.watch import SAMPLES, Track
from semaphore_middleware.console.snapshot import NodeRow, RuleRow, ScopeRow, Snapshot, Totals
from semaphore_middleware.frontier.state import Counts
from semaphore_middleware.model.hosts import clean
from semaphore_middleware.model.inspection import Member
from semaphore_middleware.model.limits import LIMITLESS, Limit

BARS = " ▁▂▃▄▅▆▇█"
NODE_TIMES = ("oldest", "longest", "lease left")
ASKS_FOR = ("asks for", "delay", "rate")
SHORTEST_NAME = 16  # characters, however little room there is
WIDE = 100  # columns, at least, for longer sparklines


# Tables that fit: columns as wide as their cells, and long names shortened in the middle ---------


@dataclass(frozen=True)
class Column:
    """A column's title, and the changes allowed to make the table fit."""

    title: str
    right: bool = False
    is_name: bool = False
    """True if its cells may be shortened."""
    is_spare: bool = False
    """True if it is left out where room is scarce and its cells are empty."""


Row = Sequence[Text | str]


class Output(Console):
    """Standard output: as wide as the terminal, and in a pipe as wide as need be."""

    def __init__(self) -> None:
        super().__init__(
            highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 10_000
        )

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # handled by the command; rich would end the process


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
    """The text without its middle if need be: a site's name and its domain stay recognizable."""
    if cell_len(text) <= width:
        return text
    head, tail = text[: len(text) // 2], text[len(text) // 2 :]
    while head and tail and cell_len(head) + cell_len(tail) + 1 > width:
        if cell_len(head) > cell_len(tail):
            head = head[:-1]
        else:
            tail = tail[1:]
    return f"{head}…{tail}"


# Printing ---------------------------------------------------------------------------------------


def show(snapshot: Snapshot, where: str, members: bool, nodes: bool) -> None:
    """Print the scopes, the nodes of each or of all together, and the rules for patterns.

    `where` names the server and the prefix if there is nothing to show.
    """
    out = Output()
    if wait := server_notice(snapshot.totals):
        out.print(Text(wait, "yellow"))
        out.print(Text())
    tables = [_scopes(snapshot.scopes, out.width)]
    if nodes:
        tables.append(_nodes(snapshot.nodes, out.width))
    elif members:
        tables += [_nodes_of(row, out.width) for row in snapshot.scopes]
    tables.append(_patterns([rule for rule in snapshot.rules if rule.is_pattern], out.width))
    lines = [line for lines in tables if lines for line in (*lines, Text())][:-1]
    for line in lines or [Text(f"No scope is in use at {clean(where)}.")]:
        out.print(line)


def show_crawls(found: Mapping[str, Counts]) -> None:
    """Print the sizes of shared crawls, by name."""
    out = Output()
    numbers = _numbers("nodes", "sites", "queued", "taken", "pages", "failed", "seen", "set aside")
    columns = [Column("crawl", is_name=True), Column("state"), *numbers]
    rows = []
    for name, counts in found.items():
        of_crawl = (counts.nodes, counts.sites, counts.queued, counts.taken, counts.pages)
        sizes = map(str, (*of_crawl, counts.failed, counts.seen, counts.set_aside))
        rows.append((clean(name), counts.state, *sizes))
    for line in table(columns, rows, out.width):
        out.print(line)


def screen(
    tracks: Sequence[Track],
    totals: Totals,
    server: str,
    width: int,
    height: int,
    problem: str = "",
) -> Text:
    """All lines of `watch`: as many scopes as fit, between a line of totals and a last line with
    the `problem`, if there is one. No line is longer than `width`.
    """
    room = max(0, height - 4)  # besides the totals, the table's head, an empty and the last line
    rows = [_live_row(track, width) for track in tracks[:room]]
    lines = [_totals(totals, len(tracks), server, width)]
    lines += table(LIVE_COLUMNS, rows, width, "  " if width >= WIDE else " ")
    lines += [Text()] * (height - 1 - len(lines))
    lines = [*lines[: height - 1], _last_line(len(tracks) - room, problem)]
    for line in lines:
        line.truncate(width)
    return Text("\n", no_wrap=True, overflow="crop", end="").join(lines)


def server_notice(totals: Totals) -> str:
    """Why nothing is granted, or what is shown does not end; empty if all is as usual."""
    if totals.recovery_left:
        left = time_of(totals.recovery_left)
        return (
            f"No permit is granted for another {left}: the server is new, or may have lost its "
            "data."
        )
    if totals.silent_for:
        silent = time_of(totals.silent_for)
        return (
            f"No node has called for {silent}. What is held is free within a lease after one does."
        )
    return ""


def sparkline(values: Sequence[float], most: float, length: int) -> str:
    """The last values as bars, the newest on the right; a small value is visible, zero is empty."""
    last = list(values)[-length:]
    steps = len(BARS) - 1
    bars = [BARS[min(steps, -int(-value * steps // most))] if most else BARS[0] for value in last]
    return "".join(bars).rjust(length)


# `status` ---------------------------------------------------------------------------------------


def _scopes(rows: Sequence[ScopeRow], width: int) -> list[Text]:
    columns = [
        Column("scope", is_name=True),
        *_numbers("held", "waiting", "longest"),
        *(
            Column(title, right=True, is_spare=True)
            for title in ("delay", "rate", "next", "backoff")
        ),
        Column("paused", is_spare=True),
        Column("set by", is_name=True, is_spare=True),
    ]
    return _table(
        columns,
        [
            (
                *_counts(row),
                _set_time(row.delay),
                rate_word(row.rate, row.burst),
                time_or_nothing(row.next_start),
                _marked(_backoff(row)),
                _marked("paused" if row.paused else NOTHING),
                _who_limits(row),
            )
            for row in rows
        ],
        width,
    )


def _nodes_of(row: ScopeRow, width: int) -> list[Text]:
    """One scope's nodes, the waiting ones in the order of the queue."""
    columns = [Column("node", is_name=True), *_numbers("held", "waiting", *NODE_TIMES, *ASKS_FOR)]
    lines = _table(
        columns,
        [
            (
                *(clean(node.node), str(node.held), str(node.waiting), *_node_times(node)),
                *_asks_for(node.asks_for),
            )
            for node in row.nodes
        ],
        width,
    )
    return [Text(clean(row.scope), "bold"), *lines] if lines else []


def _nodes(rows: Sequence[NodeRow], width: int) -> list[Text]:
    columns = [Column("node", is_name=True), *_numbers("held", "waiting", "scopes", *NODE_TIMES)]
    return _table(
        columns,
        [
            (clean(row.node), str(row.held), str(row.waiting), str(row.scopes), *_node_times(row))
            for row in rows
        ],
        width,
    )


def _node_times(node: Member | NodeRow) -> tuple[str, ...]:
    return (
        time_or_nothing(node.oldest),
        time_or_nothing(node.longest_wait),
        time_of(node.lease_left),
    )


def _asks_for(limit: Limit) -> tuple[str, ...]:
    return (
        limit_word(limit.concurrency, limit.concurrency >= LIMITLESS),
        _set_time(limit.delay or None),
        rate_word(limit.rate, limit.burst),
    )


def _numbers(*titles: str) -> list[Column]:
    return [Column(title, right=True) for title in titles]


def _patterns(rows: Sequence[RuleRow], width: int) -> list[Text]:
    """The rules for all hosts below one; a scope's own row shows the scope's rule."""
    columns = [
        Column("pattern", is_name=True),
        *_numbers("limit", "delay", "rate"),
        Column("paused"),
        Column("set by", is_name=True),
    ]
    return _table(
        columns,
        [
            (
                clean(row.name),
                limit_word(row.limit, row.unlimited),
                _set_time(row.delay),
                rate_word(row.rate, row.burst),
                _marked("paused" if row.paused else NOTHING),
                _operator(row.set_by),
            )
            for row in rows
        ],
        width,
    )


def _table(columns: Sequence[Column], rows: Sequence[Row], width: int) -> list[Text]:
    return table(columns, rows, width) if rows else []


# `watch` ----------------------------------------------------------------------------------------

LIVE_COLUMNS = (
    Column("scope", is_name=True),
    Column("held", right=True),
    Column(""),
    Column("waiting", right=True),
    Column("longest", right=True),
    Column("starts/s", right=True),
    Column(""),
    Column("", is_spare=True),
)


def _totals(totals: Totals, scopes: int, server: str, width: int) -> Text:
    sums = (
        f"{count(scopes, 'scope')}  {totals.held:,} held  {totals.waiting:,} waiting  "
        f"{totals.starts_per_second or 0.0:.1f} starts/s"
    )
    name = shortened(server, max(0, width - len(sums) - 2))
    return Text(name.ljust(max(0, width - len(sums)))).append(sums, "bold")


def _last_line(hidden: int, problem: str) -> Text:
    if problem:
        return Text(problem, "bold red")
    more = f"and {count(hidden, 'scope')} more; " if hidden > 0 else ""
    return Text(f"{more}q quits", "dim")


def _live_row(track: Track, width: int) -> Row:
    row = track.row
    length = SAMPLES if width >= WIDE + 2 * SAMPLES else 7 if width < WIDE else 16
    scope, held, waiting, longest = _counts(row)
    return [
        scope,
        Text(held, "yellow" if row.waiting else ""),
        Text(sparkline(track.held, max(*track.held, row.limit or 0), length), "green"),
        waiting,
        longest,
        f"{row.starts_per_second or 0.0:.1f}",
        Text(sparkline(track.starts, max(track.starts, default=0.0), length), "cyan"),
        _why_idle(row),
    ]


def _why_idle(row: ScopeRow) -> Text | str:
    """The main reason for few or no starts at present."""
    if row.paused:
        return _marked("paused")
    if row.down_for is not None:
        return _marked(f"down {time_of(row.down_for)}")
    if row.backoff_left:
        return _marked(f"backoff {time_of(row.backoff_left)}")
    spaced = [f"every {set_time(row.delay)}"] if row.delay else []
    spaced += [f"at {rate_word(row.rate, row.burst)}"] if row.rate else []
    return ", ".join(spaced) or NOTHING


# Both -------------------------------------------------------------------------------------------


def _counts(row: ScopeRow) -> tuple[str, str, str, str]:
    """The cells common to `status` and `watch`."""
    return clean(row.scope), held_of(row), str(row.waiting), time_or_nothing(row.longest_wait)


def _backoff(row: ScopeRow) -> str:
    """How long nothing starts; 'down' comes first if the site has not responded for long."""
    backoff = time_or_nothing(row.backoff_left)
    return backoff if row.down_for is None else f"down, {backoff}" if row.backoff_left else "down"


def _set_time(seconds: float | None) -> str:
    return NOTHING if seconds is None else set_time(seconds)


def _marked(word: str) -> Text | str:
    """The word in the colour of an obstacle; - stays plain."""
    return word if word == NOTHING else Text(word, "yellow")


def _who_limits(row: ScopeRow) -> str:
    """The operator; else who asks for a stricter limit than others, and how many more."""
    if row.set_by or not row.asked_by:
        return _operator(row.set_by)
    more = f" +{len(row.asked_by) - 1}" if len(row.asked_by) > 1 else ""
    return _operator(row.asked_by[0]) + more


def _operator(name: str | None) -> str:
    return clean(without_letters(name)) if name else NOTHING
