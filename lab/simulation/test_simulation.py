"""In simulated time the promises are kept, whatever fails."""

from __future__ import annotations

import asyncio
import gc
import sys

import pytest

from lab.simulation.__main__ import WORLDS
from lab.simulation.world import Host, World

SEEDS = [  # a few: `make sim` runs more, and CI hundreds
    *(("semaphore", seed) for seed in range(1, 5)),
    ("managed", 17),
    *(("shared_crawl", seed) for seed in range(4)),  # feature: shared_crawl
]


@pytest.mark.parametrize(("world", "seed"), SEEDS)
def test_promises_are_kept_under_faults(world: str, seed: int) -> None:
    plan_for, run = WORLDS[world]
    assert run(plan_for(seed)).violations == []


@pytest.mark.parametrize(
    ("world", "seed"),
    [
        ("semaphore", 5),
        ("shared_crawl", 4),  # feature: shared_crawl
    ],
)
def test_a_seed_gives_the_same_run_to_the_last_digit(
    world: str, seed: int, capfd: pytest.CaptureFixture[str]
) -> None:
    plan_for, run = WORLDS[world]
    one, other = (run(plan_for(seed)) for _ in range(2))
    assert one.log == other.log
    assert one.calls == other.calls > 0
    # What the nodes have logged is in the timeline, and not in the terminal.
    assert [what for _, who, what in one.log if who == "log"]
    assert capfd.readouterr() == ("", "")


async def _rest() -> None:
    try:
        await asyncio.sleep(1.0)
    finally:
        await asyncio.sleep(1.0)


@pytest.mark.filterwarnings("always")
@pytest.mark.parametrize("begins", [False, True])
def test_a_killed_host_leaves_no_warning_of_what_it_had_to_do(
    recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch, begins: bool
) -> None:
    gc.collect()  # of what other tests have left
    recwarn.clear()
    ignored: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    world = World()
    host = Host(world, "node")
    host.spawn(_rest())
    if begins:
        world.run(world.now + 0.5)
    host.kill()
    world.end()
    del world, host
    gc.collect()
    assert not ignored
    assert not recwarn.list
