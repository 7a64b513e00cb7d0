"""The tables of `status`, and the means to draw others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from semaphore_middleware.link.text import time_of
from semaphore_middleware.model.hosts import clean
from semaphore_middleware.model.inspection import Inspection, JobShare, Member
from semaphore_middleware.model.limits import Limit, limit_word
from semaphore_middleware.model.rules import Rule
from semaphore_middleware.operators.formatting import (
    NOTHING,
    count,
    delay_word,
    held_of,
    rate_word,
    short_name,
    state_of,
    time_or_nothing,
)
from semaphore_middleware.operators.snapshot import NodeRow, Snapshot

T_contra = TypeVar("T_contra", contravariant=True)
SHORTEST_NAME = 16  # characters left of a name that is cut


class Output(Console):
    """Standard output, as wide as the terminal; in a pipe, as wide as its tables."""

    def __init__(self) -> None:
        super().__init__(
            emoji=False,  # in a name such as crawl:books:daily, :books: is text
            highlight=False,
            soft_wrap=True,
            width=None if sys.stdout.isatty() else 10_000,
        )

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # handled by the command; rich would end the process


@dataclass(frozen=True)
class Column(Generic[T_contra]):
    """A column's title, and the text of a row's cell."""

    title: str
    cell: Callable[[T_contra], Text | str]
    right: bool = True
    is_name: bool = False
    """Its cells may be cut to make the table fit."""
    is_spare: bool = False
    """It is left out if all its cells are empty."""


def name(
    title: str, cell: Callable[[T_contra], str | None], *, is_spare: bool = False
) -> Column[T_contra]:
    """A column of names, cleaned, as any program may have chosen them."""
    shown = lambda row: clean(cell(row) or NOTHING)  # noqa: E731
    return Column(title, shown, right=False, is_name=True, is_spare=is_spare)


class _Table(Table):
    """A table whose lines run over the edge if not even the `min_width` of its columns fits.

    rich would narrow the columns further, and those that it may wrap until they vanish.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        gaps = self.padding[1] * (len(self.columns) - 1)
        least = sum(column.min_width or 0 for column in self.columns) + gaps
        yield from super().__rich_console__(
            console, options.update_width(max(options.max_width, least))
        )


def table(columns: Sequence[Column[T_contra]], rows: Collection[T_contra], gap: int = 2) -> Table:
    """A table of rows without lines, and without spare columns that are empty.

    If it is too wide, names are cut, to `SHORTEST_NAME` at least; then lines run over the edge.
    """
    drawn = _Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    shown = []
    for column in columns:
        cells = [Text.assemble(column.cell(row), no_wrap=True) for row in rows]
        if column.is_spare and all(cell.plain == NOTHING for cell in cells):
            continue
        shown.append(cells)
        width = max(cell_len(column.title), *(cell.cell_len for cell in cells))
        drawn.add_column(
            column.title,
            justify="right" if column.right else "left",
            min_width=min(width, SHORTEST_NAME) if column.is_name else width,
            no_wrap=not column.is_name,  # rich narrows the others first
            overflow="ellipsis",
        )
    for row in zip(*shown, strict=True):
        drawn.add_row(*row)
    return drawn


# Columns -----------------------------------------------------------------------------------------


def _marked(word: str) -> Text | str:
    """The word in the colour of obstacles, unless it is -."""
    return word if word == NOTHING else Text(word, "yellow")


def _who_limits(row: Inspection) -> str:
    """The operator who set the limit, otherwise the nodes that ask for the strictest one."""
    if row.set_by or not row.strictest:
        return short_name(row.set_by)
    first, *others = row.strictest
    return short_name(first.node) + (f" +{len(others)}" if others else "")


def _delay(limit: Limit) -> str:
    return delay_word(limit.delay or None, limit.jitter)


SCOPES: Sequence[Column[Inspection]] = (
    name("scope", lambda row: row.scope),
    Column("held", held_of),
    Column("waiting", lambda row: str(row.waiting)),
    Column("longest", lambda row: time_or_nothing(row.longest_wait)),
    Column("delay", lambda row: _delay(row.effective), is_spare=True),
    Column("rate", lambda row: rate_word(row.effective.rate, row.effective.burst), is_spare=True),
    Column("learned", lambda row: row.learned or NOTHING, is_spare=True),
    Column("next", lambda row: time_or_nothing(row.next_start), is_spare=True),
    Column("state", state_of, right=False),
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
    Column("failures", lambda row: _marked(str(row.failures or NOTHING)), is_spare=True),
    Column("asks for", lambda row: limit_word(row.asks_for.concurrency)),
    Column("delay", lambda row: _delay(row.asks_for), is_spare=True),
    Column("rate", lambda row: rate_word(row.asks_for.rate, row.asks_for.burst), is_spare=True),
)
JOB: Column[Member | JobShare] = name("job", lambda row: row.job)
JOBS: Sequence[Column[JobShare]] = (
    JOB,
    Column("held", lambda row: str(row.held)),
    Column("waiting", lambda row: str(row.waiting)),
    Column("nodes", lambda row: str(row.nodes)),
)
PATTERNS: Sequence[Column[Rule]] = (
    name("pattern", lambda row: row.name),
    Column("limit", lambda row: limit_word(row.limit.get("concurrency"))),
    Column(
        "delay",
        lambda row: delay_word(row.limit.get("delay"), row.limit.get("jitter")),
        is_spare=True,
    ),
    Column(
        "rate", lambda row: rate_word(row.limit.get("rate"), row.limit.get("burst")), is_spare=True
    ),
    Column(
        "paused",
        lambda row: _marked("paused" if row.paused else NOTHING),
        right=False,
        is_spare=True,
    ),
    name("set by", lambda row: short_name(row.by)),
)


# `status` ----------------------------------------------------------------------------------------


def tables_of(snapshot: Snapshot, where: str, members: bool, nodes: bool, more: str = "") -> Group:
    """The scopes, the nodes of each (`members`) or of all together, and the rules for patterns.

    `where` names the server and the prefix if there is nothing to show, `more` how to see scopes
    that are left out.
    """
    scopes, totals = snapshot.scopes, snapshot.totals
    parts: list[RenderableType] = []
    if snapshot.notice:
        parts.append(Text(snapshot.notice, "yellow"))
    if scopes:
        parts.append(table(SCOPES, scopes))
    if nodes and snapshot.nodes:
        parts.append(table(NODES, snapshot.nodes))
    elif members:
        parts += [_members(row) for row in scopes if row.members]
    if patterns := [rule for rule in snapshot.rules if rule.is_pattern]:
        parts.append(table(PATTERNS, patterns))
    if len(scopes) < totals.scopes:
        shown = f"{len(scopes):,} of {count(totals.scopes, 'scope')}{more}"
        text = f"{shown}; on all {totals.held:,} held, {totals.waiting:,} waiting"
        parts.append(Text(text, "dim"))
    if not parts:
        parts.append(Text(f"No scope is in use at {clean(where)}."))
    lines = [line for part in parts for line in ("", part)]  # empty ones between the parts
    return Group(*lines[1:])


def _members(row: Inspection) -> Group:
    """The jobs and the nodes at a scope."""
    title = Text(clean(row.scope), "bold")
    if not row.jobs:
        return Group(title, table(MEMBERS, row.members))
    return Group(title, table(JOBS, row.jobs), "", table([*MEMBERS, JOB], row.members))
