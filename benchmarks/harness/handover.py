"""A permit that two processes hand to and fro, and how long it is on its way.

Processes, not two connections of one: a crawl's nodes share no event loop, and with both ends in
one process the time would be that of a loop that is busy with the other end. The clock is
CLOCK_MONOTONIC, which Linux keeps for all processes of a machine together.
"""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.harness.contender import Contender, Place

HOLD = 0.001  # seconds: the other has long asked when its turn comes
WARM_UP = 20  # turns that are not counted: connections, scripts and caches are new
TIMEOUT_S = 60.0  # seconds


@dataclass(frozen=True, slots=True)
class Board:
    """What the two processes share. Only the holder of the permit writes, or reads, the slate."""

    slate: Any  # when the permit was last given back, and by which side
    barrier: Any


@dataclass(frozen=True, slots=True)
class Match:
    contender: Contender
    place: Place  # of the first side
    turns: int  # of each side


def hand_over(
    path: str, contenders: Sequence[Contender], rounds: int, turns: int
) -> dict[str, list[float]]:
    """Seconds from release to grant by contender, who play `rounds` matches each, in turn."""
    matches = []
    for number in range(rounds):
        order = contenders if number % 2 == 0 else contenders[::-1]
        matches += [Match(c, Place(path, f"handover-{number}", limit=1), turns) for c in order]
    context = multiprocessing.get_context("spawn")
    board = Board(context.RawArray("d", 2), context.Barrier(2, timeout=TIMEOUT_S))
    here, there = context.Pipe()
    other = context.Process(target=_other_side, args=(there, board, matches), daemon=True)
    other.start()
    try:
        times = asyncio.run(_play(0, board, matches))
        for name, theirs in here.recv().items():
            times[name] += theirs
    finally:
        other.join(TIMEOUT_S)
        other.kill()
    return times


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of all does not exceed."""
    ordered = sorted(values)
    return ordered[math.ceil(share * len(ordered)) - 1]


def _other_side(results: Connection, board: Board, matches: Sequence[Match]) -> None:
    results.send(asyncio.run(_play(1, board, matches)))


async def _play(side: int, board: Board, matches: Sequence[Match]) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {match.contender.name: [] for match in matches}
    for match in matches:
        place = match.place
        mine = Place(place.path, place.scope, place.limit, place.lease, number=side)
        async with match.contender.join(mine) as client:
            board.barrier.wait()
            for turn in range(WARM_UP + match.turns):
                asked = time.monotonic()
                await client.acquire()
                granted = time.monotonic()
                released, by = board.slate
                # Who gets back what it has just given, or what lay about, was handed nothing.
                if turn >= WARM_UP and by != side and asked < released:
                    times[match.contender.name].append(granted - released)
                await asyncio.sleep(HOLD)
                board.slate[:] = time.monotonic(), side
                await client.release()
        board.barrier.wait()
    return times
