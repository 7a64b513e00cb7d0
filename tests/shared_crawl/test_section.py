"""What the page shows of shared crawls."""

from __future__ import annotations

import pytest
from scrapy.settings import Settings

from semaphore_middleware.shared_crawl.counts import Counts
from semaphore_middleware.shared_crawl.crawls import Crawls
from semaphore_middleware.shared_crawl.section import CrawlsSection


async def test_crawls_that_run_stand_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def crawl(nodes: int, ended_at: float | None = None) -> Counts:
        return Counts(True, nodes, 7, 40, 9, 1, 2, 500, 450, ended_at)

    async def survey(_: Crawls) -> dict[str, Counts]:
        return {"d": crawl(0, 5.0), "c": crawl(0), "b": crawl(2), "a": crawl(0, 6.0)}

    monkeypatch.setattr(Crawls, "survey", survey)
    section = CrawlsSection(Settings({"SEMAPHORE_REDIS_URL": "unix:///nowhere"}))
    rows = await section.survey()
    assert [(row["name"], row["state"]) for row in rows] == [
        *(("b", "running"), ("c", "stopped"), ("a", "ended"), ("d", "ended"))
    ]
    counts = {"nodes": 2, "sites": 7, "queued": 40, "in_flight": 9, "pages": 450, "seen": 500}
    assert rows[0].items() >= {**counts, "dead_letters": 1, "ended_at": None}.items()
    assert section.gauges.keys() <= rows[0].keys()
    assert "exists" not in rows[0]
