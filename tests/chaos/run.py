"""Chaos: real crawls, random faults, one table. `python -m tests.chaos.run --seed N --runs K`

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
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from tests.chaos.faults import FAULTS, Fault
from tests.chaos.judge import Verdict
from tests.chaos.world import Plan, StuckError, World

RUN_TIMEOUT_S = 180.0  # after which a run has failed
TITLE = "gap: longest time without a start at any site; full use: seconds, measured / promised"
HEADINGS = (
    "runs",
    "requests",
    "most at once",
    "pages lost",
    "permits lost",
    "gap",
    "full use",
    "bad",
)


async def run(plan: Plan, *faults: Fault) -> Verdict:
    """One run with these faults, one after the other, and what the judge says about it."""
    directory = Path(tempfile.mkdtemp(prefix="chaos-"))
    world = World(plan, faults[0].setup, directory)
    try:
        async with world, asyncio.timeout(RUN_TIMEOUT_S):
            await world.in_full_swing()
            for fault in faults:
                await world.more(world.dice.randint(plan.requests // 10, plan.requests // 3))
                await world.transfers_under_way()
                await fault.happens(world)
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


async def carry_out(
    runs: Iterable[tuple[int, Fault]],
    budget_s: float,
    requests: int,
    results: list[tuple[str, Verdict]],
) -> None:
    """Do these runs, each with its seed, or those that the budget allows."""
    end = time.monotonic() + budget_s
    for seed, fault in runs:
        if time.monotonic() > end:
            say(f"{fault.name:40} --seed {seed:6} not begun: the time is over")
            continue
        began = time.monotonic()
        verdict = await run(Plan(f"{seed} {fault.name}", requests=requests), fault)
        results.append((fault.name, verdict))
        took = time.monotonic() - began
        outcome = f"BROKEN, see {verdict.kept_in}" if verdict.problems else "kept"
        say(f"{fault.name:40} --seed {seed:6} {took:3.0f} s  {outcome}")
        for problem in verdict.problems[:5]:
            say(f"    {problem}")


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201  (a program of its own)


def show(results: Sequence[tuple[str, Verdict]]) -> None:
    """One line a fault, over all its runs, and one for all of them."""
    table = Table(box=box.SIMPLE, title=TITLE)
    table.add_column("fault", no_wrap=True)
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    for name in dict.fromkeys(name for name, _ in results):
        table.add_row(name, *_cells([verdict for other, verdict in results if other == name]))
    table.add_section()
    if results:
        table.add_row("all", *_cells([verdict for _, verdict in results]))
    Console(width=140).print(table)


def _cells(verdicts: Sequence[Verdict]) -> list[str]:
    slowest = max(verdicts, key=lambda verdict: verdict.recovery)
    excess = max(verdict.excess for verdict in verdicts)
    return [
        f"{len(verdicts)}",
        f"{sum(verdict.requests for verdict in verdicts)}",
        f"{max(verdict.most for verdict in verdicts)}" + f" (+{excess} frozen)" * (excess > 0),
        f"{sum(verdict.lost for verdict in verdicts)}",
        f"{sum(verdict.lost_permits for verdict in verdicts)}",
        f"{max(verdict.gap for verdict in verdicts):.1f} s",
        f"{slowest.recovery:.1f} / {slowest.promise:.1f}",
        f"{sum(bool(verdict.problems) for verdict in verdicts)}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Crawl while everything breaks, and judge.")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--runs", type=int, default=1, help="of each fault; each its own seed")
    parser.add_argument("--faults", default=",".join(FAULTS), help="names by commas; all if none")
    parser.add_argument("--budget", type=float, default=20, help="minutes, after which none begins")
    parser.add_argument("--requests", type=int, default=1500, help="at least, in each run")
    given = parser.parse_args()
    names = given.faults.split(",")
    if unknown := set(names) - set(FAULTS):
        parser.error(f"no such fault: {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}")
    faults = [FAULTS[name] for name in names]
    for fault in faults:
        if why := fault.why_not_here():
            say(f"{fault.name:40} skipped: {why}")
    seeds = range(given.seed, given.seed + given.runs)
    runs = [(seed, fault) for seed in seeds for fault in faults if not fault.why_not_here()]
    random.Random(given.seed).shuffle(runs)  # not always the same ones are left at the end
    say(f"Seed {given.seed}, {len(runs)} runs.")
    results: list[tuple[str, Verdict]] = []
    with suppress(KeyboardInterrupt):  # then the table has what there is
        asyncio.run(carry_out(runs, 60 * given.budget, given.requests, results))
    show(results)
    sys.exit(any(verdict.problems for _, verdict in results))


if __name__ == "__main__":
    main()
