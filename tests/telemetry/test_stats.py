"""What a crawl's stats tell of its permits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scrapy import Request

from tests.support.crawls import Crawl, asyncio_test, both, until, waiting
from tests.support.servers import RedisServer
from tests.support.site import Site

HOST = "127.0.0.1"


@both
@asyncio_test
async def test_they_count_permits_and_waits_in_all_and_by_scope(
    server: RedisServer, site: Site, by: Mapping[str, Any]
) -> None:
    requests = [Request(site.url(f"/slow/{n}")) for n in range(4)]
    crawl = Crawl(server, *requests, by=by, limit=2)
    await until(lambda: waiting(server) == 2)
    site.let_go()
    await crawl.gave_back(4, site)

    stats = crawl.crawler.stats.get_stats()
    ours = {name: stats[name] for name in stats if name.startswith("semaphore/")}
    assert ours["semaphore/held_max"] == 2
    assert ours["semaphore/waited"] == 2
    assert 0 < ours["semaphore/wait_seconds_max"] < ours["semaphore/wait_seconds"]
    for name in ("acquired", "waited", "wait_seconds"):
        assert ours[f"semaphore/scope/{HOST}/{name}"] == ours[f"semaphore/{name}"]
