"""What was done to a site, as JSON for machines, and as a page that its owner can read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from html import escape
from importlib import resources
from string import Template
from typing import Any

from semaphore_middleware.console.cli.formatting import rule_words
from semaphore_middleware.core.robotstxt import RobotsTxt
from semaphore_middleware.model.history import (
    CLASSES,
    Change,
    History,
    Minute,
    ObeyedFile,
    Pause,
)
from semaphore_middleware.model.limits import LIMITLESS
from semaphore_middleware.model.rules import LIMIT_PARTS, Rule

HOUR_S = 3600
CHART = (720, 120)  # width and height of a chart, in its own units


def as_json(history: History) -> dict[str, Any]:
    """The report for machines: its sums follow from its minutes. Times are in seconds."""
    return {
        **asdict(history),
        "sum": asdict(history.sum()),
        "hours": [asdict(one) for one in history.hours()],
        "robotstxt": [_file_of(one) for one in history.robotstxt],
        "ended": [{"node": node, "at": at} for node, at in history.ended],
    }


def _file_of(one: ObeyedFile) -> dict[str, Any]:
    robotstxt = RobotsTxt.unpack(one.packed) or RobotsTxt()
    return {
        "origin": one.origin,
        "at": one.at,
        "last": one.last,
        "status": robotstxt.status,
        "problem": robotstxt.problem,
        "text": robotstxt.text.decode("utf-8", "replace"),
    }


def read_json(report: Any) -> History:
    """The history in a report for machines. Raises `ValueError` if it is none, or was edited: its
    sums do not follow from its minutes.
    """
    try:
        history = History(
            scope=report["scope"],
            since=report["since"],
            until=report["until"],
            minutes=tuple(Minute(**one) for one in report["minutes"]),
            pauses=tuple(Pause(**one) for one in report["pauses"]),
            changes=tuple(Change(**one) for one in report["changes"]),
            robotstxt=(),
            ended=tuple((one["node"], one["at"]) for one in report["ended"]),
            jobs=report["jobs"],
        )
        again = as_json(history)
        is_same = all(report[name] == again[name] for name in ("sum", "hours"))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is no report ({type(error).__name__}: {error})") from None
    if not is_same:
        raise ValueError("its sums do not follow from its minutes: it was edited")
    return history


# Words ------------------------------------------------------------------------------------------


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
    """A time in seconds, as exact as it is known: 0.012 s, 3 s."""
    return f"{round(seconds, 3):g} s"


def pause_words(pause: Pause) -> tuple[str, str]:
    """Why a pause began, and how it was kept."""
    cause = "the site refused a request" if pause.refused else "the site did not respond in time"
    if pause.asked:
        asked = f"asked for {seconds_of(pause.asked)} without requests"
        cause = f"the site refused a request and {asked}" if pause.refused else f"the site {asked}"
    if pause.last_start is None or pause.last_start <= 0:
        return cause, "no request began after it"
    return cause, f"the last request began {seconds_of(pause.last_start)} after it"


def change_words(change: Change) -> str:
    """What an operator has set."""
    parts: dict[str, Any] = {part: change.rule.get(part) for part in (*LIMIT_PARTS, "paused")}
    return f"{rule_words(Rule(change.name, by='', **parts))} for {change.name}"


def limit_words(part: Minute) -> str:
    """The limit in force, and the pace that the nodes' settings ask for."""
    words = [str(part.limit) if part.limit < LIMITLESS else "no limit"]
    if part.gap:
        words.append(f"{seconds_of(part.gap)} apart")
    if part.interval:
        words.append(f"one per {seconds_of(part.interval)}")
    return ", ".join(words)


FIGURES = ("requests", "at once", "in 1 s", "bytes", *CLASSES.values(), "none", "refused")


def figures_of(part: Minute) -> list[str]:
    """What `FIGURES` name, of an hour or of all."""
    begun = (part.requests, part.most, part.starts, size_of(part.size))
    ended = (*(getattr(part, name) for name in CLASSES), part.silent, part.refused)
    return [*map(str, (*begun, *ended))]


def lists_of(history: History) -> dict[str, list[tuple[str, ...]]]:
    """What there is besides figures and robots.txt, each a list of rows."""
    return {
        "pauses": [
            (moment(one.at), seconds_of(one.length), *pause_words(one)) for one in history.pauses
        ],
        "changes": [
            (moment(one.at), one.rule.get("by", ""), change_words(one)) for one in history.changes
        ],
        "jobs": [(job, f"{count:,}") for job, count in sorted(history.jobs.items())],
        "ended": [(moment(at), node) for node, at in history.ended],
    }


# The page ---------------------------------------------------------------------------------------


def as_html(history: History) -> str:
    """One page that needs nothing else: charts by hour, tables, and what each word means."""
    template = resources.files(__package__).joinpath("report.html")
    total, hours = history.sum(), history.hours()
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
        chart_requests=_chart(history, {one.at: one.requests for one in hours}),
        chart_most=_chart(history, {one.at: one.most for one in hours}),
        hours=_rows([moment(one.at)[:16], *figures_of(one), limit_words(one)] for one in hours),
        robotstxt="".join(map(_file_as_html, map(_file_of, history.robotstxt))) or "<p>None.</p>",
        **{name: _rows(rows) for name, rows in lists_of(history).items()},
    )


def _rows(rows: Iterable[Sequence[str]]) -> str:
    lines = [map(escape, row) for row in rows]
    cells = "".join(f"<tr><td>{'</td><td>'.join(line)}</td></tr>" for line in lines)
    return cells or '<tr><td colspan="99">None.</td></tr>'


def _file_as_html(file: Mapping[str, Any]) -> str:
    text = escape(file["text"]) or "(empty, or none: all is allowed)"
    what = escape(file["problem"]) or f"status {file['status']}"
    return (
        f"<details><summary>{escape(file['origin'])}/robots.txt since {moment(file['at'])}, "
        f"last fetched {moment(file['last'])}: {what}</summary><pre>{text}</pre></details>"
    )


def _chart(history: History, values: Mapping[int, int]) -> str:
    """A bar for each hour, as SVG; each has its number as a title."""
    width, height = CHART
    first = int(history.since) // HOUR_S * HOUR_S
    step = width / max(1, (int(history.until) - first) // HOUR_S + 1)
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
