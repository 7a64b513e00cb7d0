"""Reads the history of a site from the server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from semaphore_middleware.link.scripts import Call, batches, run_scripts
from semaphore_middleware.model.hosts import patterns_for
from semaphore_middleware.model.rules import LoggedChange, Rule
from semaphore_middleware.operators.admin import Admin
from semaphore_middleware.report.history import History, Minute, ObeyedFile, OperatorsPause, Pause
from semaphore_middleware.report.keys import HistoryKeys
from semaphore_middleware.report.records import MINUTE, PAUSE
from semaphore_middleware.report.scripts import READ_HISTORY

HOURS_PER_CALL = 24
SILENT_S = 90.0
"""A node that has not written for this long has ended: a live one writes each minute."""


async def read_history(admin: Admin, scope: str, period: float) -> History:
    """The history of a scope in the last `period` seconds, as far as the server keeps it. The last
    minute may not be in it yet. Changes nothing on the server.

    Raises what `Admin` does.
    """
    changes, rules = await admin.changes(), await admin.rules()
    keys = HistoryKeys(admin.prefix)
    of_all = [
        ("TIME",),
        ("ZRANGE", keys.nodes, 0, -1, "WITHSCORES"),
        ("HGETALL", keys.of_files(scope)),
    ]
    async with admin.connected() as connection:
        (seconds, _), nodes, files = await connection.execute(of_all)
        until = int(seconds)
        hours = range(int(until - period) // 3600, until // 3600 + 1)
        fields: list[tuple[int, Sequence[bytes]]] = []
        for some in batches(hours, HOURS_PER_CALL):
            call = Call(READ_HISTORY, [keys.of_hour(scope, hour) for hour in some], ())
            (replies,) = await run_scripts(connection, [call])
            fields += zip(some, replies, strict=True)
    since = until - period
    minutes, pauses, jobs = _read_hours(fields)
    fitting = [*_fitting(scope, changes, rules)]
    return History(
        scope=scope,
        since=since,
        until=until,
        minutes=tuple(sorted(minute for minute in minutes if since - 60 < minute.at)),
        pauses=tuple(sorted(pause for pause in pauses if since < pause.at)),
        operators_pauses=tuple(_operators_pauses(scope, fitting, since, until)),
        changes=tuple(_effective(fitting, since)),
        robotstxt=tuple(reversed([*_read_files(files)])),
        ended=tuple((node, at) for node, at in _read_nodes(nodes) if since < at < until - SILENT_S),
        jobs=dict(jobs),
    )


def _fitting(
    scope: str, changes: Iterable[LoggedChange], rules: Iterable[Rule]
) -> Iterator[LoggedChange]:
    """The rule changes for a scope. Those of effective rules that are no longer in the log come
    first, with the time 0.
    """
    logged = [change for change in changes if change.fits(scope)]
    names = {change.name for change in logged}
    for rule in rules:
        if rule.fits(scope) and rule.name not in names:
            paused = {} if rule.paused is None else {"paused": rule.paused}
            yield LoggedChange(0.0, rule.name, rule.by, {**rule.limit, **paused})
    yield from logged


def _effective(changes: Sequence[LoggedChange], since: float) -> Iterator[LoggedChange]:
    """The changes after `since`, and before them those whose rules were effective then."""
    last_before = {change.name: change for change in changes if change.at <= since}
    for change in changes:
        if since < change.at or (change.rule and change is last_before[change.name]):
            yield change


def _operators_pauses(
    scope: str, changes: Iterable[LoggedChange], since: float, until: float
) -> Iterator[OperatorsPause]:
    """The times in which operators had paused the scope. The most exact name with the part `paused`
    counts (as in `limit.lua`).
    """
    parts: dict[str, bool | None] = dict.fromkeys((scope, *patterns_for(scope)))  # most exact first
    begun: LoggedChange | None = None
    for change in changes:
        parts[change.name] = change.rule.get("paused")
        is_paused = next((part for part in parts.values() if part is not None), False)
        if is_paused and begun is None:
            begun = change
        elif begun is not None and not is_paused:
            if since < change.at:
                at = begun.at or since
                yield OperatorsPause(at, change.at - at, begun.by, change.by)
            begun = None
    if begun is not None:
        at = begun.at or since
        yield OperatorsPause(at, max(0.0, until - at), begun.by, ended_by=None)


def _read_hours(
    hours: Iterable[tuple[int, Sequence[bytes]]],
) -> tuple[list[Minute], list[Pause], Counter[str]]:
    """The minutes, the pauses and the requests by job, from the fields of hours."""
    minutes: list[Minute] = []
    pauses: list[Pause] = []
    jobs = Counter[str]()
    for hour, fields in hours:
        for name, value in zip(fields[::2], fields[1::2], strict=True):
            kind, _, rest = name.decode().partition(":")
            if kind == "job":
                jobs[rest or "-"] += int(value)
            elif kind == "pause":
                pauses += _read_pause(int(rest), *PAUSE.unpack_from(value))
            else:
                minutes.append(Minute(3600 * hour + 60 * int(kind), *MINUTE.values(value)))
    return minutes, pauses, jobs


def _read_pause(
    at: int, length: float, asked: float, refused: float, last: float
) -> Iterator[Pause]:
    """The pause, unless its cause is unknown, as the node that saw it was killed too early."""
    if refused >= 0:
        times = at / 1000, length / 1000, asked / 1000
        yield Pause(*times, refused == 1, last / 1000 if last >= 0 else None)


def _read_nodes(reply: Sequence[bytes]) -> Iterator[tuple[str, float]]:
    """Nodes without a last batch, each with the time of its newest one."""
    for node, at in zip(reply[::2], reply[1::2], strict=True):
        yield node.decode(), float(at) / 1000


def _read_files(files: Sequence[bytes]) -> Iterator[ObeyedFile]:
    """The robots.txt files of a host, the newest first."""
    known = dict(zip(files[::2], files[1::2], strict=True))
    until: dict[str, float] = {}  # by origin
    for name in sorted(known, reverse=True):
        time, _, origin = name.decode().partition(" ")
        if time.isdigit():
            at = int(time) / 1000
            yield ObeyedFile.read(at, until.get(origin), origin, known[name])
            until[origin] = at
