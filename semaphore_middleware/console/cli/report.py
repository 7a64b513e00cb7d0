"""`scrapy semaphore report`: what was done to a site, and whether the site's log agrees."""

from __future__ import annotations

import argparse
import asyncio
import json
from ipaddress import ip_network
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from semaphore_middleware.console.cli.commands import CommandError, Status, check_installed
from semaphore_middleware.console.cli.connect import admin_of
from semaphore_middleware.console.report import (
    FIGURES,
    as_html,
    as_json,
    figures_of,
    limit_words,
    lists_of,
    moment,
    read_json,
)
from semaphore_middleware.console.verify import Verdict, compare, is_ours, lines_of, opened
from semaphore_middleware.model.history import History, Minute, parse_period
from semaphore_middleware.model.hosts import clean, normal_name

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

NAMED_PAUSES = 20  # the last ones, in text


def add_options(parser: argparse.ArgumentParser, _verb: str) -> None:
    """Declare the options of `report`."""
    add = parser.add_argument
    add("name", metavar="HOST", help="a site's host, or another scope")
    add("--since", metavar="PERIOD", default="7d", help="of the last 7d (default), 12h, 90m...")
    add("--json", action="store_true", help="for machines, and to be checked later by --from")
    add("--html", metavar="FILE", help="write a page that the site's owner can read")
    add("--from", dest="source", metavar="FILE", help="read what --json has written, not a server")
    add("--verify", metavar="LOG", help="compare with the site's access log; - reads it from stdin")
    add("--agent", metavar="TEXT", help="our lines have this in their user agent; else USER_AGENT")
    add("--address", action="append", default=[], help="our lines are of this address or network")


def run(settings: BaseSettings, options: argparse.Namespace) -> int:
    """Print or write the report; with `--verify` the verdict."""
    scope = normal_name(options.name)
    period = parse_period(options.since, "--since")
    if options.source:
        history = _read(options.source, scope)
        if history is None:
            return Status.DECLINED
    else:
        history = asyncio.run(_ask(settings, scope, period))
    if not (history.minutes or history.pauses):
        raise CommandError(f"nothing is known of {clean(options.name)!r}", Status.UNKNOWN)
    if options.html:
        Path(options.html).write_text(as_html(history), "utf-8")
    if options.verify:
        return _verify(settings, options, history)
    if options.json:
        print(json.dumps(as_json(history), indent=1))
    elif not options.html:
        _show(history)
    return Status.DONE


async def _ask(settings: BaseSettings, scope: str, period: float) -> History:
    async with admin_of(settings) as admin:
        return await admin.history(scope, period)


def _read(source: str, scope: str) -> History | None:
    """The history in a file; None, with a word to the user, if the file was edited."""
    try:
        history = read_json(json.loads(Path(source).read_text("utf-8")))
    except OSError as error:
        raise CommandError(f"--from {source}: {error.strerror}", Status.WRONG) from None
    except ValueError as error:
        print(f"The report does not hold: {error}.")
        return None
    if history.scope != scope:
        raise CommandError(f"--from {source}: it is of {history.scope!r}", Status.WRONG)
    return history


# The log ----------------------------------------------------------------------------------------


def _verify(settings: BaseSettings, options: argparse.Namespace, history: History) -> int:
    """Print what does not fit. The exit status says whether anything did not."""
    agent = options.agent or ("" if options.address else settings.get("USER_AGENT") or "")
    try:
        networks = [ip_network(one, strict=False) for one in options.address]
        with opened(options.verify) as log:
            ours = [line for line in lines_of(log) if is_ours(line, agent, networks)]
    except (OSError, ValueError) as error:
        raise CommandError(f"--verify {options.verify}: {error}", Status.WRONG) from None
    if not ours:
        whose = f"the user agent {agent!r}" if agent else "an address given by --address"
        raise CommandError(
            f"--verify {options.verify}: no line has {whose}; say which lines are the crawler's by "
            "--agent or --address",
            Status.WRONG,
        )
    verdict = compare(history, ours)
    _print(verdict)
    return Status.DECLINED if verdict.findings else Status.DONE


def _print(verdict: Verdict) -> None:
    for note in verdict.notes:
        print(f"Note: {note}.")
    for finding in verdict.findings:
        print(f"Does not fit: {finding}.")
    end = f"{len(verdict.findings)} findings" if verdict.findings else "all fit the report"
    print(f"{verdict.lines:,} requests of the log compared: {end}.")


# Text -------------------------------------------------------------------------------------------


def _show(history: History) -> None:
    check_installed("rich", " (report --json and --html do not)")
    from semaphore_middleware.console.cli.tables import Column, Output, table

    rows = [[_hour(one), *figures_of(one)] for one in history.hours()]
    rows.append(["sum", *figures_of(history.sum())])
    columns = [
        Column(title, itemgetter(i), right=i > 0) for i, title in enumerate(("hour", *FIGURES))
    ]
    out = Output()
    period = f"from {moment(history.since)} to {moment(history.until)} UTC"
    out.print(f"{clean(history.scope)} {period}\n", markup=False)
    for line in table(columns, rows, out.width, " "):
        out.print(line)
    for text in _lists(history):
        out.print(f"\n{text}", markup=False)


def _hour(one: Minute) -> str:
    return moment(one.at)[5:13] + "h"


def _limits(history: History) -> list[tuple[str, ...]]:
    """The limits in force, each with the hours in which it was."""
    runs = [(words, [*hours]) for words, hours in groupby(history.hours(), limit_words)]
    return [(f"{_hour(hours[0])} to {_hour(hours[-1])}", words) for words, hours in runs]


def _lists(history: History) -> list[str]:
    """What there is besides numbers, each as a heading with its lines."""
    found = lists_of(history)
    lists: dict[str, list[tuple[str, ...]]] = {
        "limit in force": _limits(history),
        f"pauses ({len(history.pauses)})": found["pauses"][-NAMED_PAUSES:],
        "set by operators": found["changes"],
        "robots.txt, as it was obeyed": [
            (f"{moment(one.at)} to {moment(one.last)}", one.origin) for one in history.robotstxt
        ],
        "requests by job": found["jobs"],
        "ended without saying what they did last": found["ended"],
    }
    return [
        "\n".join([title, *("  ".join(map(clean, row)) for row in rows)])
        for title, rows in lists.items()
        if rows
    ]
