"""A crawl of many hosts whose limits hold nothing back: pages a second, and the scheduler's queue.

The limits are never met: what a node lacks to plain Scrapy is its requests' wait for the server's
answer, and the time in which it looks for the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import process_time
from types import SimpleNamespace
from typing import Any
from unittest import mock

from scrapy import Request
from scrapy.pqueues import DownloaderAwarePriorityQueue
from scrapy.squeues import FifoMemoryQueue
from scrapy.utils.test import get_crawler

from lab.benchmarks.harness.crawls import crawling, with_add_on
from lab.benchmarks.harness.figures import alternating, median_ratio, ratios_text
from lab.benchmarks.harness.report import Cell, Goal, Report
from lab.benchmarks.harness.site import site
from semaphore_middleware.model.limits import Limit, parse_limits
from semaphore_middleware.scrapy import hooks
from semaphore_middleware.scrapy.admission import Admissions
from semaphore_middleware.scrapy.scopes import ScopeFinder
from tests.support.servers import RedisServer

HOSTS, SLOTS, LIMIT = 300, 16, 8
MS = "80-120"  # of a page
QUEUED = 1_000, 10_000, 60_000  # hosts
MOST_POP_MS = 0.05
ADD_ON, PLAIN = "add-on", "plain Scrapy"
COLUMNS = ("measured", ADD_ON, PLAIN)


def measure(quick: bool) -> Report:
    rounds, pages = (1, 1) if quick else (5, 6)
    sizes = QUEUED[:1] if quick else QUEUED
    found: dict[str, list[tuple[float, float]]] = {ADD_ON: [], PLAIN: []}
    for by in alternating(rounds, [ADD_ON, PLAIN]):
        found[by].append(_speed(by, pages))
    (ours, ours_ms), (theirs, theirs_ms) = (zip(*found[by], strict=True) for by in (ADD_ON, PLAIN))
    ratio = median_ratio(ours, theirs)
    pops = [(hosts, *(_pop_ms(_queue(by), hosts) for by in (ADD_ON, PLAIN))) for hosts in sizes]
    rows: list[Sequence[Cell]] = [
        ("pages a second", median(ours), median(theirs)),
        ("processor time a page, ms", median(ours_ms), median(theirs_ms)),
        *((f"a pop with {hosts:,} hosts queued, ms", our, their) for hosts, our, their in pops),
    ]
    goals = [
        Goal("pages a second, add-on / plain Scrapy", ratio, at_least=0.95),
        *(Goal(f"pop, {hosts:,} hosts", our, at_most=MOST_POP_MS) for hosts, our, _ in pops),
    ]
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


# The queue --------------------------------------------------------------------------------------


def _pop_ms(queue: DownloaderAwarePriorityQueue, hosts: int) -> float:
    """Milliseconds of processor time for one pop with so many hosts queued."""
    for number in range(2 * hosts):
        queue.push(Request(f"http://{number % hosts}.test/{number}"))
    pops = min(hosts, 200)
    begin = process_time()
    for _ in range(pops):
        queue.pop()
    return 1000 * (process_time() - begin) / pops


def _queue(by: str) -> DownloaderAwarePriorityQueue:
    """A queue in memory. Its downloader is idle."""
    crawler = get_crawler()
    downloader = SimpleNamespace(slots={}, get_slot_key=lambda request: request.url.split("/")[2])
    crawler.engine = SimpleNamespace(downloader=downloader)  # type: ignore[assignment]
    limits = parse_limits({}, {}, Limit(LIMIT))
    admissions = Admissions(ScopeFinder(("host",), limits), SLOTS, lambda: None)
    crawl = SimpleNamespace(downloads=SimpleNamespace(admissions=admissions))
    kind = hooks.SemaphorePriorityQueue if by == ADD_ON else DownloaderAwarePriorityQueue
    with mock.patch.object(hooks, "crawl_of", return_value=crawl):
        return kind.from_crawler(crawler, FifoMemoryQueue, "")
