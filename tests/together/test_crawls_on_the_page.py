"""The page and its metrics show shared crawls."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from semaphore_middleware import FairSemaphore, ServerUnreachableError
from semaphore_middleware.console import server as web
from semaphore_middleware.console.fleet_metrics import ClusterMetrics
from semaphore_middleware.operators.snapshot import Snapshot
from semaphore_middleware.shared_crawl.client import CrawlClient
from semaphore_middleware.shared_crawl.counts import Counts
from semaphore_middleware.shared_crawl.crawls import Crawls
from semaphore_middleware.shared_crawl.settings import CrawlSettings
from tests.console.pages import MARKUP, STRANGE, check, looking, rows, serving, survey_at_each_visit
from tests.console.test_fleet_metrics import seen_at, value
from tests.console.test_serve import SERVE, read, state
from tests.support.blocking import result_of
from tests.support.browser import CHROMIUM, WHY_NOT, Chromium
from tests.support.cli import listening
from tests.support.nodes import eventually
from tests.support.servers import RedisServer
from tests.support.shared_crawl import set_one_aside

Patch = pytest.MonkeyPatch


@pytest.fixture
def prompt(monkeypatch: Patch) -> None:
    survey_at_each_visit(monkeypatch)


def test_shared_crawls_are_those_of_the_project_s_settings_and_changes_need_a_token(
    server: RedisServer, tmp_path: Path
) -> None:
    client = CrawlClient(CrawlSettings(server.url, "books", "node", prefix="mine"))
    secret, other = "the-token-of-the-environment", "the-token-of-the-option"
    prefix, token = ("-s", "CRAWL_PREFIX=mine"), ("--token", other)
    try:
        result_of(client.join())
        for more, given, refused in ((token, other, secret), ((), secret, other)):
            arguments = (*SERVE, *prefix, *more)
            with listening(server, tmp_path, *arguments, SEMAPHORE_TOKEN=secret) as (_, address):
                told = state(address)
                assert [crawl["name"] for crawl in told["crawls"]] == ["books"]
                assert (told["server"], told["can_change"]) == (server.url, True)
                assert read(address, "token", given)[0] == 204
                assert read(address, "token", refused)[0] == 403
    finally:
        result_of(client.link.close())


@pytest.mark.usefixtures("prompt")
async def test_a_visit_that_waits_for_crawls_counts_no_older_survey(
    server: RedisServer, monkeypatch: Patch
) -> None:
    noted: list[int] = []
    note, asked, let_go = ClusterMetrics.count_starts, asyncio.Event(), asyncio.Event()

    def note_too(self: ClusterMetrics, snapshot: Snapshot) -> None:
        note(self, snapshot)
        noted.append(sum(row.started for row in snapshot.scopes))

    async def survey(_: Crawls) -> dict[str, Counts]:
        asked.set()
        await let_go.wait()
        return {}

    monkeypatch.setattr(ClusterMetrics, "count_starts", note_too)
    monkeypatch.setattr(Crawls, "survey", survey)
    monkeypatch.setattr(web, "UNSEEN_INTERVAL_S", 0.01)
    async with serving(server) as page, FairSemaphore(server.url, reuse_window=0, lease=3) as node:
        await node.acquire("a", 9)
        await eventually(lambda: 1 in noted)
        visit = asyncio.create_task(seen_at(page))
        await asked.wait()
        known = len(noted)
        await eventually(lambda: len(noted) > known + 1)
        await node.acquire("a", 9)
        await eventually(lambda: 2 in noted)
        let_go.set()
        assert value(await visit, "permits_granted_total", scope="a") == 2


@pytest.mark.usefixtures("prompt")
async def test_they_tell_of_shared_crawls(server: RedisServer, monkeypatch: Patch) -> None:
    async def fail(_: Crawls) -> dict[str, Counts]:
        raise ServerUnreachableError("no answer")

    await set_one_aside(server, "shop")
    async with serving(server) as page:
        assert value(await seen_at(page), "crawl_dead_letters", crawl="shop") == 1
        monkeypatch.setattr(Crawls, "survey", fail)
        seen = await seen_at(page)
        assert value(seen, "server_up", prefix="semaphore") == 1
        assert value(seen, "crawl_dead_letters", crawl="shop") is None, "it is old"


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)
async def test_crawls_are_listed_and_their_names_stay_text_whatever_they_are(
    server: RedisServer, chromium: Chromium
) -> None:
    async with looking(server, chromium) as (browser, _):
        await browser.until("document.querySelector('#crawls').hidden")
        await set_one_aside(server, "books")
        await browser.until("document.querySelector('#crawls').hidden", False)
        shown = f"{rows('#crawls')}.map((row) => row.with(1, row[1].replace(/ [^]*/, '')))"
        await browser.until(shown, [["books", "ended", *"00001021"]])
        await check(browser)
        for name in STRANGE:
            await set_one_aside(server, name)
        await browser.until(f"{rows('#crawls')}.length", 1 + len(STRANGE))
        assert await browser.see(MARKUP) == 0
        for width in (1280, 360):
            await browser.size(width, 740, phone=width == 360)
            await check(browser)
