"""What a cluster costs: a hand-off, and the servers' time a permit, beside one server."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from statistics import median

from benchmarks.cases.server import Batch
from benchmarks.harness.contender import ours_at
from benchmarks.harness.handover import hand_over, percentile
from benchmarks.harness.meter import Meter
from benchmarks.harness.report import Goal, Report
from benchmarks.harness.simulated_node import SimulatedNode
from tests.support.servers import Cluster, RedisServer, free_port

COLUMNS = ("on", "hand-off p50, ms", "hand-off p99, ms", "us a permit, all servers")
ONE, THREE = "one server", "a cluster of three masters"
HOW = (
    "Both are reached over TCP, and measured in turn. The hand-off is that of bench-handoff. The "
    "processor time is that of all servers, for a permit that is taken in one call and given back "
    "in another; what a cluster's nodes say to each other meanwhile is in it."
)


def measure(quick: bool) -> Report:
    """Both at once, so that what disturbs one disturbs the other."""
    with ExitStack() as stack:
        server, cluster = RedisServer(tcp_port=free_port()), Cluster()
        for one in (server, cluster):
            stack.callback(one.remove)
            one.start()
        contenders = [ours_at(server.tcp_url, ONE), ours_at(cluster.url, THREE)]
        times = hand_over("", contenders, *((1, 50) if quick else (5, 400)))
        costs = asyncio.run(_permit_costs(server, cluster, *((5, 200) if quick else (15, 2000))))
    p50, p99 = (
        {name: percentile(values, share) * 1e3 for name, values in times.items()}
        for share in (0.5, 0.99)
    )
    goals = [
        Goal("hand-off p50, times one server's", p50[THREE] / p50[ONE], at_most=1.5),
        Goal("servers' time, times one server's", costs[THREE] / costs[ONE], at_most=1.5),
    ]
    rows = [(name, p50[name], p99[name], costs[name]) for name in (ONE, THREE)]
    return Report("cluster: the same on a cluster of three", COLUMNS, rows, goals, [HOW])


async def _permit_costs(
    server: RedisServer, cluster: Cluster, rounds: int, permits: int
) -> dict[str, float]:
    """Microseconds of all servers' processor time a permit."""
    with ExitStack() as stack:
        meters = {
            name: [Meter(stack.enter_context(one.client())) for one in servers]
            for name, servers in ((ONE, [server]), (THREE, cluster.nodes))
        }
        async with (
            SimulatedNode(server.tcp_url, "one") as one,
            SimulatedNode(cluster.url, "three") as three,
        ):
            pair = [(ONE, Batch(one, 1, 1)), (THREE, Batch(three, 1, 1))]
            for _, batch in pair:
                await batch.take_and_give_back()  # loads the script
            for _ in range(rounds):
                for name, batch in pair:
                    with ExitStack() as running:
                        for meter in meters[name]:
                            running.enter_context(meter.running(permits))
                        for _ in range(permits):
                            await batch.take_and_give_back()
                pair.reverse()
    return {
        name: median(map(sum, zip(*(meter.microseconds for meter in some), strict=True)))
        for name, some in meters.items()
    }
