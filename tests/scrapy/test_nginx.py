"""nginx, which limits open requests strictly, refuses no request of three nodes."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from scrapy import Request

from tests.support.crawls import Crawl
from tests.support.nodes import eventually
from tests.support.servers import RedisServer, free_port
from tests.support.visits import Visits

NGINX = shutil.which("nginx") or "/usr/sbin/nginx"  # on no user's PATH
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path(NGINX).exists(), reason="nginx is not installed"),
]
REFUSED = 418
OPEN_MOST = 3
CONFIGURATION = """
user root; daemon off; worker_processes 1; pid {directory}/pid; error_log {directory}/log;
events {{ worker_connections 99; }}
http {{
  access_log off; client_body_temp_path {directory}/1; proxy_temp_path {directory}/2;
  fastcgi_temp_path {directory}/3; uwsgi_temp_path {directory}/4; scgi_temp_path {directory}/5;
  limit_conn_zone $server_name zone=open:1m; limit_conn_status {refused};
  server {{
    listen 127.0.0.1:{port}; server_name judge; root {directory};
    location / {{ limit_conn open {most}; limit_rate 16k; try_files /page =404; }}
  }}
}}
"""


class Refused(Visits):
    """Gets refusals in its callback."""

    handle_httpstatus_list = (REFUSED,)


@asynccontextmanager
async def nginx(directory: Path) -> AsyncIterator[str]:
    """The address of an nginx that runs during the `async with`."""
    port = free_port()
    text = CONFIGURATION.format(directory=directory, port=port, refused=REFUSED, most=OPEN_MOST)
    files = {"page": 20_000 * "x", "conf": text}
    for name, content in files.items():
        (directory / name).write_text(content)
    process = await asyncio.create_subprocess_exec(NGINX, "-c", directory / "conf")
    try:
        await eventually((directory / "pid").exists)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.parametrize(("limit", "is_refused"), [(OPEN_MOST, False), (2 * OPEN_MOST, True)])
async def test_three_nodes_are_refused_only_what_their_limit_allows_too_much(
    server: RedisServer, tmp_path: Path, limit: int, is_refused: bool
) -> None:
    async with nginx(tmp_path) as address:
        crawls = [
            Crawl(
                server,
                *(Request(f"{address}/{node}/{number}") for number in range(20)),
                spider=Refused,
                limit=limit,
                SEMAPHORE_NODE=f"node-{node}",
            )
            for node in range(3)
        ]
        for crawl in crawls:
            await crawl.finished()
    statuses = [response.status for crawl in crawls for response in crawl.spider.responses]
    assert len(statuses) == 60
    assert (REFUSED in statuses) == is_refused
