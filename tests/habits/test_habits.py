"""What a project does with Scrapy's scheduler, it does on three nodes: same pages, same items."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from redis import Redis

from tests.habits import spiders
from tests.habits.site import PAGES, Site, serving
from tests.support.scrapy_process import ScrapyProcess
from tests.support.servers import RedisServer

NODES = 3
SHARED = {
    "ADDONS": json.dumps({"semaphore_middleware.addon.SemaphoreAddon": 0}),
    "SCHEDULER": "semaphore_middleware.Scheduler",
}
NAMES = sorted(
    vars(spider)["name"]
    for spider in vars(spiders).values()
    if isinstance(spider, type) and spider.__module__ == spiders.__name__ and "name" in vars(spider)
)


class Crawled(NamedTuple):
    """What a crawl has done: of nodes that all did well."""

    asked: Counter[str]
    items: Counter[str]
    statuses: set[int]


def crawled(
    name: str, nodes: int, server: RedisServer, directory: Path, **settings: str
) -> Crawled:
    directory.mkdir()
    with serving() as site, server.client() as client:
        fill(client, site)
        processes = [
            start(name, site, server, directory / f"{node}", settings) for node in range(nodes)
        ]
        statuses = {process.wait() for process in processes}
        asked = Counter({what: n for what, n in site.asked.items() if "robots.txt" not in what})
        lines = [
            plain(line, site)
            for file in sorted(directory.glob("*/items.jl"))
            for line in file.read_text().splitlines()
        ]
    return Crawled(asked, Counter(lines), statuses)


def plain(line: str, site: Site) -> str:
    """An item without what differs from one site to the next."""
    item = json.loads(line)
    for file in item.get("files", ()):
        del file["path"]
    return json.dumps(item, sort_keys=True).replace(site.url, "")


def fill(client: Redis, site: Site) -> None:
    client.flushall()
    client.rpush("habits:urls", *(f"{site.url}/page/{n}" for n in range(PAGES)))
    client.set("habits:closed", 1)


def start(
    name: str, site: Site, server: RedisServer, directory: Path, settings: dict[str, str]
) -> ScrapyProcess:
    directory.mkdir()
    options = [word for pair in settings.items() for word in ("-s", "=".join(pair))]
    return ScrapyProcess(
        *("crawl", name, "-a", f"site={site.url}", "-o", "items.jl", *options),
        directory=directory,
        log_file=directory / "log",
        SCRAPY_SETTINGS_MODULE="tests.habits.settings",
        REDIS_URL=server.url,
        HABITS_REDIS_URL=server.url,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_three_nodes_do_what_scrapy_does_alone(
    name: str, server: RedisServer, tmp_path: Path
) -> None:
    alone = crawled(name, 1, server, tmp_path / "alone")
    shared = crawled(name, NODES, server, tmp_path / "shared", **SHARED)
    assert alone.items.total() > 0
    assert shared == alone


@pytest.mark.slow
def test_the_next_run_asks_only_what_has_changed(server: RedisServer, tmp_path: Path) -> None:
    settings = {
        **SHARED,
        "CRAWL_RECRAWL_AFTER": "1h",
        "HTTPCACHE_ENABLED": "True",
        "HTTPCACHE_POLICY": "scrapy.extensions.httpcache.RFC2616Policy",
        "HTTPCACHE_DIR": f"{tmp_path / 'cache'}",
    }
    with serving() as site:
        first = start("rules", site, server, tmp_path / "first", settings)
        assert first.wait() == 0
        assert site.asked[f"GET /page/{PAGES - 1}"] == 1
        site.asked.clear()
        settings["CRAWL_RUN"] = "new"
        second = start("rules", site, server, tmp_path / "second", settings)
        assert second.wait() == 0
        assert site.asked == {"GET /page/0": 1, "304 /page/0": 1}
