"""A short cut of the chaos suite: crawls to which one fault happens after the other."""

from __future__ import annotations

import pytest

from tests.chaos.faults import FAULTS
from tests.chaos.run import run
from tests.chaos.world import Plan
from tests.support.nodes import in_asyncio

pytestmark = pytest.mark.slow

PLAN = Plan(seed="a short cut", lease=1.5, requests=400, wait_timeout_s=30.0)
CRAWLS = {
    "nodes that end": ["node-killed-and-replaced", "node-interrupted"],
    "a node that stands still": ["node-frozen-for-more-than-a-lease"],
    "messages": ["replies-dropped", "grants-dropped"],
    "the server's data": ["flushall", "server-killed-and-back-empty"],
    "sentinels": ["sentinels-replace-a-killed-master"],
    "a cluster": [
        "planned-failover-in-a-cluster",
        "cluster-replaces-a-killed-master",
        "slot-moved-with-its-keys",
        "slot-moved-without-its-keys",
    ],
    "proxies": [
        "haproxy-with-a-replica-that-lags",
        "hidden-failover-that-forgets-subscriptions",
    ],
    "a split brain": ["split-brain-with-min-replicas"],
    "network": ["node-cut-off-for-more-than-a-lease", "connections-dropped", "scripts-forgotten"],
}


@pytest.mark.parametrize("crawl", CRAWLS)
@in_asyncio
async def test_every_promise_is_kept_through_faults(crawl: str) -> None:
    faults = [FAULTS[name] for name in CRAWLS[crawl]]
    if why := faults[0].why_not_here():
        pytest.skip(why)
    verdict = await run(PLAN, *faults)
    assert verdict.violations == verdict.not_done == []
    assert verdict.requests >= PLAN.requests
    assert verdict.most == PLAN.limit
