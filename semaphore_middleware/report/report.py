"""`scrapy semaphore report`: what a crawl's nodes did to a site."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from semaphore_middleware.model.hosts import clean, scope_name
from semaphore_middleware.model.limits import BY_NAME, LIMITLESS
from semaphore_middleware.model.rules import LoggedChange, Rule
from semaphore_middleware.model.validation import parse_period
from semaphore_middleware.operators.admin import Admin
from semaphore_middleware.operators.formatting import rule_words
from semaphore_middleware.operators.snapshot import check_form
from semaphore_middleware.operators.verbs import (
    CommandError,
    Status,
    Verb,
    check_installed,
    do_with_admin,
)
from semaphore_middleware.report.history import CLASSES, History, Minute, ObeyedFile, Pause
from semaphore_middleware.report.reader import read_history

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

DEFAULT_PERIOD = "7d"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `report`."""
    add = parser.add_argument
    add("name", metavar="HOST", help="a site's host, or another scope")
    add("--since", metavar="PERIOD", help=f"the last {DEFAULT_PERIOD} (default), 12h, 90m...")
    add("--json", action="store_true", help="print JSON")


def run(settings: BaseSettings, options: argparse.Namespace) -> None:
    """Print the report."""
    scope = scope_name(options.name)
    period = parse_period(DEFAULT_PERIOD if options.since is None else options.since, "--since")
    history = do_with_admin(settings, lambda admin: _read(admin, options.name, scope, period))
    if options.json:
        print(json.dumps(as_json(history), indent=1))
    else:
        _show(history)


async def _read(admin: Admin, name: str, scope: str, period: float) -> History:
    history = await read_history(admin, scope, period)
    if not (history.minutes or history.pauses):
        await check_form(admin, name)
        raise CommandError(f"nothing is known of {clean(name)!r}", Status.UNKNOWN)
    return history


REPORT = Verb("show what was done to a site", run, add_options)


def as_json(history: History) -> dict[str, Any]:
    """The report for machines. Times are in seconds."""
    return {
        **asdict(history),
        "sum": asdict(history.sum()),
        "hours": [asdict(hour) for hour in history.hours()],
        "ended": [{"node": node, "at": at} for node, at in history.ended],
    }


# Values as text ---------------------------------------------------------------------------------


def moment(at: float) -> str:
    """A Unix time as text, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def size_of(size: float) -> str:
    """Bytes as text: 999 B, 1.2 kB, 3.4 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def seconds_of(seconds: float) -> str:
    """A time in seconds, to the millisecond: 0.012 s, 3 s."""
    return f"{round(seconds, 3):g} s"


def pause_words(pause: Pause) -> tuple[str, str]:
    """The cause of a pause, and when the last request began after it, in words."""
    cause = "the site refused a request" if pause.refused else "the site did not respond in time"
    if pause.asked:
        asked = f"asked for {seconds_of(pause.asked)} without requests"
        cause = f"the site refused a request and {asked}" if pause.refused else f"the site {asked}"
    if not pause.last_start:
        return cause, "no request began after it"
    return cause, f"the last request began {seconds_of(pause.last_start)} after it"


def change_words(change: LoggedChange) -> str:
    """An operator's change of a rule, in words."""
    limit = {part: value for part, value in change.rule.items() if part in BY_NAME}
    rule = Rule(change.name, change.by, limit, change.rule.get("paused"))
    return f"{rule_words(rule)} for {change.name}"


def limit_words(part: Minute) -> str:
    """The effective limit, and the nodes' delay and rate, in words."""
    words = [str(part.limit) if part.limit < LIMITLESS else "no limit"]
    if part.delay:
        words.append(f"{seconds_of(part.delay)} apart")
    if part.interval:
        words.append(f"one per {seconds_of(part.interval)}")
    return ", ".join(words)


# Text -------------------------------------------------------------------------------------------

HEAD = """\
What one crawler did there, on all of its machines together. All times are UTC.
"""
LEGEND = """\
at once  requests for which the crawler held a permit: none is open without one
in 1 s   requests that began in the same second
none     requests without a response
refused  responses that asked for fewer requests, such as status 429
"""
FIGURES = ("requests", "at once", "in 1 s", "bytes", *CLASSES.values(), "none", "refused")


def figures_of(part: Minute) -> list[str]:
    """The values of `FIGURES` in an hour or in all hours."""
    begun = (part.requests, part.most, part.starts, size_of(part.size))
    by_class = [getattr(part, name) for name in CLASSES]
    return [*map(str, (*begun, *by_class, part.silent, part.refused))]


def _show(history: History) -> None:
    check_installed("rich", " (report --json works without it)")
    from semaphore_middleware.operators.tables import Column, Output, table

    rows = [[_hour(hour), *figures_of(hour)] for hour in history.hours()]
    rows.append(["sum", *figures_of(history.sum())])
    columns = [
        Column(title, itemgetter(i), right=i > 0) for i, title in enumerate(("hour", *FIGURES))
    ]
    out = Output()
    period = f"from {moment(history.since)} to {moment(history.until)}"
    out.print(f"{clean(history.scope)} {period}\n{HEAD}", markup=False)
    out.print(table(columns, rows, gap=1))
    out.print(f"\n{LEGEND}", markup=False)
    out.print("\n".join(_sections(history)), markup=False, end="")


def _hour(hour: Minute) -> str:
    return moment(hour.at)[5:13] + "h"


def _sections(history: History) -> Iterator[str]:
    """The lists of the report."""
    yield _section("limit of requests at once, and the time between starts", _limits(history))
    yield _section(
        "pauses",
        [
            (moment(pause.at), seconds_of(pause.length), *pause_words(pause))
            for pause in history.pauses
        ],
        "In a pause a machine begins no request once it has been notified.",
    )
    yield _section(
        "set by operators",
        [(moment(change.at), change.by, change_words(change)) for change in history.changes],
        "At all other times the limits are those of the crawl's settings.",
    )
    yield _section(
        "requests by job",
        [(job, f"{count:,}") for job, count in sorted(history.jobs.items())],
        f"In whole hours: in the first one, also those before {moment(history.since)}.",
    )
    yield _section(
        "processes that ended unannounced, and when each last wrote",
        [(moment(at), node) for node, at in history.ended],
        "Each writes once a minute: its last requests may not be counted here.",
    )
    yield _section("robots.txt, as it was obeyed", _files(history.robotstxt))


def _section(title: str, rows: Iterable[Sequence[str]], note: str = "") -> str:
    """A heading with its rows, and a note that explains them."""
    lines = ["  ".join(map(clean, row)) for row in rows]
    if lines and note:
        lines.append(note)
    return "\n".join([title, *(lines or ["none"]), ""])


def _limits(history: History) -> list[tuple[str, ...]]:
    """The effective limits, each with its hours."""
    runs = [(words, [*hours]) for words, hours in groupby(history.hours(), limit_words)]
    return [(f"{_hour(hours[0])} to {_hour(hours[-1])}", words) for words, hours in runs]


def _files(files: Iterable[ObeyedFile]) -> Iterator[tuple[str, ...]]:
    """The lines of the robots.txt files, each file below its origin, times and status."""
    for file in files:
        what = file.problem or f"status {file.status}"
        yield f"{moment(file.at)} to {moment(file.last)}", file.origin, what
        yield from (("", line) for line in file.text.splitlines() or ["(empty)"])
