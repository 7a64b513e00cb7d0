"""Shared crawls in simulated time keep what is promised, whatever fails."""

from __future__ import annotations

from tests.simulation.frontier import plan_for, run

SEEDS = range(25)  # CI runs thousands, with `make sim`


def test_shared_crawls_keep_their_promises_under_faults() -> None:
    broken = {seed: run(plan_for(seed)).violations for seed in SEEDS}
    assert {seed: found for seed, found in broken.items() if found} == {}


def test_a_seed_gives_the_same_crawl() -> None:
    one, other = (run(plan_for(4)) for _ in range(2))
    assert one.log == other.log
    assert one.calls == other.calls > 0
