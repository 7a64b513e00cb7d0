"""The tables of `scrapy semaphore status`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from semaphore_middleware.console.cli.formatting import (
    NOTHING,
    clean,
    held_of,
    limit_word,
    set_time,
    time_of,
    time_or_nothing,
    without_letters,
)
from semaphore_middleware.console.cli.output import Column, Paper, table
from semaphore_middleware.console.snapshot import by_node, in_order, longest_wait
from semaphore_middleware.model.inspection import Inspection
from semaphore_middleware.model.rules import Rule


def show(seen: Sequence[Inspection], rules: Sequence[Rule], members: bool, nodes: bool) -> None:
    """Print the scopes, their permits one by one or by node, and what is set for patterns."""
    out = Paper()
    sheets = [scopes(seen, out.width)]
    if nodes:
        sheets.append(of_nodes(seen, out.width))
    elif members:
        sheets += [permits(one, out.width) for one in in_order(seen)]
    sheets.append(patterns([rule for rule in rules if rule.is_pattern], out.width))
    lines = [line for sheet in sheets if sheet for line in (*sheet, Text())][:-1]
    for line in lines or [Text("No scope is in use.")]:
        out.print(line)


def scopes(seen: Sequence[Inspection], width: int) -> list[Text]:
    columns = [
        Column("scope", is_name=True),
        *(Column(title, right=True) for title in ("held", "waiting", "longest")),
        *(Column(title, right=True, is_spare=True) for title in ("delay", "next", "backoff")),
        Column("paused", is_spare=True),
        Column("set by", is_name=True, is_spare=True),
    ]
    rows = [
        (
            clean(one.scope),
            held_of(one),
            str(len(one.waiters)),
            time_or_nothing(longest_wait(one)),
            set_time(one.delay) if one.delay else NOTHING,
            time_or_nothing(one.next_start),
            _marked(time_or_nothing(one.backoff_left)),
            _marked("paused" if one.paused else NOTHING),
            _operator(one.set_by),
        )
        for one in in_order(seen)
    ]
    return table(columns, rows, width) if rows else []


def permits(one: Inspection, width: int) -> list[Text]:
    """Of one scope: who holds, and who waits, in the order of the line."""
    members = [("holds", member) for member in one.holders]
    members += [(f"waits, {place}", member) for place, member in enumerate(one.waiters, 1)]
    rows = [
        (what, clean(member.node), time_of(member.age), time_of(member.lease_left))
        for what, member in members
    ]
    columns = [
        Column("permit"),
        Column("node", is_name=True),
        Column("age", right=True),
        Column("lease left", right=True),
    ]
    return [Text(clean(one.scope), "bold"), *table(columns, rows, width)] if rows else []


def of_nodes(seen: Sequence[Inspection], width: int) -> list[Text]:
    titles = ("held", "waiting", "scopes", "oldest", "longest", "lease left")
    columns = [Column("node", is_name=True), *(Column(title, right=True) for title in titles)]
    rows = [
        (
            clean(one.node),
            str(len(one.holders)),
            str(len(one.waiters)),
            str(len(one.scopes)),
            time_or_nothing(one.oldest),
            time_or_nothing(one.longest_wait),
            time_of(one.lease_left),
        )
        for one in by_node(seen)
    ]
    return table(columns, rows, width) if rows else []


def patterns(rules: Sequence[Rule], width: int) -> list[Text]:
    """What operators have set for all hosts below one; of a scope, its row says it."""
    columns = [
        Column("pattern", is_name=True),
        Column("limit", right=True),
        Column("delay", right=True),
        Column("paused"),
        Column("set by", is_name=True),
    ]
    rows = [
        (
            clean(rule.name),
            NOTHING if rule.concurrency is None else limit_word(rule.concurrency),
            NOTHING if rule.delay is None else set_time(rule.delay),
            _marked("paused") if rule.paused else NOTHING,
            _operator(rule.by),
        )
        for rule in rules
    ]
    return table(columns, rows, width) if rows else []


def _marked(word: str) -> Text | str:
    """What keeps a site from going on."""
    return word if word == NOTHING else Text(word, "yellow")


def _operator(name: str | None) -> str:
    return clean(without_letters(name)) if name else NOTHING
