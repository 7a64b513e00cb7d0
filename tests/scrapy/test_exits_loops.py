"""How permits of whole processes go back, with each event loop that Scrapy can run on.

The other `test_exits*.py` show the same on the asyncio reactor, in the test's own process.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request

from semaphore_middleware.scrapy.versions import START_MAY_CLOSE
from tests.support.crawls import ADD_ON, ALONE, By, scrapy
from tests.support.scrapy_process import ScrapyProcess
from tests.support.servers import RedisServer, free_port
from tests.support.site import Site

UVLOOP = ("-s", "ASYNCIO_EVENT_LOOP=uvloop.Loop")  # a spider's own settings come too late
NO_REACTOR = ("-s", "TWISTED_REACTOR_ENABLED=False")
each_way = pytest.mark.parametrize(
    ("by", "loop"),
    [
        pytest.param(ADD_ON, UVLOOP, id="add-on-uvloop"),
        pytest.param(ADD_ON, NO_REACTOR, id="add-on-no reactor", marks=pytest.mark.slow),
        pytest.param(ALONE, NO_REACTOR, id="middleware alone-no reactor"),
    ],
)


def assert_gave_back(crawl: ScrapyProcess, server: RedisServer, requests: int) -> None:
    # A request whose site pauses before it has begun gives its permit back, and asks again.
    assert crawl.stat("semaphore/acquired") == crawl.stat("semaphore/released") >= requests
    assert server.members() == {}


@each_way
async def test_permits_go_back_however_requests_end(
    server: RedisServer, site: Site, tmp_path: Path, by: By, loop: tuple[str, ...]
) -> None:
    unreachable = f"http://127.0.0.1:{free_port()}/"
    requests_of = {
        # First, as Scrapy 2.19 forgets robots.txt for all but two of those that wait for it.
        site.url("/forbidden"): 0,
        site.url("/page/"): 1,
        site.url("/redirect/page/to"): 2,
        site.url("/status/503"): 1,
        site.url("/status-once/503"): 2,
        site.url("/drop-midway"): 2,
        site.url("/never"): 2,
        unreachable: 2,
        "data:,a page": 0,
    }
    robots = 1 + 2  # of the site; of the one that cannot be reached, with a retry
    metas: dict[str, Any] = {
        site.url("/never"): {"download_timeout": 0.5},
        # Who makes it again depends on what the site has answered others meanwhile.
        site.url("/status/503"): {"dont_retry": True},
    }
    if by is ADD_ON:  # which forbids a site whose robots.txt cannot be read
        robots = 1
        metas[unreachable] = {"dont_obey_robotstxt": True}
    requests = [Request(url, meta=metas.get(url)) for url in requests_of]
    ours = {**by, "SEMAPHORE_REDIS_URL": server.url, "CONCURRENT_REQUESTS_PER_DOMAIN": 2}
    async with scrapy(tmp_path, *requests, options=loop, ROBOTSTXT_OBEY=True, **ours) as crawl:
        assert await crawl.ended() == 0
    assert_gave_back(crawl, server, sum(requests_of.values()) + robots)
    # On a busy machine a request that is given up soon may not reach the site.
    counted = {
        u: n for u, n in requests_of.items() if u.startswith(site.url("/")) and "never" not in u
    }
    asked = [path for path in site.arrivals if path != "/never"]
    assert len(asked) == 1 + sum(counted.values()), crawl.log
    assert site.most <= 2


@pytest.mark.processes
async def test_a_lost_permit_is_retried(server: RedisServer, site: Site, tmp_path: Path) -> None:
    ours = {**ADD_ON, "SEMAPHORE_REDIS_URL": server.url, "SEMAPHORE_LEASE": 3.0}
    async with scrapy(tmp_path, Request(site.url("/half/")), options=NO_REACTOR, **ours) as crawl:
        await site.until(lambda: site.now == 1)
        server.kill()
        await site.until(lambda: site.now == 0)
        server.start()
        await site.until(lambda: site.now == 1)
        site.let_go()
        assert await crawl.ended() == 0
    assert_gave_back(crawl, server, 2)
    assert crawl.stat("semaphore/lost") == crawl.stat("retry/count") == 1
    assert site.arrivals == ["/half/", "/half/"]


# `scrapy shell`, whose process ends without an end of the crawl, and `scrapy fetch` ---------------


async def run(url: str, directory: Path, *command: str, status: int = 0) -> str:
    """Run a command of Scrapy's, and return what it has printed and logged."""
    settings = {"ADDONS": json.dumps(ADD_ON["ADDONS"]), "SEMAPHORE_REDIS_URL": url}
    typed = [part for name, value in settings.items() for part in ("-s", f"{name}={value}")]
    log_file = directory / "scrapy.log"
    with ScrapyProcess(*command, *typed, directory=directory, log_file=log_file) as process:
        assert await process.ended() == status, process.log
    return process.log


async def test_a_shell_gives_permits_back(server: RedisServer, site: Site, tmp_path: Path) -> None:
    fetch_more = f"fetch({site.url('/page/2')!r}), fetch({site.url('/status/404')!r})"
    await run(server.url, tmp_path, "shell", site.url("/page/1"), "-c", fetch_more)
    assert site.arrivals == ["/page/1", "/page/2", "/status/404"]
    assert server.members() == {}


@pytest.mark.skipif(not START_MAY_CLOSE, reason="older versions begin the request all the same")
@pytest.mark.parametrize("loop", [(), NO_REACTOR], ids=["reactor", "no reactor"])
async def test_a_shell_without_its_server_ends_with_one_line(
    site: Site, tmp_path: Path, loop: tuple[str, ...]
) -> None:
    command = ("shell", site.url("/page/1"), "-c", "response", "--nolog", *loop)
    url = f"redis://127.0.0.1:{free_port()}/0"
    at_once = ("-s", "SEMAPHORE_START_TIMEOUT=0.001")
    [line] = (await run(url, tmp_path, *command, *at_once, status=2)).splitlines()
    assert line.startswith(f"gave up on {url} after SEMAPHORE_START_TIMEOUT (0.001 s): ")
    assert site.arrivals == []


async def test_a_person_is_refused_at_once(server: RedisServer, site: Site, tmp_path: Path) -> None:
    site.refusals, site.refusal_headers = None, {"Retry-After": "200"}
    await run(server.url, tmp_path, "fetch", site.url("/busy/"))
    assert site.arrivals == ["/busy/"]
