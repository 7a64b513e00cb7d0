"""The programs of docs/without-scrapy.md and their examples, two of each at once, at a site that
counts.

A URL without a host among theirs stops none.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest

from tests.docs.pages import Block, block_of, blocks, name_of
from tests.docs.test_names import is_program
from tests.support.nodes import eventually
from tests.support.paths import REPOSITORY
from tests.support.servers import RedisServer, free_port
from tests.support.site import Site
from tests.support.times import TIMEOUT_S

pytestmark = pytest.mark.slow

BLOCKS = [block for block in blocks() if block.page == "docs/without-scrapy.md"]
RECIPES = {name[1]: block for block in BLOCKS if (name := re.match(r"# (\w+)\.py\n", block.text))}
EXAMPLES = {
    path.stem: Block(name_of(path), "python", path.read_text("utf-8"))
    for path in (REPOSITORY / "docs/examples").glob("*/*.py")
}
LIBRARIES = ("httpx", "aiohttp", "requests")
PAGES = 20
BAD_URL = "example.com/x"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
CELERY = [sys.executable, "-m", "celery", "--app", "tasks"]


def written(recipe: Block, directory: Path, name: str, server: RedisServer, site: Site) -> None:
    """Write the program, for this server and this site, which takes a while for each page."""
    text = recipe.text.replace('broker="redis:', 'broker="redis+socket:')
    text = text.replace("redis+socket://localhost", server.url.replace("unix:", "redis+socket:"))
    text = text.replace("redis://localhost", server.url)
    text = text.replace("https://example.com/page", site.url("/take/0.01"))
    text = text.replace('"example.com"', '"127.0.0.1"')
    text = text.replace(
        "for number in range(20)]", f'for number in range({PAGES})] + ["{BAD_URL}"]'
    )
    (directory / f"{name}.py").write_text(text)


async def run(directory: Path, *command: str, **environment: str) -> str:
    """Run a command, which must succeed, and return what it prints."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=directory, env=ENVIRONMENT | environment, stdout=PIPE, stderr=STDOUT
    )
    try:
        printed, _ = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    assert process.returncode == 0, printed.decode()
    return printed.decode()


@pytest.mark.parametrize("library", LIBRARIES)
async def test_two_programs_hold_a_limit_together(
    server: RedisServer, site: Site, tmp_path: Path, library: str
) -> None:
    pytest.importorskip(library)
    name = f"with_{library}"
    written((RECIPES | EXAMPLES)[name], tmp_path, name, server, site)
    await asyncio.gather(*(run(tmp_path, sys.executable, f"{name}.py") for _ in range(2)))
    assert (site.most, len(site.visits)) == (2, 2 * PAGES)
    assert server.members() == {}


async def test_a_decorated_function_runs(server: RedisServer, site: Site, tmp_path: Path) -> None:
    written(RECIPES["decorated"], tmp_path, "decorated", server, site)
    await run(tmp_path, sys.executable, "decorated.py")
    assert server.members() == {}


ASK_API = """
import asyncio, httpx
from api import app


async def main():
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client,
    ):
        answers = await asyncio.gather(*(client.get(f"/length/{n}") for n in range(PAGES)))
    assert {answer.status_code for answer in answers} == {200}


asyncio.run(main())
"""


async def test_workers_of_fastapi_hold_a_limit_together_and_say_that_a_site_is_busy(
    server: RedisServer, site: Site, tmp_path: Path
) -> None:
    pytest.importorskip("fastapi")
    for name in ("api", "test_api"):
        written(RECIPES[name], tmp_path, name, server, site)
    ask = (sys.executable, "-c", ASK_API.replace("PAGES", str(PAGES)))
    await asyncio.gather(*(run(tmp_path, *ask, REDIS_URL=server.url) for _ in range(2)))
    assert (site.most, len(site.visits)) == (2, 2 * PAGES)
    assert server.members() == {}
    assert "1 passed" in await run(tmp_path, sys.executable, "-m", "pytest", "-q", "test_api.py")
    assert len(site.visits) == 2 * PAGES


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on PATH")
async def test_clients_of_two_servers_hold_a_limit_together_and_give_back_permits_when_they_end(
    server: RedisServer, site: Site, tmp_path: Path
) -> None:
    written(RECIPES["permits"], tmp_path, "permits", server, site)
    script = block_of("docs/without-scrapy.md", "bash")
    script = script.replace("https://example.com/report.csv", site.url("/take/0.05/report.csv"))
    script = script.replace("/permit/example.com", "/permit/127.0.0.1")
    servers = [await serving_permits(tmp_path) for _ in range(2)]
    try:
        clients = (
            run(tmp_path, "bash", "-euc", script.replace("8380", str(port)))
            for _, port in 4 * servers
        )
        await asyncio.gather(*clients)
        assert (site.most, len(site.visits)) == (2, 8)
        await eventually(lambda: server.members() == {})
    finally:
        for process, _ in servers:
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 0


async def serving_permits(directory: Path) -> tuple[asyncio.subprocess.Process, int]:
    """Start the recipe's server on a free port."""
    port = free_port()
    program = (directory / "permits.py").read_text().replace("port=8380", f"port={port}")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program), cwd=directory, env=ENVIRONMENT, stdout=PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(TIMEOUT_S):
        assert b"Running on" in await process.stdout.readline()
    return process, port


def test_each_program_of_the_page_is_run() -> None:
    """Those without a name are run by test_names.py."""
    with_ = {f"with_{library}" for library in LIBRARIES}
    assert EXAMPLES.keys() == {"with_httpx", "tasks"}
    assert RECIPES.keys() | EXAMPLES == {
        *(*with_, "decorated", "tasks"),
        *("api", "permits", "test_api"),
    }
    unnamed = [
        block for block in BLOCKS if block.kind == "python" and block not in RECIPES.values()
    ]
    assert unnamed == list(filter(is_program, unnamed))


@pytest.mark.skipif(find_spec("celery") is None, reason="celery is not installed")
@pytest.mark.parametrize("pool", ["prefork", "threads"])
async def test_celery_s_workers_hold_a_limit_together(
    server: RedisServer, site: Site, tmp_path: Path, pool: str
) -> None:
    written(EXAMPLES["tasks"], tmp_path, "tasks", server, site)
    await run(
        tmp_path,
        *(sys.executable, "-c", "import tasks, sys; [tasks.fetch.delay(u) for u in sys.argv[1:]]"),
        *(site.url(f"/take/0.01/{number}") for number in range(PAGES)),
        BAD_URL,
    )
    command = (*CELERY, "worker", "--pool", pool, "--concurrency", "4")
    with (tmp_path / "log").open("wb") as log:
        worker = await asyncio.create_subprocess_exec(
            *command, cwd=tmp_path, env=ENVIRONMENT, stdout=log, stderr=STDOUT
        )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await site.until(lambda: len(site.visits) == PAGES and site.now == 0)
    finally:
        worker.send_signal(signal.SIGTERM)
        await worker.wait()
    assert site.most == 2, (tmp_path / "log").read_text()
    assert server.members() == {}
