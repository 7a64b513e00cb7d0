"""Crawls under faults, a few of `make chaos` after one another in each."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from lab.chaos.faults import why_not_here
from lab.chaos.run import run
from lab.chaos.world import Plan

pytestmark = pytest.mark.slow

PLAN = Plan(seed="a short cut", lease=1.5, requests=400, wait_timeout_s=30.0)
CRAWLS = {
    "nodes": ["node-killed-and-replaced", "node-cut-off-for-more-than-a-lease"],
    "nodes that stand still": ["node-frozen-for-more-than-a-lease", "node-blocked-by-a-callback"],
    "HAProxy": ["haproxy-with-a-replica-that-lags"],
    "a split brain": ["split-brain-with-min-replicas"],
}


@pytest.mark.parametrize("crawl", CRAWLS)
async def test_every_promise_is_kept_through_faults(crawl: str) -> None:
    if why := why_not_here(CRAWLS[crawl][0]):
        pytest.skip(why)
    verdict = await run(PLAN, *CRAWLS[crawl])
    assert verdict.problems == []
    assert verdict.requests >= PLAN.requests
    assert verdict.most == PLAN.limit


async def test_nodes_that_keep_a_higher_limit_are_convicted() -> None:
    verdict = await run(replace(PLAN, asked_limit=3), "node-killed-and-replaced")
    assert any("3 open at 127.0.0." in problem for problem in verdict.problems)
    shutil.rmtree(verdict.kept_in)
