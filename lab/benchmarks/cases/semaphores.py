"""This semaphore, those on PyPI and those of the literature, under what goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

from lab.benchmarks import rivals
from lab.benchmarks.classics import CLASSICS, LOCK
from lab.benchmarks.harness import race
from lab.benchmarks.harness.contender import OURS, WITHOUT_TURNS, Contender, Place
from lab.benchmarks.harness.report import Cell, Goal, Report
from tests.support.servers import RedisServer

LIMIT = 4
LEASE = 10.0  # seconds, as in the book
SHORT_LEASE = 2.0  # seconds, where it matters when a lease ends; PyPI's take whole ones
LIVING = 3  # clients at a busy site whose permit a dead one has
BUSY, QUIET = "death, busy", "death, quiet"
COLUMNS = ("semaphore", "under", "passed", "stolen", "disorder", "back, s")


@dataclass(frozen=True, slots=True)
class Trial:
    """What was seen of a contender under one trouble."""

    contender: Contender
    under: str
    judge: race.Judge

    @property
    def back(self) -> Cell:
        """Seconds until a dead holder's permit is back: those who come and go see no finer."""
        if self.under not in (BUSY, QUIET):
            return None
        return "never" if self.judge.back_after is None else round(self.judge.back_after, 1)

    @property
    def row(self) -> Sequence[Cell]:
        found = self.judge.passed, self.judge.stolen, self.judge.out_of_order
        return self.contender.name, self.under, *found, self.back


def measure(quick: bool) -> Report:
    clients, seconds = (8, 0.1) if quick else (32, 2.0)
    peers = () if rivals.missing(rivals.SEMAPHORES) else rivals.PEERS
    trials = []
    for contenders in (CLASSICS, (*peers, OURS, WITHOUT_TURNS)):
        with RedisServer() as server:
            trials += asyncio.run(_trials(server, contenders, clients, seconds))
    how = (
        f"Race: {clients} clients, each with connections of its own (ours: a node), for "
        f"{seconds:g} s. Clocks: the same, half of them {race.APART:g} s ahead, and one works for "
        f"{race.LONG_WORK:g} leases of {SHORT_LEASE:g} s. Never: not within {race.LEASES:g} "
        f"leases. Work: one works for {race.WORK:g} leases, and meanwhile another asks."
    )
    columns = (
        "Passed: times one went in above the limit. Stolen: of the living (tokens have no names). "
        f"Disorder: grants {race.MARGIN * 1e3:.0f} ms before one asked for as much earlier."
    )
    of_peers = f"Peers: {rivals.versions(rivals.SEMAPHORES) if peers else 'not installed'}."
    return Report(
        "semaphores: what goes wrong",
        COLUMNS,
        [trial.row for trial in trials],
        _goals(trials, peers),
        [how, columns, of_peers],
    )


def _goals(trials: Sequence[Trial], peers: Sequence[Contender]) -> list[Goal]:
    ours = [trial for trial in trials if trial.contender in (OURS, WITHOUT_TURNS)]
    out_of_order = sum(t.judge.out_of_order for t in ours if t.contender is WITHOUT_TURNS)
    goals = [
        Goal("ours: limit passed", sum(trial.judge.passed for trial in ours), at_most=0),
        Goal("ours: permits stolen", sum(trial.judge.stolen or 0 for trial in ours), at_most=0),
        Goal("ours, turn 0: grants out of order", out_of_order, at_most=0),
    ]
    for under in (BUSY, QUIET):
        back = {trial.contender: trial.back for trial in trials if trial.under == under}
        of_peers = [seconds for peer in peers if isinstance(seconds := back[peer], float)]
        if isinstance(own := back[OURS], float) and of_peers:
            goals.append(Goal(f"{under}: back, s, below the peers'", own, at_most=min(of_peers)))
    return goals


async def _trials(
    server: RedisServer, contenders: Sequence[Contender], clients: int, seconds: float
) -> list[Trial]:
    def at(contender: Contender, under: str, limit: int, lease: float = SHORT_LEASE) -> Place:
        """A scope of its own for each trial: what one leaves behind is not the next one's."""
        limit = 1 if contender is LOCK else limit
        return Place(str(server.path), f"{contender.name}: {under}", limit, lease)

    trials = []
    for one in contenders:
        judge = await race.run(one, at(one, "race", LIMIT, LEASE), clients, seconds)
        trials.append(Trial(one, "race", judge))
        judge = await race.run(one, at(one, "clocks", LIMIT), clients, seconds, apart=True)
        trials.append(Trial(one, "clocks", judge))
    # These mostly wait, so all contenders at once. One permit is the dead one's.
    for under, limit, others in ((BUSY, 2, LIVING), (QUIET, 1, 1)):
        judges = await race.dead_holders(
            [(one, at(one, under, limit)) for one in contenders], others
        )
        trials += map(Trial, contenders, repeat(under), judges)
    judges = await asyncio.gather(
        *(race.long_holder(one, at(one, "work", 1)) for one in contenders)
    )
    trials += map(Trial, contenders, repeat("work"), judges)
    return sorted(trials, key=lambda trial: contenders.index(trial.contender))
