"""Pages a second of a crawl of many hosts whose limits hold nothing back.

What a node lacks to plain Scrapy is its requests' wait for the server's answer, and the time in
which it looks for the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from lab.benchmarks.harness.crawls import crawling, with_add_on
from lab.benchmarks.harness.figures import alternating, median_ratio, ratios_text
from lab.benchmarks.harness.report import Cell, Goal, Report
from lab.benchmarks.harness.site import site
from tests.support.servers import RedisServer

HOSTS, SLOTS, LIMIT = 300, 16, 8
MS = "80-120"  # of a page
ADD_ON, PLAIN = "add-on", "plain Scrapy"
COLUMNS = ("measured", ADD_ON, PLAIN)


def measure(quick: bool) -> Report:
    rounds, pages = (1, 1) if quick else (5, 6)
    found: dict[str, list[tuple[float, float]]] = {ADD_ON: [], PLAIN: []}
    for by in alternating(rounds, [ADD_ON, PLAIN]):
        found[by].append(_speed(by, pages))
    (ours, ours_ms), (theirs, theirs_ms) = (zip(*found[by], strict=True) for by in (ADD_ON, PLAIN))
    ratio = median_ratio(ours, theirs)
    rows: list[Sequence[Cell]] = [
        ("pages a second", median(ours), median(theirs)),
        ("processor time a page, ms", median(ours_ms), median(theirs_ms)),
    ]
    goals = [Goal("pages a second, add-on / plain Scrapy", ratio, at_least=0.95)]
    how = (
        f"{rounds} rounds, alternating, medians; ratios {ratios_text(ours, theirs)}. {HOSTS} "
        f"hosts, pages of {MS} ms, CONCURRENT_REQUESTS {SLOTS}, {LIMIT} a host."
    )
    return Report("hosts: many hosts whose limits are not met", COLUMNS, rows, goals, [how])


def _speed(by: str, pages: int) -> tuple[float, float]:
    """Pages a second while all slots are in use, and milliseconds of processor time a page."""
    with site() as of_site, RedisServer() as server:
        settings: dict[str, Any] = {
            "CONCURRENT_REQUESTS": SLOTS,
            "CONCURRENT_REQUESTS_PER_DOMAIN": LIMIT,
        }
        if by == ADD_ON:
            settings = with_add_on(server.url, **settings)
        hosts = [(of_site.pages(MS, host=f"{number}.test"), pages) for number in range(HOSTS)]
        with crawling(settings, hosts, warm_up=HOSTS // 3) as wait:
            ms = 1000 * wait()
        visits = of_site.visits()
    sixth = len(visits) // 6
    begin, end = visits[sixth].end, visits[-sixth].end
    in_between = [visit for visit in visits if begin < visit.end <= end]
    return len(in_between) / (end - begin), ms
