"""`scrapy semaphore report`: what a crawl's nodes did to a site."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import groupby
from math import inf
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
from semaphore_middleware.report.history import (
    CLASSES,
    History,
    Minute,
    ObeyedFile,
    OperatorsPause,
    Pause,
)
from semaphore_middleware.report.reader import read_history

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

MOST_RUNS = 50  # of minutes with the same limit


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `report`."""
    add = parser.add_argument
    add("name", metavar="HOST", help="a site's host, or another scope")
    add("--since", metavar="PERIOD", default="7d", help="the last 7d (default), 12h, 90m...")
    add("--json", action="store_true", help="print JSON")


def run(settings: BaseSettings, options: argparse.Namespace) -> None:
    """Print the report."""
    period = parse_period(options.since, "--since")
    history = do_with_admin(settings, lambda admin: _read(admin, options.name, period))
    if options.json:
        print(json.dumps(as_json(history), indent=1))
    else:
        _show(history)


async def _read(admin: Admin, name: str, period: float) -> History:
    history = await read_history(admin, scope_name(name), period)
    if not (history.minutes or history.pauses):
        await check_form(admin, name)
        raise CommandError(f"nothing is known of {clean(name)!r}", Status.UNKNOWN)
    return history


REPORT = Verb("show what was done to a site", run, add_options)


def as_json(history: History) -> dict[str, Any]:
    """The report for machines. Times are in seconds."""
    return {
        **asdict(history),
        "sum": _minute_as_json(history.sum()),
        "hours": [*map(_minute_as_json, history.hours())],
        "minutes": [*map(_minute_as_json, history.minutes)],
        "ended": [{"node": node, "at": at} for node, at in history.ended],
    }


def _minute_as_json(minute: Minute) -> dict[str, Any]:
    return {name: None if value == inf else value for name, value in asdict(minute).items()}


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


def pause_words(pause: Pause | OperatorsPause) -> tuple[str, str]:
    """The cause of a pause, and when the last request began after it, in words; of an operator's
    pause, who paused the site, and who resumed it.
    """
    if isinstance(pause, OperatorsPause):
        end = "it lasts" if pause.ended_by is None else f"resumed by {pause.ended_by}"
        return f"paused by {pause.by}", end
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
    """The effective limit, and the time between starts, in words."""
    words = [str(part.limit) if part.limit < LIMITLESS else "no limit"]
    if 0 < part.least_interval < inf:
        words.append(f"at least {seconds_of(part.least_interval)} apart")
    if part.least_interval < part.interval < inf:
        words.append(f"one per {seconds_of(part.interval)} on average")
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

    title = "minute" if history.is_short else "hour"
    parts, name = (history.minutes, _minute) if history.is_short else (history.hours(), _hour)
    rows = [[name(part), *figures_of(part)] for part in parts]
    rows.append(["sum", *figures_of(history.sum())])
    columns = [Column(head, itemgetter(i), right=i > 0) for i, head in enumerate((title, *FIGURES))]
    out = Output()
    period = f"from {moment(history.since)} to {moment(history.until)}"
    out.print(f"{clean(history.scope)} {period}\n{HEAD}", markup=False)
    out.print(table(columns, rows, gap=1))
    out.print(f"\n{LEGEND}", markup=False)
    out.print("\n".join(_sections(history)), markup=False, end="")


def _hour(hour: Minute) -> str:
    return moment(hour.at)[5:13] + "h"


def _minute(minute: Minute) -> str:
    return moment(minute.at)[5:16]


def _sections(history: History) -> Iterator[str]:
    """The lists of the report."""
    yield _section(
        "limit of requests at once, and the time between starts",
        _limits(history),
        "A limit that becomes lower ends no request that has begun.",
    )
    pauses: list[Pause | OperatorsPause] = [*history.pauses, *history.operators_pauses]
    pauses.sort(key=lambda pause: pause.at)
    yield _section(
        "pauses",
        [(moment(pause.at), seconds_of(pause.length), *pause_words(pause)) for pause in pauses],
        "In a pause a machine begins no request once it has been notified.",
    )
    yield _section(
        "set by operators",
        [
            (moment(change.at) if change.at else "earlier", change.by, change_words(change))
            for change in history.changes
        ],
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
    yield _section(
        "robots.txt, as it was obeyed",
        _files(history.robotstxt),
        "Each holds until the crawler reads another one.",
    )


def _section(title: str, rows: Iterable[Sequence[str]], note: str = "") -> str:
    """A heading with its rows, and a note that explains them."""
    lines = ["  ".join(map(clean, row)) for row in rows]
    if lines and note:
        lines.append(note)
    return "\n".join([title, *(lines or ["none"]), ""])


def _limits(history: History) -> Iterable[tuple[str, str]]:
    """The effective limits, each with its minutes; with its hours if they change often."""
    rows = [*_runs(history.minutes, _minute)]
    return rows if len(rows) <= MOST_RUNS else _runs(history.hours(), _hour)


def _runs(parts: Iterable[Minute], name: Callable[[Minute], str]) -> Iterator[tuple[str, str]]:
    """The first and the last of parts in a row with the same limit, and the limit in words."""
    known = (part for part in parts if part.limit)
    for words, same in groupby(known, limit_words):
        run = [*same]
        first, last = name(run[0]), name(run[-1])
        yield (first if first == last else f"{first} to {last}"), words


def _files(files: Iterable[ObeyedFile]) -> Iterator[tuple[str, ...]]:
    """The lines of the robots.txt files, each file below its origin, times and status."""
    for file in files:
        what = file.problem or f"status {file.status}"
        end = "" if file.until is None else f" to {moment(file.until)}"
        yield f"from {moment(file.at)}{end}", file.origin, what
        yield from (("", line) for line in file.text.splitlines() or ["(empty)"])
