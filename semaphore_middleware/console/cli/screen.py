"""What `watch` shows: as many scopes as fit, and a line that sums up all of them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from semaphore_middleware.console.cli.formatting import (
    clean,
    count,
    held_of,
    set_time,
    time_of,
    time_or_nothing,
)
from semaphore_middleware.console.cli.output import Column, shortened, table
from semaphore_middleware.console.rates import SAMPLES, Board, Track
from semaphore_middleware.console.snapshot import longest_wait
from semaphore_middleware.model.inspection import Inspection
from semaphore_middleware.model.rules import LIMITLESS

BARS = " ▁▂▃▄▅▆▇█"
WIDE = 100  # columns from which on there is room for longer sparklines


def screen(board: Board, server: str, width: int, height: int, trouble: str = "") -> Text:
    """All lines, none longer than `width`; `trouble` is what keeps us from looking."""
    room = max(0, height - 4)  # but for the head, the table's own, an empty line and the foot
    tracks = board.in_order()
    lines = [_head(board, server, width)]
    rows = [_row(track, width) for track in tracks[:room]]
    lines += table(COLUMNS, rows, width, "  " if width >= WIDE else " ")
    lines += [Text()] * (height - 1 - len(lines))
    lines = [*lines[: height - 1], _foot(len(tracks), room, trouble)]
    for line in lines:
        line.truncate(width)
    return Text("\n", no_wrap=True, overflow="crop", end="").join(lines)


COLUMNS = (
    Column("scope", is_name=True),
    Column("held", right=True),
    Column(""),
    Column("waiting", right=True),
    Column("longest", right=True),
    Column("rate", right=True),
    Column(""),
    Column("", is_spare=True),
)


def _head(board: Board, server: str, width: int) -> Text:
    sums = (
        f"{count(len(board.tracks), 'scope')}  {board.held:,} held  "
        f"{board.waiting:,} waiting  {board.rate:.1f}/s"
    )
    name = shortened(server, max(0, width - len(sums) - 2))
    return Text(name.ljust(max(0, width - len(sums)))).append(sums, "bold")


def _foot(scopes: int, room: int, trouble: str) -> Text:
    if trouble:
        return Text(trouble, "bold red")
    hidden = max(0, scopes - room)
    more = f"and {count(hidden, 'scope')} more; " if hidden else ""
    return Text(f"{more}q quits", "dim")


def _row(track: Track, width: int) -> list[Text | str]:
    seen = track.seen
    length = SAMPLES if width >= WIDE + 2 * SAMPLES else 8 if width < WIDE else 16
    most_held = max(*track.held, _sensible(seen.limit))
    return [
        clean(seen.scope),
        Text(held_of(seen), "yellow" if seen.waiters else ""),
        Text(sparkline(track.held, most_held, length), "green"),
        str(len(seen.waiters)),
        time_or_nothing(longest_wait(seen)),
        f"{track.rate:.1f}/s",
        Text(sparkline(track.rates, max(track.rates, default=0.0), length), "cyan"),
        _state(seen),
    ]


def _sensible(limit: int | None) -> int:
    return limit if limit is not None and limit < LIMITLESS else 0


def _state(seen: Inspection) -> Text | str:
    """The one thing that says most of why nothing starts just now."""
    if seen.paused:
        return Text("paused", "yellow")
    if seen.backoff_left:
        return Text(f"quiet {time_of(seen.backoff_left)}", "yellow")
    return f"every {set_time(seen.delay)}" if seen.delay else "-"


def sparkline(values: Sequence[float], most: float, length: int) -> str:
    """The last values as bars, the newest on the right; a small one is seen, zero is empty."""
    last = list(values)[-length:]
    steps = len(BARS) - 1
    bars = [BARS[min(steps, -int(-value * steps // most))] if most else BARS[0] for value in last]
    return "".join(bars).rjust(length)
