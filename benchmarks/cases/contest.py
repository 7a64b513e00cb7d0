"""Four processes with eight clients each at a full site: permits a second, and what one costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks import rivals
from benchmarks.harness.bare import ONE_PROCESS, TOKEN_LIST
from benchmarks.harness.contender import OURS, Place
from benchmarks.harness.contest import Join, Result, contest, in_python
from benchmarks.harness.report import Cell, Goal, Report
from tests.support.servers import RedisServer

CLIENTS = 8  # of each process
LIMIT = 5
WORK_S = 0.002
POSSIBLE = LIMIT / WORK_S  # permits a second, were no time lost between two
COLUMNS = (
    "semaphore",
    "permits a second",
    f"share of {POSSIBLE:,.0f}",
    "times asyncio.Semaphore's",
    "most at once",
    "server, us a permit",
    "commands a permit",
    "clients, us a permit",
)


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one round; all but the first and the last of a permit."""

    rate: float  # permits a second
    server_us: float
    commands: float
    clients_us: float
    most: int


def measure(quick: bool) -> Report:
    rivals.check_installed()
    rounds, processes, seconds = (1, 2, 0.3) if quick else (5, 4, 3.0)
    clients = processes * (CLIENTS,)
    joins, peers = _contenders()
    found: dict[str, list[Figures]] = {name: [] for name in joins}
    server = RedisServer().start()
    try:
        names = list(joins)
        for number in range(rounds):
            for name in names:
                # The yardstick is of one process, so all clients are in that.
                each = (sum(clients),) if name == ONE_PROCESS.name else clients
                place = Place(str(server.path), f"contest-{number}-{name}", LIMIT)
                result = contest(server, joins[name], place, each, WORK_S, seconds)
                found[name].append(_figures(result, seconds))
            names.reverse()  # none is always the first
    finally:
        server.remove()
    ours = found[OURS.name]
    quickest = [max(found[peer][number].rate for peer in peers) for number in range(rounds)]
    times = median(own.rate / peer for own, peer in zip(ours, quickest, strict=True))
    goals = [
        Goal("permits a second, times the quickest peer's", times, at_least=1.2),
        Goal(
            "share of what limit and work allow",
            median(own.rate for own in ours) / POSSIBLE,
            at_least=0.9,
        ),
        Goal("server time, us a permit", median(own.server_us for own in ours), at_most=10),
        Goal("commands a permit", median(own.commands for own in ours), at_most=1),
        Goal("most at once", max(own.most for own in ours), at_most=LIMIT),
    ]
    how = (
        f"{processes} processes with {CLIENTS} clients each, limit {LIMIT}, "
        f"{1000 * WORK_S:g} ms of work with each permit (asyncio.sleep, whose timers are late: "
        f"hence the row of an asyncio.Semaphore with all {sum(clients)} clients in one process). "
        f"Medians of {rounds} rounds of {seconds:g} s, in turn, after a start that does not count."
    )
    what = (
        "Ours: a node a process. Commands: sent, and run by scripts. At once: by the clients' own "
        "clock. A bare RPUSH and BLPOP keeps no lease: what a process held when it died is gone."
    )
    rows = [_row(name, figures, found[ONE_PROCESS.name]) for name, figures in found.items()]
    if rivals.npm() is None:
        rows.append([f"{rivals.NPM_NAME}: left out", *[None] * (len(COLUMNS) - 1)])
    notes = [how, what, f"Peers: {rivals.versions()}.", f"{rivals.npm_versions()}."]
    return Report("contest: who serves a full site quickest", COLUMNS, rows, goals, notes)


def _contenders() -> tuple[Mapping[str, Join], Sequence[str]]:
    """All who take part, and the names of the peers among them."""
    peers = {contender.name: in_python(contender) for contender in rivals.contenders()}
    if npm := rivals.npm():
        peers[rivals.NPM_NAME] = npm
    others = {contender.name: in_python(contender) for contender in (TOKEN_LIST, ONE_PROCESS)}
    return {OURS.name: in_python(OURS), **peers, **others}, list(peers)


def _figures(result: Result, seconds: float) -> Figures:
    permits = len(result.counted)
    return Figures(
        permits / seconds,
        result.server.seconds * 1e6 / permits,
        result.server.commands / permits,
        result.client_seconds * 1e6 / permits,
        result.most,
    )


def _row(name: str, figures: Sequence[Figures], yardstick: Sequence[Figures]) -> list[Cell]:
    rate = median(own.rate for own in figures)
    pairs = zip(figures, yardstick, strict=True)
    of_server = name != ONE_PROCESS.name
    return [
        name,
        rate,
        rate / POSSIBLE,
        median(own.rate / other.rate for own, other in pairs),
        max(own.most for own in figures),
        median(own.server_us for own in figures) if of_server else None,
        median(own.commands for own in figures) if of_server else None,
        median(own.clients_us for own in figures),
    ]
