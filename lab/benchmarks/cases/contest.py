"""Four processes with eight clients each at a full site: permits a second, and what one costs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from lab.benchmarks import rivals
from lab.benchmarks.harness.contender import ONE_PROCESS, OURS, Place
from lab.benchmarks.harness.contest import contest, in_python
from lab.benchmarks.harness.figures import in_turn, median_ratio, most
from lab.benchmarks.harness.load import Result
from lab.benchmarks.harness.report import Goal, Report
from tests.support.servers import RedisServer

CLIENTS = 8  # of each process
CONTENDERS = (OURS, *rivals.PEERS, ONE_PROCESS)
LIMIT = 5
WORK_S = 0.002
POSSIBLE = LIMIT / WORK_S  # permits a second, were no time lost between two
COLUMNS = (
    "semaphore",
    "permits a second",
    "server, us a permit",
    "commands a permit",
    "clients, us a permit",
    "most at once",
)


def measure(quick: bool) -> Report:
    rivals.check_installed(rivals.SEMAPHORES)
    rounds, processes, seconds = (1, 2, 0.3) if quick else (5, 4, 3.0)
    commands: dict[str, Sequence[str]] = {one.name: in_python(one) for one in CONTENDERS}
    if npm := rivals.npm():
        commands[rivals.NPM_NAME] = npm
    found: dict[str, list[Sequence[float]]] = {name: [] for name in commands}
    with RedisServer() as server:
        for number, name in enumerate(in_turn(rounds, list(commands))):
            # That of one process has all the clients in it.
            is_one = name == ONE_PROCESS.name
            clients = (processes * CLIENTS,) if is_one else processes * (CLIENTS,)
            place = Place(str(server.path), f"contest-{number}", LIMIT)
            result = contest(server, commands[name], place, clients, WORK_S, seconds)
            found[name].append(_figures(result, seconds))
    rates = {name: [figures[0] for figures in of_it] for name, of_it in found.items()}
    ours = rates.pop(OURS.name)
    del rates[ONE_PROCESS.name]
    times = median_ratio(ours, [max(of_round) for of_round in zip(*rates.values(), strict=True)])
    medians = {name: [*map(median, zip(*of_it, strict=True))] for name, of_it in found.items()}
    rate, server_us, commands_a_permit, _, _ = medians[OURS.name]
    at_once = max(figures[-1] for figures in found[OURS.name])
    goals = [
        Goal("permits a second, times the quickest peer's", times, at_least=1.2),
        Goal("share of what limit and work allow", rate / POSSIBLE, at_least=0.9),
        Goal("server time, us a permit", server_us, at_most=10),
        Goal("commands a permit", commands_a_permit, at_most=1),
        Goal("most at once, in any round", at_once, at_most=LIMIT),
    ]
    how = (
        f"{processes} processes with {CLIENTS} clients each (of {ONE_PROCESS.name}, all in one), "
        f"limit {LIMIT}, {1000 * WORK_S:g} ms of work: at most {POSSIBLE:,.0f} permits a second. "
        f"Medians of {rounds} rounds of {seconds:g} s, in turn. Commands: sent, and run by scripts."
    )
    is_npm_there = "as in rivals/npm/package.json" if npm else "left out, as it is not installed"
    peers = f"Peers: {rivals.versions(rivals.SEMAPHORES)}; {rivals.NPM_NAME}: {is_npm_there}."
    rows = [(name, *figures) for name, figures in medians.items()]
    return Report("contest: who serves a full site quickest", COLUMNS, rows, goals, [how, peers])


def _figures(result: Result, seconds: float) -> Sequence[float]:
    """As in COLUMNS."""
    permits, load = len(result.counted), result.load
    return (
        permits / seconds,
        load.server.seconds * 1e6 / permits,
        load.server.commands / permits,
        load.client_seconds * 1e6 / permits,
        most(result.visits),
    )
