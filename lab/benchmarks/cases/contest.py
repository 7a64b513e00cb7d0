"""Four processes with eight clients each at a full site: permits a second, and what one costs.

And two that pass one permit to and fro: from a release on one to the grant on the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from lab.benchmarks import rivals
from lab.benchmarks.harness.contender import OURS, PUBLISH, Place
from lab.benchmarks.harness.contest import contest
from lab.benchmarks.harness.figures import alternating, median_ratio, most, percentile
from lab.benchmarks.harness.load import Result
from lab.benchmarks.harness.report import Cell, Goal, Report
from tests.support.servers import RedisServer

CLIENTS = 8  # of each process
AT_A_FULL_SITE = (OURS, rivals.PEER)
HAND_OFF = (OURS, rivals.PEER, PUBLISH)
LIMIT = 5
WORK_S = 0.002
HAND_OFF_WORK_S = 0.001  # the other has long asked when it is next
POSSIBLE = LIMIT / WORK_S  # permits a second, were no time lost between two
COLUMNS = (
    "semaphore",
    "permits a second",
    "server, us a permit",
    "commands a permit",
    "clients, us a permit",
    "most at once",
    "hand-off p50, ms",
    "p99, ms",
)


def measure(quick: bool) -> Report:
    rivals.check_installed(rivals.SEMAPHORE)
    rounds, processes, seconds = (1, 2, 0.3) if quick else (5, 4, 3.0)
    with RedisServer() as server:
        found = _at_a_full_site(server, rounds, processes, seconds)
        waits = _passed_on(server, rounds, seconds / 2)
    figures = {name: [*map(median, zip(*of_it, strict=True))] for name, of_it in found.items()}
    rows: list[Sequence[Cell]] = []
    for name in found | waits:
        costs = figures.get(name, [None] * 5)
        rows.append([name, *costs, *waits.get(name, [None, None])])
    how = (
        f"{processes} processes with {CLIENTS} clients each, limit {LIMIT}, {1000 * WORK_S:g} ms "
        f"of work: at most {POSSIBLE:,.0f} permits a second. Medians of {rounds} rounds of "
        f"{seconds:g} s, alternating. Commands: sent, and run by scripts. Hand-off: two processes "
        f"with a client each, limit 1. {rivals.version_of(rivals.SEMAPHORE)}."
    )
    goals = [*_goals(found), *_goals_of_waits(waits)]
    return Report("contest: who serves a full site quickest", COLUMNS, rows, goals, [how])


def _at_a_full_site(
    server: RedisServer, rounds: int, processes: int, seconds: float
) -> dict[str, list[Sequence[float]]]:
    """The figures of each round, as in COLUMNS."""
    found: dict[str, list[Sequence[float]]] = {one.name: [] for one in AT_A_FULL_SITE}
    for number, one in enumerate(alternating(rounds, AT_A_FULL_SITE)):
        place = Place(str(server.path), f"full-{number}", LIMIT)
        result = contest(server, one, place, processes * (CLIENTS,), WORK_S, seconds)
        found[one.name].append(_figures(result, seconds))
    return found


def _passed_on(server: RedisServer, rounds: int, seconds: float) -> dict[str, tuple[float, ...]]:
    """Milliseconds from a release to the grant: p50 and p99."""
    waits: dict[str, list[float]] = {one.name: [] for one in HAND_OFF}
    for number, one in enumerate(alternating(rounds, HAND_OFF)):
        place = Place(str(server.path), f"hand-off-{number}", limit=1)
        result = contest(server, one, place, (1, 1), HAND_OFF_WORK_S, seconds)
        waits[one.name] += [1000 * waited for waited in result.handoffs]
    return {
        name: (percentile(values, 0.5), percentile(values, 0.99)) for name, values in waits.items()
    }


def _figures(result: Result, seconds: float) -> Sequence[float]:
    permits, load = len(result.counted), result.load
    return (
        permits / seconds,
        load.server.seconds * 1e6 / permits,
        load.server.commands / permits,
        load.client_seconds * 1e6 / permits,
        most(result.visits),
    )


def _goals(found: dict[str, list[Sequence[float]]]) -> list[Goal]:
    ours = found[OURS.name]
    rates, peers = ([figures[0] for figures in found[one.name]] for one in AT_A_FULL_SITE)
    rate, server_us, commands, _, _ = map(median, zip(*ours, strict=True))
    times = median_ratio(rates, peers)
    return [
        Goal("permits a second, times the peer's", times, at_least=1.2),
        Goal("share of what limit and work allow", rate / POSSIBLE, at_least=0.9),
        Goal("server time, us a permit", server_us, at_most=10),
        Goal("commands a permit", commands, at_most=1),
        Goal("most at once, in any round", max(figures[-1] for figures in ours), at_most=LIMIT),
    ]


def _goals_of_waits(waits: dict[str, tuple[float, ...]]) -> list[Goal]:
    (p50, p99), (peer_p50, peer_p99), (bare_p50, bare_p99) = (waits[one.name] for one in HAND_OFF)
    return [
        Goal("hand-off p50, times PUBLISH's", p50 / bare_p50, at_most=2.0),
        Goal("hand-off p99, times PUBLISH's", p99 / bare_p99, at_most=3.0),
        Goal("hand-off p50, ms, below the peer's", p50, at_most=peer_p50),
        Goal("hand-off p99, ms, below the peer's", p99, at_most=peer_p99),
    ]
