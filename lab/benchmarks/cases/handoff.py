"""From a release on one node to the grant on another."""

from __future__ import annotations

from lab.benchmarks import rivals
from lab.benchmarks.harness.contender import OURS, PUBLISH, Place
from lab.benchmarks.harness.contest import contest, in_python
from lab.benchmarks.harness.figures import in_turn, percentile
from lab.benchmarks.harness.report import Goal, Report
from tests.support.servers import RedisServer

WORK_S = 0.001  # with the permit: the other has long asked when its turn comes
TITLE = "handoff: from release to grant"
COLUMNS = ("handed over by", "p50, ms", "p99, ms", "hand-overs")
HOW = "Two processes on one server hand one permit to and fro; the contenders play in turn."


def measure(quick: bool) -> Report:
    rivals.check_installed(rivals.SEMAPHORES)
    rounds, seconds = (1, 0.3) if quick else (5, 1.5)
    contenders = (OURS, PUBLISH, *rivals.PEERS)
    found: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    with RedisServer() as server:
        for number, contender in enumerate(in_turn(rounds, contenders)):
            place = Place(str(server.path), f"handoff-{number}", limit=1)
            result = contest(server, in_python(contender), place, (1, 1), WORK_S, seconds)
            found[contender.name] += [1000 * waited for waited in result.handoffs]
    p50 = {name: percentile(values, 0.5) for name, values in found.items()}
    p99 = {name: percentile(values, 0.99) for name, values in found.items()}
    ours, bare, peers = OURS.name, PUBLISH.name, [peer.name for peer in rivals.PEERS]
    goals = [
        Goal("p50, times PUBLISH's", p50[ours] / p50[bare], at_most=2.0),
        Goal("p99, times PUBLISH's", p99[ours] / p99[bare], at_most=3.0),
        Goal("p50, ms, below the best peer's", p50[ours], at_most=min(p50[name] for name in peers)),
        Goal("p99, ms, below the best peer's", p99[ours], at_most=min(p99[name] for name in peers)),
    ]
    rows = [(name, p50[name], p99[name], len(values)) for name, values in found.items()]
    notes = [HOW, f"Peers: {rivals.versions(rivals.SEMAPHORES)}."]
    return Report(TITLE, COLUMNS, rows, goals, notes)
