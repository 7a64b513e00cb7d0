"""`scrapy semaphore report`: a crawl's requests to a site, and a comparison with the site's log."""

from __future__ import annotations

import argparse
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from html import escape
from importlib import resources
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from semaphore_middleware.commands.formatting import count, rule_words
from semaphore_middleware.commands.verbs import (
    CommandError,
    Status,
    Verb,
    check_installed,
    do_with_admin,
)
from semaphore_middleware.model.hosts import clean, scope_name
from semaphore_middleware.model.limits import BY_NAME, LIMITLESS
from semaphore_middleware.model.rules import LoggedChange, Rule
from semaphore_middleware.model.validation import parse_period
from semaphore_report.history import (
    CLASSES,
    History,
    Minute,
    ObeyedFile,
    Pause,
)
from semaphore_report.reader import read_history
from semaphore_report.verify import LogLine, Verdict, is_ours, lines_of, network_of, opened

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

NAMED_PAUSES = 20  # the last ones, in text
HOUR_S = 3600
DEFAULT_PERIOD = "7d"
CHART = (720, 120)  # width and height of a chart, in its own units


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `report`."""
    add = parser.add_argument
    add("name", metavar="HOST", help="a site's host, or another scope")
    add("--since", metavar="PERIOD", help=f"of the last {DEFAULT_PERIOD} (default), 12h, 90m...")
    add("--json", action="store_true", help="print JSON, which --from can read")
    add("--html", metavar="FILE", help="write a page that the site's owner can read")
    add("--from", dest="source", metavar="FILE", help="read the output of --json, not a server")
    add("--verify", metavar="LOG", help="compare with the site's access log; - reads it from stdin")
    add(
        "--agent",
        metavar="TEXT",
        help="the crawler's user agent contains this (default: USER_AGENT)",
    )
    add("--address", action="append", default=[], help="the crawler's address or network")


def run(settings: BaseSettings, options: argparse.Namespace) -> int:
    """Print or write the report; with `--verify` the verdict."""
    _check_options(options)
    scope = scope_name(options.name)
    period = parse_period(DEFAULT_PERIOD if options.since is None else options.since, "--since")
    if options.source:
        history = _read(options.source, scope)
        if history is None:
            return Status.DECLINED
    else:
        history = do_with_admin(settings, lambda admin: read_history(admin, scope, period))
    if not (history.minutes or history.pauses):
        raise CommandError(f"nothing is known of {clean(options.name)!r}", Status.UNKNOWN)
    if options.html:
        try:
            Path(options.html).write_text(as_html(history), "utf-8")
        except OSError as error:
            raise CommandError(f"--html {options.html}: {error.strerror}", Status.WRONG) from None
    if options.verify:
        return _verify(settings, options, history)
    if options.json:
        print(json.dumps(as_json(history), indent=1))
    elif not options.html:
        _show(history)
    return Status.DONE


def _check_options(options: argparse.Namespace) -> None:
    """Refuse options that would have no effect beside the others."""
    if options.verify and options.json:
        raise CommandError("give --verify or --json, not both", Status.WRONG)
    if options.source and options.since is not None:
        raise CommandError("give --from or --since, not both", Status.WRONG)
    if not options.verify and (options.agent or options.address):
        raise CommandError("--agent and --address are only for --verify", Status.WRONG)


def _read(source: str, scope: str) -> History | None:
    """The history in a file; None, with a printed message, if the file was edited."""
    try:
        report = json.loads(Path(source).read_text("utf-8"))
        history = read_json(report)
        again = as_json(history)
    except OSError as error:
        raise CommandError(f"--from {source}: {error.strerror}", Status.WRONG) from None
    except (ValueError, LookupError, TypeError, AttributeError):
        text = f"--from {source}: it is not a report written by --json"
        raise CommandError(text, Status.WRONG) from None
    if any(report.get(part) != again[part] for part in ("sum", "hours")):
        print(f"--from {source}: the report was edited: its sums do not follow from its minutes.")
        return None
    if history.scope != scope:
        raise CommandError(f"--from {source}: it is of {history.scope!r}", Status.WRONG)
    return history


REPORT = Verb(
    "show what was done to a site, or compare it with the site's own log", run, add_options
)


# The log ----------------------------------------------------------------------------------------


def _verify(settings: BaseSettings, options: argparse.Namespace, history: History) -> int:
    """Print the differences between log and report. Any difference is an error status."""
    agent = options.agent or ("" if options.address else settings.get("USER_AGENT") or "")
    networks = [network_of(address, strict=False) for address in options.address]
    try:
        ours: list[LogLine] = []
        unread = 0
        with opened(options.verify) as log:
            for line in lines_of(log):
                if line is None:
                    unread += 1
                elif is_ours(line, agent, networks):
                    ours.append(line)
    except (OSError, EOFError, zlib.error) as error:
        text = f"--verify {options.verify}: {getattr(error, 'strerror', None) or error}"
        raise CommandError(text, Status.WRONG) from None
    others = f"lines in another format than the common or the combined one: {unread:,}"
    if not ours:
        whose = f"the user agent {agent!r}" if agent else "an address given by --address"
        raise CommandError(
            f"--verify {options.verify}: no line has {whose}; say which lines are the crawler's by "
            f"--agent or --address" + (f" ({others})" if unread else ""),
            Status.WRONG,
        )
    verdict = Verdict(history, ours)
    if unread:
        verdict.notes.insert(0, f"{others}; they were not compared")
    for note in verdict.notes:
        print(f"Note: {note}.")
    for finding in verdict.findings:
        print(f"Does not fit: {finding}.")
    findings = count(len(verdict.findings), "finding")
    end = findings if verdict.findings else "all fit the report"
    print(f"{count(verdict.lines, 'request')} of the log compared: {end}.")
    return Status.DECLINED if verdict.findings else Status.DONE


# JSON ---------------------------------------------------------------------------------------------


def as_json(history: History) -> dict[str, Any]:
    """The report for machines: its sums follow from its minutes. Times are in seconds."""
    return {
        **asdict(history),
        "sum": asdict(history.sum()),
        "hours": [asdict(hour) for hour in history.hours()],
        "ended": [{"node": node, "at": at} for node, at in history.ended],
    }


def read_json(report: Any) -> History:
    """The history in a report for machines."""
    return History(
        scope=report["scope"],
        since=report["since"],
        until=report["until"],
        minutes=tuple(Minute(**fields) for fields in report["minutes"]),
        pauses=tuple(Pause(**fields) for fields in report["pauses"]),
        changes=tuple(LoggedChange(**fields) for fields in report["changes"]),
        robotstxt=tuple(ObeyedFile(**fields) for fields in report["robotstxt"]),
        ended=tuple((fields["node"], fields["at"]) for fields in report["ended"]),
        jobs=report["jobs"],
    )


# Values as text ---------------------------------------------------------------------------------


def moment(at: float) -> str:
    """A time, in UTC."""
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
    """The cause of a pause, and the last request begun after it."""
    cause = "the site refused a request" if pause.refused else "the site did not respond in time"
    if pause.asked:
        asked = f"asked for {seconds_of(pause.asked)} without requests"
        cause = f"the site refused a request and {asked}" if pause.refused else f"the site {asked}"
    if not pause.last_start:
        return cause, "no request began after it"
    return cause, f"the last request began {seconds_of(pause.last_start)} after it"


def change_words(change: LoggedChange) -> str:
    """An operator's change of a rule."""
    limit = {part: value for part, value in change.rule.items() if part in BY_NAME}
    rule = Rule(change.name, by="", limit=limit, paused=change.rule.get("paused"))
    return f"{rule_words(rule)} for {change.name}"


def limit_words(part: Minute) -> str:
    """The limit in force, and the delay and rate of the nodes' settings."""
    words = [str(part.limit) if part.limit < LIMITLESS else "no limit"]
    if part.gap:
        words.append(f"{seconds_of(part.gap)} apart")
    if part.interval:
        words.append(f"one per {seconds_of(part.interval)}")
    return ", ".join(words)


FIGURES = ("requests", "at once", "in 1 s", "bytes", *CLASSES.values(), "none", "refused")


def figures_of(part: Minute) -> list[str]:
    """The values of `FIGURES` in an hour or in all hours."""
    begun = (part.requests, part.most, part.starts, size_of(part.size))
    by_class = [getattr(part, name) for name in CLASSES]
    return [*map(str, (*begun, *by_class, part.silent, part.refused))]


def lists_of(history: History) -> dict[str, list[tuple[str, ...]]]:
    """The lists of the report besides figures and robots.txt, each as rows of text."""
    return {
        "pauses": [
            (moment(pause.at), seconds_of(pause.length), *pause_words(pause))
            for pause in history.pauses
        ],
        "changes": [
            (moment(change.at), change.rule.get("by", ""), change_words(change))
            for change in history.changes
        ],
        "jobs": [(job, f"{count:,}") for job, count in sorted(history.jobs.items())],
        "ended": [(moment(at), node) for node, at in history.ended],
    }


# Text -------------------------------------------------------------------------------------------


def _show(history: History) -> None:
    check_installed("rich", " (report --json and --html do not)")
    from semaphore_middleware.commands.tables import Column, Output, table

    rows = [[_hour(hour), *figures_of(hour)] for hour in history.hours()]
    rows.append(["sum", *figures_of(history.sum())])
    columns = [
        Column(title, itemgetter(i), right=i > 0) for i, title in enumerate(("hour", *FIGURES))
    ]
    out = Output()
    period = f"from {moment(history.since)} to {moment(history.until)} UTC"
    out.print(f"{clean(history.scope)} {period}\n", markup=False)
    out.print(table(columns, rows, gap=1))
    for text in _lists(history):
        out.print(f"\n{text}", markup=False)


def _hour(hour: Minute) -> str:
    return moment(hour.at)[5:13] + "h"


def _limits(history: History) -> list[tuple[str, ...]]:
    """The limits in force, each with its hours."""
    runs = [(words, [*hours]) for words, hours in groupby(history.hours(), limit_words)]
    return [(f"{_hour(hours[0])} to {_hour(hours[-1])}", words) for words, hours in runs]


def _lists(history: History) -> list[str]:
    """The lists of the report, each as a heading with its lines."""
    found = lists_of(history)
    lists: dict[str, list[tuple[str, ...]]] = {
        "limit in force": _limits(history),
        f"pauses ({len(history.pauses)})": found["pauses"][-NAMED_PAUSES:],
        "set by operators": found["changes"],
        "robots.txt, as it was obeyed": [
            (f"{moment(file.at)} to {moment(file.last)}", file.origin) for file in history.robotstxt
        ],
        "requests by job, in whole hours": found["jobs"],
        "ended without writing what they did last": found["ended"],
    }
    texts = []
    for title, rows in lists.items():
        if rows:
            lines = ["  ".join(map(clean, row)) for row in rows]
            texts.append("\n".join([title, *lines]))
    return texts


# The page ---------------------------------------------------------------------------------------


def as_html(history: History) -> str:
    """The report as one self-contained page: charts by hour, tables, and a glossary."""
    template = resources.files(__package__).joinpath("report.html")
    total = history.sum()
    hours = history.hours()
    return Template(template.read_text("utf-8")).substitute(
        scope=escape(history.scope),
        since=moment(history.since),
        until=moment(history.until),
        requests=f"{total.requests:,}",
        most=total.most,
        starts=total.starts,
        size=size_of(total.size),
        refused=f"{total.refused:,}",
        limit=escape(limit_words(total)),
        chart_requests=_chart(history, {hour.at: hour.requests for hour in hours}),
        chart_most=_chart(history, {hour.at: hour.most for hour in hours}),
        hours=_rows([moment(hour.at)[:16], *figures_of(hour), limit_words(hour)] for hour in hours),
        robotstxt="".join(map(_file_as_html, history.robotstxt)) or "<p>None.</p>",
        **{name: _rows(rows) for name, rows in lists_of(history).items()},
    )


def _rows(rows: Iterable[Sequence[str]]) -> str:
    lines = [map(escape, row) for row in rows]
    cells = "".join(f"<tr><td>{'</td><td>'.join(line)}</td></tr>" for line in lines)
    return cells or '<tr><td colspan="99">None.</td></tr>'


def _file_as_html(file: ObeyedFile) -> str:
    text = escape(file.text) or "(empty, or none: all is allowed)"
    what = escape(file.problem or f"status {file.status}")
    return (
        f"<details><summary>{escape(file.origin)}/robots.txt since {moment(file.at)}, "
        f"last fetched {moment(file.last)}: {what}</summary><pre>{text}</pre></details>"
    )


def _chart(history: History, values: Mapping[int, int]) -> str:
    """A bar chart as SVG, with a bar for each hour; the title of a bar is its number."""
    width, height = CHART
    first = int(history.since) // HOUR_S * HOUR_S
    step = width / ((int(history.until) - first) // HOUR_S + 1)
    highest = max(values.values(), default=0) or 1
    bars = "".join(
        f'<rect x="{(at - first) / HOUR_S * step:.2f}" width="{max(step * 0.9, 0.5):.2f}" '
        f'y="{height * (1 - value / highest):.2f}" height="{height * value / highest:.2f}">'
        f"<title>{moment(at)[:16]} UTC: {value:,}</title></rect>"
        for at, value in values.items()
    )
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" preserveAspectRatio="none">{bars}</svg>'
        f"<p class=soft><span>{moment(history.since)[:16]}</span> "
        f"<span>highest: {highest:,}</span> "
        f"<span>{moment(history.until)[:16]}</span></p>"
    )
