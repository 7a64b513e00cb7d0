"""`scrapy shell`, whose process ends without an end of the crawl, and `scrapy fetch`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.crawls import ADD_ON
from tests.support.scrapy_process import ScrapyProcess
from tests.support.servers import RedisServer
from tests.support.site import Site


async def run(server: RedisServer, directory: Path, *command: str) -> None:
    settings = {"ADDONS": json.dumps(ADD_ON["ADDONS"]), "SEMAPHORE_REDIS_URL": server.url}
    typed = [part for name, value in settings.items() for part in ("-s", f"{name}={value}")]
    process = ScrapyProcess(
        *(*command, *typed),
        directory=directory,
        log_file=directory / "scrapy.log",
    )
    try:
        assert await process.ended() == 0, process.log
    finally:
        process.kill()


async def test_a_shell_gives_its_permits_back_before_its_process_ends(
    server: RedisServer, site: Site, tmp_path: Path
) -> None:
    fetch_more = f"fetch({site.url('/page/2')!r}), fetch({site.url('/status/404')!r})"
    await run(server, tmp_path, "shell", site.url("/page/1"), "-c", fetch_more)
    assert site.arrivals == ["/page/1", "/page/2", "/status/404"]
    assert server.members() == {}


async def test_a_person_is_refused_at_once(server: RedisServer, site: Site, tmp_path: Path) -> None:
    site.refusals, site.refusal_headers = None, {"Retry-After": "200"}
    await run(server, tmp_path, "fetch", site.url("/busy/"))
    assert site.arrivals == ["/busy/"]
