"""`scrapy shell`: its process ends without an end of the crawl."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.support.crawls import ADD_ON
from tests.support.paths import REPOSITORY
from tests.support.scrapy_process import ScrapyProcess
from tests.support.servers import RedisServer
from tests.support.site import Site


async def test_a_shell_gives_its_permits_back_before_its_process_ends(
    server: RedisServer, site: Site, tmp_path: Path
) -> None:
    settings = {"ADDONS": json.dumps(ADD_ON["ADDONS"]), "SEMAPHORE_REDIS_URL": server.url}
    typed = [part for name, value in settings.items() for part in ("-s", f"{name}={value}")]
    fetch_more = f"fetch({site.url('/page/2')!r}), fetch({site.url('/status/404')!r})"
    shell = ScrapyProcess(
        *("shell", site.url("/page/1"), "-c", fetch_more, *typed),
        directory=tmp_path,
        log_file=tmp_path / "shell.log",
        environment={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    try:
        assert await shell.ended() == 0, shell.log
    finally:
        shell.kill()
    assert site.arrivals == ["/page/1", "/page/2", "/status/404"]
    assert server.members() == {}
