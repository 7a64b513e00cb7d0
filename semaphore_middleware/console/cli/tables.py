"""The tables of `scrapy semaphore` and `scrapy frontier`, and the screen of `watch`."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Generic, TypeVar

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
    who,
)
from semaphore_middleware.console.cli.watch import View
from semaphore_middleware.console.snapshot import Choice, NodeRow, Snapshot, Totals
from semaphore_middleware.frontier.state import Counts
from semaphore_middleware.model.hosts import clean
from semaphore_middleware.model.inspection import Inspection, Member
from semaphore_middleware.model.jobs import JobShare
from semaphore_middleware.model.rules import Rule

T_contra = TypeVar("T_contra", contravariant=True)
BARS = " ▁▂▃▄▅▆▇█"
SHORTEST_NAME = 16  # characters, however little room there is
WIDE = 100  # columns, at least, for longer sparklines
SAMPLES = 30  # of a sparkline, at most


class Output(Console):
    """Standard output: as wide as the terminal, and in a pipe as wide as need be."""

    def __init__(self) -> None:
        super().__init__(
            highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 10_000
        )

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # handled by the command; rich would end the process


# Tables that fit: columns as wide as their cells, and long names shortened ------------------------


@dataclass(frozen=True)
class Column(Generic[T_contra]):
    """A column's title, the text of a row's cell, and the changes allowed to make the table fit."""

    title: str
    cell: Callable[[T_contra], Text | str]
    right: bool = True
    is_name: bool = False
    """True if its cells may be shortened."""
    is_spare: bool = False
    """True if it is left out where room is scarce and its cells are empty."""


def name(
    title: str, cell: Callable[[T_contra], str | None], *, is_spare: bool = False
) -> Column[T_contra]:
    """A column of names, which anybody may have chosen."""
    shown = lambda row: clean(cell(row) or NOTHING)  # noqa: E731
    return Column(title, shown, right=False, is_name=True, is_spare=is_spare)


def table(
    columns: Sequence[Column[T_contra]], rows: Iterable[T_contra], width: int, gap: str = "  "
) -> list[Text]:
    """The lines of a table, its head first; none without a row."""
    cells = [[Text.assemble(column.cell(row)) for column in columns] for row in rows]
    shown = [*range(len(columns))]
    widths: list[int] = [
        max(cell_len(column.title), *(row[i].cell_len for row in cells), 0)
        for i, column in enumerate(columns)
    ]

    def excess() -> int:
        total: int = sum(widths[i] for i in shown)
        return total + len(gap) * (len(shown) - 1) - width

    if excess() > 0:
        is_empty = [all(row[i].plain == NOTHING for row in cells) for i in shown]
        shown = [i for i in shown if not (columns[i].is_spare and is_empty[i])]
    for i in shown:
        if columns[i].is_name and (over := excess()) > 0:
            widths[i] = min(widths[i], max(SHORTEST_NAME, widths[i] - over))
            short = shortened([row[i].plain for row in cells], widths[i])
            for row, text in zip(cells, short, strict=True):
                row[i] = Text(text, row[i].style)
    cells = cells and [[Text(column.title, "bold") for column in columns], *cells]
    lines = []
    for row in cells:
        for i in shown:
            row[i].align("right" if columns[i].right else "left", widths[i])
        line = Text(gap, no_wrap=True, overflow="crop").join(row[i] for i in shown)
        line.rstrip()
        lines.append(line)
    return lines


def shortened(names: Sequence[str], width: int) -> list[str]:
    """The names without their middles if need be: a site's name and its domain stay recognizable.
    Of names that would look the same, the parts are kept in which they differ.
    """
    short = {name: cut(name, width) for name in names}
    alike: dict[str, list[str]] = {}
    for name, text in short.items():
        alike.setdefault(text, []).append(name)
    for group in alike.values():
        if len(group) > 1:
            short |= dict(zip(group, _apart(group, width), strict=True))
    return [short[name] for name in names]


def _apart(names: Sequence[str], width: int) -> Iterable[str]:
    """Names that begin and end alike, shortened there."""
    begins = _alike(names)
    ends = _alike([name[begins:][::-1] for name in names])
    for name in names:
        parts = [name[:begins], name[begins : len(name) - ends], name[len(name) - ends :]]
        for i in sorted((0, 2), key=lambda i: -len(parts[i])):
            room = width - cell_len("".join(parts)) + cell_len(parts[i])
            parts[i] = cut(parts[i], max(1, room))
        yield cut("".join(parts), width)


def _alike(names: Sequence[str]) -> int:
    """How many characters all of them begin with."""
    columns = zip(*names, strict=False)
    return sum(1 for _ in takewhile(lambda column: len({*column}) == 1, columns))


def cut(text: str, width: int) -> str:
    """The text without its middle, if it is longer."""
    if cell_len(text) <= width:
        return text
    head, tail = text[: len(text) // 2], text[len(text) // 2 :]
    while head and tail and cell_len(head) + cell_len(tail) + 1 > width:
        if cell_len(head) > cell_len(tail):
            head = head[:-1]
        else:
            tail = tail[1:]
    return f"{head}…{tail}"


# Columns -----------------------------------------------------------------------------------------


def _marked(word: str) -> Text | str:
    """The word in the colour of an obstacle; - stays plain."""
    return word if word == NOTHING else Text(word, "yellow")


def _backoff(row: Inspection) -> str:
    """How long nothing starts; 'down' comes first if the site has not responded for long."""
    backoff = time_or_nothing(row.backoff_left)
    return backoff if row.down_for is None else f"down, {backoff}" if row.backoff_left else "down"


def _who_limits(row: Inspection) -> str:
    """The operator; else who asks for a stricter limit than others, and how many more."""
    if row.set_by or not row.strictest:
        return who(row.set_by)
    first, *others = row.strictest
    return who(first.node) + (f" +{len(others)}" if others else "")


def _pause(paused: bool | None) -> Text | str:
    return _marked("paused" if paused else NOTHING)


SCOPES: Sequence[Column[Inspection]] = (
    name("scope", lambda row: row.scope),
    Column("held", held_of),
    Column("waiting", lambda row: str(row.waiting)),
    Column("longest", lambda row: time_or_nothing(row.longest_wait)),
    Column("delay", lambda row: set_time(row.delay or None), is_spare=True),
    Column("rate", lambda row: rate_word(row.rate, row.burst), is_spare=True),
    Column("next", lambda row: time_or_nothing(row.next_start), is_spare=True),
    Column("backoff", lambda row: _marked(_backoff(row)), is_spare=True),
    Column("paused", lambda row: _pause(row.paused), right=False, is_spare=True),
    name("set by", _who_limits, is_spare=True),
)
_NODE: Sequence[Column[Member | NodeRow]] = (
    name("node", lambda row: row.node),
    Column("held", lambda row: str(row.held)),
    Column("waiting", lambda row: str(row.waiting)),
)
_TIMES: Sequence[Column[Member | NodeRow]] = (
    Column("oldest", lambda row: time_or_nothing(row.oldest)),
    Column("longest", lambda row: time_or_nothing(row.longest_wait)),
    Column("lease left", lambda row: time_of(row.lease_left)),
)
NODES: Sequence[Column[NodeRow]] = (*_NODE, Column("scopes", lambda row: str(row.scopes)), *_TIMES)
MEMBERS: Sequence[Column[Member]] = (
    *_NODE,
    *_TIMES,
    Column("asks for", lambda row: limit_word(row.asks_for.concurrency)),
    Column("delay", lambda row: set_time(row.asks_for.delay or None)),
    Column("rate", lambda row: rate_word(row.asks_for.rate, row.asks_for.burst)),
)
JOB: Column[Member | JobShare] = name("job", lambda row: row.job)
JOBS: Sequence[Column[JobShare]] = (
    JOB,
    Column("weight", lambda row: f"{row.weight:g}"),
    Column("held", lambda row: str(row.held)),
    Column("waiting", lambda row: str(row.waiting)),
    Column("nodes", lambda row: str(row.nodes)),
)
PATTERNS: Sequence[Column[Rule]] = (
    name("pattern", lambda row: row.name),
    Column("limit", lambda row: limit_word(row.concurrency)),
    Column("delay", lambda row: set_time(row.delay)),
    Column("rate", lambda row: rate_word(row.rate, row.burst)),
    Column("paused", lambda row: _pause(row.paused), right=False),
    name("set by", lambda row: who(row.by)),
)


def _size(title: str) -> Column[tuple[str, Counts]]:
    return Column(title, lambda row: str(getattr(row[1], title.replace(" ", "_"))))


CRAWLS: Sequence[Column[tuple[str, Counts]]] = (
    name("crawl", lambda row: row[0]),
    Column("state", lambda row: row[1].state, right=False),
    *map(_size, ("nodes", "sites", "queued", "taken", "pages", "failed", "seen", "set aside")),
)

# `status` ----------------------------------------------------------------------------------------


def show(snapshot: Snapshot, where: str, members: bool, nodes: bool) -> None:
    """Print the scopes, the nodes of each or of all together, and the rules for patterns.

    `where` names the server and the prefix if there is nothing to show.
    """
    out = Output()
    scopes, totals = snapshot.scopes, snapshot.totals
    tables = [[Text(notice, "yellow")] if (notice := notice_of(snapshot)) else []]
    tables.append(table(SCOPES, scopes, out.width))
    if nodes:
        tables.append(table(NODES, snapshot.nodes, out.width))
    elif members:
        for row in scopes:
            jobs = [*table(JOBS, row.jobs, out.width), Text()] if row.jobs else []
            lines = table([*MEMBERS, *([JOB] if row.jobs else [])], row.members, out.width)
            tables.append([Text(clean(row.scope), "bold"), *jobs, *lines] if lines else [])
    patterns = [rule for rule in snapshot.rules if rule.is_pattern]
    tables.append(table(PATTERNS, patterns, out.width))
    if len(scopes) < totals.scopes:
        tables.append([Text(f"{len(scopes):,} of {count(totals.scopes, 'scope')}", "dim")])
    lines = [line for lines in tables if lines for line in (*lines, Text())][:-1]
    for line in lines or [Text(f"No scope is in use at {clean(where)}.")]:
        out.print(line)


def show_crawls(found: Mapping[str, Counts]) -> None:
    """Print the sizes of shared crawls, by name."""
    out = Output()
    for line in table(CRAWLS, found.items(), out.width):
        out.print(line)


def notice_of(snapshot: Snapshot) -> str:
    """Why nothing is granted, or what is shown does not end; empty if all is as usual."""
    totals = snapshot.totals
    if totals.recovery_left:
        left = time_of(totals.recovery_left)
        return (
            f"No permit is granted for another {left}: the server is new, or may have lost its "
            "data."
        )
    if rule := snapshot.pause_of_all:
        return f"All sites are paused, by {who(rule.by)}, until 'resume --all'."
    if totals.silent_for:
        silent = time_of(totals.silent_for)
        return (
            f"No node has called for {silent}. What is held is free within a lease after one does."
        )
    return ""


# `watch` ----------------------------------------------------------------------------------------


@dataclass
class Track:
    """One scope over the last surveys."""

    row: Inspection
    held: deque[int] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    starts: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))

    @property
    def is_over(self) -> bool:
        """True if nothing has happened in any of the remembered surveys."""
        return len(self.held) == SAMPLES and not any(self.held) and not any(self.starts)

    def note(self, row: Inspection, starts: float | None) -> None:
        """Add a survey."""
        self.row = row
        self.held.append(row.held)
        if starts is not None:
            self.starts.append(starts)


class Tracks:
    """All scopes over the last surveys. An idle scope keeps its row until the row is empty."""

    def __init__(self) -> None:
        self._tracks: dict[str, Track] = {}

    def note(self, snapshot: Snapshot) -> None:
        """Add a survey."""
        for row in snapshot.scopes:
            track = self._tracks.setdefault(row.scope, Track(row))
            track.note(row, snapshot.starts_of(row.scope))
        for scope in self._tracks.keys() - {row.scope for row in snapshot.scopes}:
            track = self._tracks[scope]
            track.note(Inspection(scope, track.row.limit, (), track.row.limit_max), 0.0)
            if track.is_over:
                del self._tracks[scope]

    def chosen(self, choice: Choice) -> list[Track]:
        """The chosen scopes' tracks."""
        rows = choice.scopes(track.row for track in self._tracks.values())
        return [self._tracks[row.scope] for row in rows]


def live_columns(width: int) -> Sequence[Column[Track]]:
    """The columns of `watch` on a screen of this width."""
    length = SAMPLES if width >= WIDE + 2 * SAMPLES else 7 if width < WIDE else 16

    def held(track: Track) -> Text:
        return Text(held_of(track.row), "yellow" if track.row.waiting else "")

    def bars_of_held(track: Track) -> Text:
        most = max(*track.held, track.row.limit or 0)
        return Text(sparkline(track.held, most, length), "green")

    def bars_of_starts(track: Track) -> Text:
        return Text(sparkline(track.starts, max(track.starts, default=0.0), length), "cyan")

    return (
        name("scope", lambda track: track.row.scope),
        Column("held", held),
        Column("", bars_of_held),
        Column("waiting", lambda track: str(track.row.waiting)),
        Column("longest", lambda track: time_or_nothing(track.row.longest_wait)),
        Column("starts/s", lambda track: f"{track.starts[-1] if track.starts else 0.0:.1f}"),
        Column("", bars_of_starts),
        Column("", _why_idle, right=False, is_spare=True),
    )


def screen(
    tracks: Sequence[Track],
    snapshot: Snapshot,
    server: str,
    view: View,
    size: tuple[int, int],
    problem: str = "",
) -> Text:
    """All lines of `watch`: the totals, as many of the tracks as fit, and a last line with the
    `problem`, if there is one, or the keys. No line is longer than the screen is wide.
    """
    width, height = size
    view.turn_to(
        len(tracks), max(0, height - 4)
    )  # the totals, the head, an empty and the last line
    lines = [_totals(snapshot.totals, server, width)]
    rows = tracks[view.first : view.first + view.page]
    lines += table(live_columns(width), rows, width, "  " if width >= WIDE else " ")
    lines += [Text()] * (height - 1 - len(lines))
    problem = problem or notice_of(snapshot)
    end = Text(problem, "bold red") if problem and not view.is_typing else _keys(tracks, view)
    lines = [*lines[: height - 1], end]
    for line in lines:
        line.truncate(width)
    return Text("\n", no_wrap=True, overflow="crop", end="").join(lines)


def _totals(totals: Totals, server: str, width: int) -> Text:
    sums = (
        f"{count(totals.scopes, 'scope')}  {totals.held:,} held  {totals.waiting:,} waiting  "
        f"{totals.starts_per_second or 0.0:.1f} starts/s"
    )
    name = cut(server, width - len(sums) - 2)
    return Text(name.ljust(width - len(sums))).append(sums, "bold")


def _keys(tracks: Sequence[Track], view: View) -> Text:
    choice, last = view.choice, min(len(tracks), view.first + view.page)
    if view.is_typing:
        return Text(f"filter: {clean(choice.match)}█  Enter keeps it, Esc drops it")
    which = f" with {clean(choice.match)!r}" if choice.match else ""
    which += " that wait" if choice.waiting else ""
    shown = f"{view.first + 1 if tracks else 0:,}-{last:,} of {len(tracks):,}{which}"
    keys = "q quit  s sort  / filter  w waiting  ↑↓ scroll"
    return Text(f"{shown} by {choice.order}   {keys}", "dim")


def sparkline(values: Iterable[float], most: float, length: int) -> str:
    """The last values as bars, the newest on the right; a small value is visible, zero is empty."""
    last = list(values)[-length:]
    steps = len(BARS) - 1
    bars = [BARS[-int(-value * steps // most)] if most else BARS[0] for value in last]
    return "".join(bars).rjust(length)


def _why_idle(track: Track) -> Text | str:
    """The main reason for few or no starts at present."""
    row = track.row
    if row.paused:
        return _marked("paused")
    if row.down_for is not None:
        return _marked(f"down {time_of(row.down_for)}")
    if row.backoff_left:
        return _marked(f"backoff {time_of(row.backoff_left)}")
    spaced = [f"every {set_time(row.delay)}"] if row.delay else []
    spaced += [f"at {rate_word(row.rate, row.burst)}"] if row.rate else []
    return ", ".join(spaced) or NOTHING
