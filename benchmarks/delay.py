"""A delay between starts: how near to it the starts are, with one node and with ten."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from statistics import median

from benchmarks.crawls import crawling, with_add_on
from benchmarks.in_hand import all_at_work
from benchmarks.report import Cell, Goal, Report
from benchmarks.site import Visit, site
from tests.servers import RedisServer

DELAYS = 0.1, 0.5
NODES = 1, 10
SERVICE = 50  # milliseconds that a page takes


def measure(quick: bool) -> Report:
    rows: list[list[Cell]] = []
    goals: list[Goal] = []
    for delay in DELAYS[:1]:
        for nodes in NODES[:1] if quick else NODES:
            starts = _starts(delay, nodes, 1.0 if quick else 15.0)
            gaps = [1000 * (later - earlier) for earlier, later in pairwise(starts)]
            rate = (len(starts) - 1) / (starts[-1] - starts[0]) * delay
            rows.append([nodes, len(starts), min(gaps), median(gaps), max(gaps), rate])
            goals.append(Goal(f"share of the rate, {nodes} nodes", rate, at_least=0.98))
    return Report(
        title=f"delay: starts {1000 * DELAYS[0]:g} ms apart, as the site sees them",
        columns=[
            "nodes",
            "starts",
            "least gap, ms",
            "median",
            "longest",
            "share of the rate allowed",
        ],
        rows=rows,
        goals=goals,
        notes=("Counted from when all nodes have begun to when the first asks for its last page.",),
    )


def _starts(delay: float, nodes: int, seconds: float) -> Sequence[float]:
    """When the site saw requests begin, while all nodes were at work."""
    pages = max(6, round(seconds / delay / nodes))
    with ExitStack() as stack:
        of_site = stack.enter_context(site())
        server = RedisServer().start()
        stack.callback(server.remove)
        settings = with_add_on(server.url, DOWNLOAD_DELAY=delay, DOWNLOAD_DELAY_JITTER=0)
        crawls = [
            stack.enter_context(crawling(settings, [(of_site.pages(SERVICE, f"node-{n}"), pages)]))
            for n in range(nodes)
        ]
        for node in crawls:
            node.outcome()
        visits = of_site.visits()
    return _begun(visits, *all_at_work(visits))


def _begun(visits: Sequence[Visit], since: float, until: float) -> list[float]:
    return sorted(visit.begin for visit in visits if since <= visit.begin <= until)
