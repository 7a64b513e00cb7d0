"""Chaos: real crawls, and what goes wrong in them. `python -m lab.chaos.run --seed N --runs K`

Exit status 1 if any promise was broken, or a fault did not do what its name says. A seed chooses
the same victims and moments again; what the machine makes of them differs each time.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from lab.chaos.faults import FAULTS, why_not_here
from lab.chaos.judge import Verdict
from lab.chaos.world import Plan, StuckError, World

RUN_TIMEOUT_S = 180.0  # after which a run has failed


async def run(plan: Plan, *faults: str) -> Verdict:
    """One run with these faults, one after the other, and what the judge says about it."""
    directory = Path(tempfile.mkdtemp(prefix="chaos-"))
    world = World(plan, directory)
    try:
        async with world, asyncio.timeout(RUN_TIMEOUT_S):
            await world.in_full_swing()
            for fault in faults:
                await world.more(world.dice.randint(plan.requests // 10, plan.requests // 3))
                await world.transfers_under_way()
                await FAULTS[fault](world)
            await world.finish()
    except StuckError as stuck:
        world.problems.append(str(stuck))
    except TimeoutError:
        world.problems.append(f"the run was not over after {RUN_TIMEOUT_S:.0f} s")
    verdict = world.verdict()
    if verdict.problems:
        world.write_visits()
        verdict.kept_in = str(directory)
    else:
        shutil.rmtree(directory)
    return verdict


async def carry_out(given: argparse.Namespace) -> bool:
    """Do the runs that the command line asks for, or those that the budget allows. Whether all is
    well.
    """
    say(f"Seed {given.seed}.")
    runs: list[tuple[int, str]] = []
    for fault in given.faults or FAULTS:
        if why := why_not_here(fault):
            say(f"{fault:36} skipped: {why}")
        else:
            runs += [(given.seed + number, fault) for number in range(given.runs)]
    random.Random(given.seed).shuffle(runs)  # not always the same ones are left at the end
    end = time.monotonic() + 60 * given.budget
    verdicts: list[Verdict] = []
    while runs and time.monotonic() < end:
        seed, fault = runs.pop()
        verdict = await run(Plan(f"{seed} {fault}", requests=given.requests), fault)
        verdicts.append(verdict)
        say(f"{fault:36} --seed {seed:6}  {verdict}")
        for problem in verdict.problems[:5]:
            say(f"    {problem}")
    bad = sum(bool(verdict.problems) for verdict in verdicts)
    requests = sum(verdict.requests for verdict in verdicts)
    say(f"{bad} bad of {len(verdicts)} runs, {requests} requests; {len(runs)} runs not begun.")
    return not bad


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201  (a program of its own)


def main() -> None:
    parser = argparse.ArgumentParser(description="Crawl while everything breaks, and judge.")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--runs", type=int, default=1, help="of each fault; each its own seed")
    parser.add_argument("--faults", nargs="+", choices=FAULTS, help="all if none", metavar="NAME")
    parser.add_argument("--budget", type=float, default=20, help="minutes, after which none begins")
    parser.add_argument("--requests", type=int, default=1500, help="at least, in each run")
    sys.exit(not asyncio.run(carry_out(parser.parse_args())))


if __name__ == "__main__":
    main()
