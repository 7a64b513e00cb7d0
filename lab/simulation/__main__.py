"""Runs seeds, and shows the timeline of the first that breaks a promise, shrunk.

python -m lab.simulation [--seeds 1000] [--first 1] [--seed N] [--world NAME | --each]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from lab.simulation import (
    plan,
    run,
    shared_crawl,  # feature: shared_crawl
)
from lab.simulation.run import Result

WORLDS: dict[str, tuple[Callable[[int], Any], Callable[[Any], Result]]] = {
    "semaphore": (plan.plan_for, run.run),
    "managed": (plan.plan_for_managed, run.run),
    "shared_crawl": (shared_crawl.plan_for, shared_crawl.run),  # feature: shared_crawl
}
FEWER = {"managed": 3}
"""By world: it runs one in so many seeds, as it hardly differs from another world."""
ATTEMPTS = 400  # to make a failure smaller
PROGRESS_EVERY = 500  # seeds
CHUNK = 5
COUNTED = ("seeds", "faults", "simulated hours", "requests", "calls")


def main() -> int:
    """Returns the exit status: 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seed", type=int, help="one only, with its timeline")
    parser.add_argument("--world", choices=WORLDS, help="one only; else all")
    parser.add_argument("--each", action="store_true", help="as many seeds of each world")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    for world in [options.world] if options.world else WORLDS:
        if options.seed is not None:
            broken = _show(world, options.seed)
        else:
            fewer = 1 if options.world or options.each else FEWER.get(world, 1)
            seeds = range(options.first, options.first + options.seeds // fewer)
            broken = _run_all(world, seeds, options.processes)
        if broken:
            return 1
    return 0


def _run_all(world: str, seeds: range, processes: int) -> bool:
    """Run seeds until one breaks a promise. Returns True if one did."""
    totals: dict[str, float] = dict.fromkeys(COUNTED, 0)
    with multiprocessing.Pool(processes) as pool:
        results = pool.imap_unordered(partial(_run_one, world), seeds, chunksize=CHUNK)
        for result, faults in results:
            of_one = (1, faults, result.seconds / 3600, result.requests, result.calls)
            for name, number in zip(COUNTED, of_one, strict=True):
                totals[name] += number
            if result.violations:
                pool.terminate()
                _say(f"{world}: seed {result.plan.seed} breaks a promise. Making it small ...")
                _say("\n".join(result.violations))
                return _show(world, result.plan.seed)
            if totals["seeds"] % PROGRESS_EVERY == 0:
                _say(_summary(world, totals))
    _say(_summary(world, totals) + ": all promises were kept.")
    return False


def _run_one(world: str, seed: int) -> tuple[Result, int]:
    plan_for, run_plan = WORLDS[world]
    drawn = plan_for(seed)
    result = run_plan(drawn)
    return replace(result, log=[]), len(drawn.faults)


def _summary(world: str, totals: dict[str, float]) -> str:
    return f"{world}: " + ", ".join(f"{number:,.0f} {name}" for name, number in totals.items())


# One seed ---------------------------------------------------------------------------------------


def _show(world: str, seed: int) -> bool:
    """Print a seed's timeline; if it breaks a promise, of the smallest run that still does."""
    plan_for, run_plan = WORLDS[world]
    result = run_plan(plan_for(seed))
    if result.violations:
        result = _made_small(result, run_plan)
    began = result.log[0][0] if result.log else 0.0
    for when, who, what in result.log:
        _say(f"{when - began:10.3f}  {who:10} {what}")
    _say(f"{world}: seed {seed}, {result.seconds:.1f} s: {_limits_of(result.plan)}")
    for violation in result.violations or ["all promises were kept"]:
        _say(f"  {violation}")
    return bool(result.violations)


def _limits_of(drawn: Any) -> str:
    limits = getattr(drawn, "limits", {})
    return f"lease {drawn.lease:g} s, {', '.join(f'{name} {one}' for name, one in limits.items())}"


def _made_small(result: Result, run_plan: Callable[[Any], Result]) -> Result:
    """The run of the smallest plan found that breaks the same promise."""
    promise = _promise(result)
    attempts = 0
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for smaller in _smaller(result.plan):
            attempts += 1
            if attempts > ATTEMPTS:
                return result
            found = run_plan(smaller)
            if found.violations and _promise(found) == promise:
                result, is_smaller = found, True
                break
    return result


def _promise(result: Result) -> str:
    """The first promise that was broken, in one word."""
    return result.violations[0].split()[1]


def _smaller(drawn: Any) -> Iterator[Any]:
    """Plans with less: half of the faults, requests or workers, then one less."""
    for faults in _less(drawn.faults):
        yield replace(drawn, faults=faults)
    if not hasattr(drawn, "workers"):
        return
    for workers in _less(drawn.workers):
        yield replace(drawn, workers=workers)
    for index, worker in enumerate(drawn.workers):
        for jobs in _less(worker.jobs):
            changed = replace(worker, jobs=jobs)
            workers = (*drawn.workers[:index], changed, *drawn.workers[index + 1 :])
            yield replace(drawn, workers=workers)


def _less(parts: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    size = len(parts) // 2
    while size:
        for start in range(0, len(parts), size):
            yield parts[:start] + parts[start + size :]
        size //= 2


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
