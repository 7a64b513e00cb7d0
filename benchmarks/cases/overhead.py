"""What the add-on costs a crawl that no limit holds back, in processor time of its process."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median, quantiles
from typing import Any

from benchmarks.harness.crawls import crawl, with_add_on
from benchmarks.harness.report import Goal, Report
from benchmarks.harness.site import site
from tests.support.servers import RedisServer

LATENCY = 5.0  # of the site, milliseconds
LIMIT = 64  # permits: four times as many as are ever wanted at once
PLAIN, ADD_ON, BY_HAND = "plain Scrapy", "with the add-on", "one Lua call a request, by hand"


def measure(quick: bool) -> Report:
    rounds, pages, warm_up = (1, 300, 100) if quick else (7, 2000, 500)
    with site() as pages_of:
        server = RedisServer().start()
        try:
            times = _times(server.url, pages_of.pages(LATENCY), rounds, pages, warm_up)
        finally:
            server.remove()
    how = (
        f"{rounds} rounds, in each of them every crawl once, in turn; the medians of their ratios.",
        f"{pages} pages a crawl, after {warm_up} to warm up; the spider does nothing with them.",
        f"The site is a process of its own and answers in {LATENCY:g} ms.",
        "Python's garbage collector is left as it is, in all of them.",
        f"Equal in all: Scrapy's defaults, 16 requests at once, a pool of {LIMIT} connections.",
    )
    return Report(
        title="overhead: processor time of a crawl that no limit holds back",
        columns=["crawl", "ms a request", "times plain Scrapy's", "middle half of the rounds"],
        rows=[
            (name, 1000 * median(found), *_ratio(found, times[PLAIN]))
            for name, found in times.items()
        ],
        goals=[Goal(f"{ADD_ON} / {PLAIN}", _ratio(times[ADD_ON], times[PLAIN])[0], at_most=1.02)],
        notes=how,
    )


def _times(
    url: str, pages_of: str, rounds: int, pages: int, warm_up: int
) -> dict[str, list[float]]:
    """Of each crawl, seconds a page in each round."""
    settings: Mapping[str, Mapping[str, Any]] = {
        PLAIN: {},
        ADD_ON: with_add_on(url),
        BY_HAND: {
            "DOWNLOADER_MIDDLEWARES": {"benchmarks.harness.by_hand.OneCall": 950},
            "BY_HAND_REDIS_URL": url,
        },
    }
    times: dict[str, list[float]] = {name: [] for name in settings}
    names = list(settings)
    for _ in range(rounds):
        for name in names:
            own = {"CONCURRENT_REQUESTS_PER_DOMAIN": LIMIT, **settings[name]}
            outcome = crawl(own, [(pages_of, warm_up + pages)], warm_up)
            assert outcome.pages == warm_up + pages
            times[name].append(outcome.time_per_page)
        names.append(names.pop(0))  # none is always the first
    return times


def _ratio(times: list[float], yardstick: list[float]) -> tuple[float, str]:
    """Of each round, and so of crawls that ran within seconds of each other."""
    ratios = [ours / theirs for ours, theirs in zip(times, yardstick, strict=True)]
    low, _, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else 3 * ratios
    return median(ratios), f"{low:.3f} to {high:.3f}"
