"""The history of a crawl under faults agrees with the log of a real nginx."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request

from semaphore_middleware.operators.admin import Admin
from semaphore_middleware.report.history import CLASSES
from semaphore_middleware.report.reader import read_history
from tests.support.crawls import ADD_ON, Crawl, scrapy, within
from tests.support.nodes import eventually
from tests.support.servers import RedisServer, free_port
from tests.support.times import TIMEOUT_S

HOST = "127.0.0.1"
PAGES = 60
MOST_KILLED = 1000  # requests of the node that is killed
LIMIT = 4
KILLED = "killed/1.0"  # a user agent
CONFIG = """\
daemon off;
master_process off;
pid {directory}/pid;
error_log {directory}/error.log;
events {{}}
http {{
  log_format timed '$remote_addr - - [$time_local] "$request" $status $body_bytes_sent '
    '"$http_referer" "$http_user_agent" $request_time';
  access_log {directory}/access.log timed;
  client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;
  fastcgi_temp_path {directory}/fastcgi; uwsgi_temp_path {directory}/uwsgi;
  scgi_temp_path {directory}/scgi;
  limit_req_zone all zone=all:1m rate=20r/s;
  limit_req_zone nobody zone=robotstxt:1m rate=1000r/s;
  limit_req_status 429;
  server {{
    listen 127.0.0.1:{port};
    limit_req zone=all burst=5 nodelay;
    root {directory};
    location / {{ try_files /page.txt =404; }}
    location /robots.txt {{ limit_req zone=robotstxt; }}
    location /moved {{ try_files $uri @moved; }}
    location @moved {{ return 301 /page/moved; }}
    location /none {{ try_files $uri =404; }}
    location /busy {{ return 429; }}
  }}
}}
"""


@pytest.fixture
def nginx(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of a site that takes 20 requests a second, and its log."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if not program:
        pytest.skip("nginx is not installed")
    config, port = tmp_path / "nginx.conf", free_port()
    config.write_text(CONFIG.format(directory=tmp_path, port=port))
    (tmp_path / "page.txt").write_text("a page")
    (tmp_path / "robots.txt").write_text("User-agent: *\nDisallow: /private\n")
    with subprocess.Popen([program, "-e", tmp_path / "error.log", "-c", config]) as process:
        yield f"http://127.0.0.1:{port}", tmp_path / "access.log"
        process.terminate()


@pytest.mark.slow
@within(TIMEOUT_S)
async def test_the_history_fits_the_log_of_nginx(
    server: RedisServer, nginx: tuple[str, Path], tmp_path: Path
) -> None:
    site, log = nginx
    await eventually(log.exists)
    await crawl_under_faults(server, site, log, tmp_path)
    async with Admin(server.url) as admin:
        history = await read_history(admin, HOST, 3600)
    total = history.sum()
    lines = log.read_text().splitlines()
    whole = [line for line in lines if KILLED not in line]  # of nodes that wrote all their batches
    # A request that the crawler gave up is logged as answered, or did not reach the site.
    assert len(whole) <= total.requests <= len(lines) + total.silent
    for name, statuses in CLASSES.items():
        answered = getattr(total, name)
        assert answered <= count_of(lines, statuses[0]), name
        assert answered + total.silent >= count_of(whole, statuses[0]), name
    assert 0 < total.refused <= count_of(lines, "429")
    assert len(history.robotstxt) == 1
    assert 1 <= total.most <= LIMIT


def count_of(lines: list[str], status: str) -> int:
    """The number of lines whose status begins with this."""
    return sum(f'" {status}' in line for line in lines)


async def crawl_under_faults(server: RedisServer, site: str, log: Path, directory: Path) -> None:
    """Three nodes crawl, another is killed, and the server closes all connections repeatedly."""
    paths = [*(f"/page/{n}" for n in range(PAGES)), "/moved", "/none", "/private"]
    settings: dict[str, Any] = {
        "ROBOTSTXT_OBEY": True,
        "SEMAPHORE_LEASE": 3.0,
        "SEMAPHORE_BACKOFF_TIMES": 10,
        "SEMAPHORE_BACKOFF_START": 0.2,
        "SEMAPHORE_BACKOFF_MAX": 1.0,
    }
    killed = {
        **settings,
        "USER_AGENT": KILLED,
        "SEMAPHORE_NODE": "killed",
        "SEMAPHORE_REDIS_URL": server.url,
        "CONCURRENT_REQUESTS_PER_DOMAIN": LIMIT,
        **ADD_ON,
    }
    requests = [Request(f"{site}/killed/{n}") for n in range(MOST_KILLED)]
    async with scrapy(directory, *requests, **killed) as process:
        crawls = [
            Crawl(
                server,
                *(Request(f"{site}{path}?{number}") for path in paths),
                Request(f"{site}/busy?{number}", meta={"handle_httpstatus_list": [429]}),
                limit=LIMIT,
                SEMAPHORE_NODE=f"node{number}",
                **settings,
            )
            for number in range(3)
        ]
        await eventually(lambda: "/killed/" in log.read_text())
        process.kill()
        while not all(crawl._task.done() for crawl in crawls):
            with server.client() as client:
                client.client_kill_filter(_type="normal")
            await asyncio.sleep(1.0)
        for crawl in crawls:
            await crawl.finished()
