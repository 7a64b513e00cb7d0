"""Chaos: real crawls, random faults, one table. `python -m tests.chaos.run --seed N --runs K`

Exit status 1 if any promise was broken, or a fault did not do what its name says. A seed chooses
the same faults, victims and moments again; what the machine makes of them differs each time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tests.chaos.checker import Verdict, check
from tests.chaos.faults import FAULTS, Fault
from tests.chaos.report import Result, show
from tests.chaos.world import Plan, Setup, StuckError, World

BUDGET_MIN = 30.0  # after which no run begins
RUN_TIMEOUT_S = 180.0  # after which a run has failed
GROUPS = {  # those of one file, by its name
    group: [name for name, fault in FAULTS.items() if f".{group}_" in fault.happens.__module__]
    for group in ("node", "server", "master", "network", "combined")
}
SHOWN = 5  # violations of a run: the others are in its directory


async def run(plan: Plan, *faults: Fault) -> Verdict:
    """One run with these faults, one after the other, and what the checker says about it."""
    directory = Path(tempfile.mkdtemp(prefix="chaos-"))
    setup = faults[0].setup if faults else Setup()
    world = World(plan, setup, directory)
    try:
        async with world, asyncio.timeout(RUN_TIMEOUT_S):
            await world.in_full_swing()
            for fault in faults:
                await world.more(world.dice.randint(plan.requests // 10, plan.requests // 3))
                await fault.strike(world)
            await world.finish()
    except StuckError as stuck:
        world.history.note("problem", id=str(stuck))
    except TimeoutError:
        world.history.note("problem", id=f"the run was not over after {RUN_TIMEOUT_S:.0f} s")
    verdict = check(world.history, plan.limit, plan.lease)
    if verdict.is_bad:
        world.history.write(directory / "history.jsonl")
        verdict.kept_in = str(directory)
    else:
        shutil.rmtree(directory)
    return verdict


@dataclass(frozen=True)
class Options:
    """What the command line asks for."""

    seed: int
    runs: int
    faults: list[Fault]
    budget: float  # minutes
    plan: Plan

    def rounds(self) -> Iterator[tuple[str, Fault]]:
        """The runs, each with the seed that replays it: all faults, as often as asked. Their order
        is the seed's too: not always the same ones are left when the budget is spent.
        """
        for seed in range(self.seed, self.seed + self.runs):
            for fault in random.Random(seed).sample(self.faults, len(self.faults)):
                yield f"{seed}", fault


async def carry_out(options: Options, results: list[Result]) -> None:
    """Do all the runs, or those that the budget allows, and add their results."""
    end = time.monotonic() + 60 * options.budget
    runs = list(options.rounds())
    for number, (seed, fault) in enumerate(runs):
        if time.monotonic() > end:
            left = len(runs) - number
            say(f"The {options.budget:g} minutes are over: {left} runs were not begun.")
            break
        began = time.monotonic()
        verdict = await run(replace(options.plan, seed=f"{seed} {fault.name}"), fault)
        results.append(Result(fault.name, verdict))
        took = time.monotonic() - began
        say(f"{fault.name:45} --seed {seed:6} {took:3.0f} s  {verdict}")
        for unproven in verdict.not_done:
            say(f"    not so: {unproven}")
        for violation in verdict.violations[:SHOWN]:
            say(f"    {violation}")
        if more := verdict.violations[SHOWN:]:
            say(f"    and {len(more)} more")


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201  (a program of its own)


def read_options(arguments: list[str] | None = None) -> tuple[Options, bool]:
    parser = argparse.ArgumentParser(description="Crawl while everything breaks, and judge.")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--runs", type=int, default=1, help="of each fault; each its own seed")
    parser.add_argument(
        "--faults", default="", help=f"names by commas, or {', '.join(GROUPS)}; all if none"
    )
    parser.add_argument("--budget", type=float, default=BUDGET_MIN, help="minutes, for all runs")
    parser.add_argument("--requests", type=int, default=1500, help="at least, in each run")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--lease", type=float, default=2.0, help="seconds")
    parser.add_argument("--mutant", default="", help="plant this in the scripts, to be caught")
    parser.add_argument("--json", action="store_true", help="results as JSON, not as a table")
    given = parser.parse_args(arguments)
    wanted = given.faults.split(",") if given.faults else list(FAULTS)
    names = [name for one in wanted for name in GROUPS.get(one, [one])]
    if unknown := set(names) - set(FAULTS):
        parser.error(f"no such fault: {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}")
    plan = Plan(
        "", nodes=given.nodes, lease=given.lease, requests=given.requests, mutant=given.mutant
    )
    faults = []
    for name in names:
        if why := FAULTS[name].why_not_here():
            say(f"{name:45} skipped: {why}")
        else:
            faults.append(FAULTS[name])
    return Options(given.seed, given.runs, faults, given.budget, plan), given.json


def main() -> None:
    options, as_json = read_options()
    say(f"Seed {options.seed}, {len(options.faults)} faults, {options.runs} runs of each.")
    results: list[Result] = []
    with suppress(KeyboardInterrupt):  # then the table has what there is
        asyncio.run(carry_out(options, results))
    if as_json:
        print(json.dumps([result.as_dict() for result in results], indent=1))  # noqa: T201
    else:
        show(results, options.plan.limit)
    sys.exit(any(result.verdict.is_bad for result in results))


if __name__ == "__main__":
    main()
