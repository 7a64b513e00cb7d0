"""The chaos suite can convict: crawls whose scripts have one thing wrong break a promise."""

from __future__ import annotations

import shutil

import pytest

from semaphore_middleware.redis.scripts import SCRIPTS, source_of
from tests.chaos.faults import FAULTS, master_faults
from tests.chaos.mutants import MUTANTS, mutate
from tests.chaos.run import run
from tests.chaos.world import Plan
from tests.support.nodes import in_asyncio

CAUGHT = {  # in a run with which fault, and of what it is convicted
    "client clock instead of TIME": ("nothing", "the site had"),
    "notify without granting": ("nothing", "counted as held"),
    "accounts of the dead left open": ("node-killed", "for full use again"),
    "statement not idempotent": ("replies-dropped", "counted as held"),
    "epoch check left out": ("flushall", ", limit 2"),  # by the site, or by the nodes' own account
}
QUICK_MUTANT = "notify without granting"


def test_there_is_a_crawl_for_every_mutant() -> None:
    assert set(CAUGHT) == set(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_every_mutant_fits_the_scripts(mutant: str) -> None:
    files = set().union(*SCRIPTS.values())
    assert any(mutate(mutant, file, source_of(file)) != source_of(file) for file in files)


@pytest.mark.slow
@in_asyncio
async def test_a_mutant_is_caught() -> None:
    await _is_caught(QUICK_MUTANT)


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", sorted(set(CAUGHT) - {QUICK_MUTANT}))
@in_asyncio
async def test_each_mutant_is_caught(mutant: str) -> None:
    await _is_caught(mutant)


async def _is_caught(mutant: str) -> None:
    fault, crime = CAUGHT[mutant]
    plan = Plan(seed="mutants", lease=1.5, requests=600, wait_timeout_s=10.0, mutant=mutant)
    verdict = await run(plan, FAULTS[fault])
    convictions = [violation for violation in verdict.violations if crime in violation]
    assert convictions, verdict.violations
    shutil.rmtree(verdict.kept_in)
    print(f"{mutant}: caught with {fault}, {convictions[0]}")  # noqa: T201  (-rP shows it)


@pytest.mark.mutants
@in_asyncio
async def test_a_split_brain_without_min_replicas_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(master_faults, "min_replicas", list)
    verdict = await run(Plan(seed="mutants"), FAULTS["split-brain-with-min-replicas"])
    assert any("the site had" in violation for violation in verdict.violations)
    shutil.rmtree(verdict.kept_in)
    print(f"a split brain without min-replicas: {verdict.most} at once")  # noqa: T201
