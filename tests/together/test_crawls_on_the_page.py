"""The page and its metrics show shared crawls."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from semaphore_middleware import FairSemaphore, ServerUnreachableError
from semaphore_middleware.console import server as web
from semaphore_middleware.console.fleet_metrics import FleetMetrics
from semaphore_middleware.operators.admin import Admin
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
from tests.support.cli import listening, semaphore
from tests.support.nodes import eventually
from tests.support.rights import assert_refused_nothing, user
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
    note, asked, let_go = FleetMetrics.count_starts, asyncio.Event(), asyncio.Event()

    def note_too(self: FleetMetrics, snapshot: Snapshot) -> None:
        note(self, snapshot)
        noted.append(sum(row.started for row in snapshot.scopes))

    async def survey(_: Crawls) -> dict[str, Counts]:
        asked.set()
        await let_go.wait()
        return {}

    monkeypatch.setattr(FleetMetrics, "count_starts", note_too)
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


@pytest.mark.parametrize("name", ["viewer", "operator"])
async def test_the_documented_users_see_all_that_there_is(server: RedisServer, name: str) -> None:
    await set_one_aside(server, "books")
    url = user(server, name=name)
    async with FairSemaphore(server.url) as node, serving(server, None, url) as page:
        await node.acquire("a.example", 2)
        state = await page.state(open="a.example")
        assert {state[part] for part in state if "problem" in part} == {None}
        assert [scope["scope"] for scope in state["scopes"]] == ["a.example"]
        assert [crawl["name"] for crawl in state["crawls"]] == ["books"]
        assert value(await seen_at(page), "server_up", prefix="semaphore") == 1
    if name == "operator":  # a viewer may not make the index of crawls
        assert_refused_nothing(server)


async def test_an_operator_may_use_all_commands(server: RedisServer) -> None:
    await set_one_aside(server, "books")
    url = user(server, name="operator")
    async with Admin(server.url) as admin:
        await admin.configure("a.example", 1)
    for command, *words in (
        *(("frontier", "status"), ("frontier", "retry", "books"), ("frontier", "end", "books")),
        *(("frontier", "end", "books", "--now"), ("frontier", "drop", "books", "--yes")),
        ("frontier", "add", "books"),
        *(("semaphore", "status"), ("semaphore", "limit", "a.example", "3")),
        *(("semaphore", "pause", "--all"), ("semaphore", "resume", "--all")),
        *(("semaphore", "pause", "a.example"), ("semaphore", "resume", "a.example")),
        *(("semaphore", "reset", "a.example"), ("semaphore", "reset", "--all", "--yes")),
        ("semaphore", "trust", "--yes"),
    ):
        ran = await semaphore(url, *words, command=command, answer="https://a.example/")
        assert ran.status in (0, 4), (words, ran.err)  # 4: there is nothing to take back
    assert_refused_nothing(server)


@pytest.mark.parametrize(
    ("changes", "lacking"),
    [
        (("resetkeys", "%R~{semaphore}:*"), {"crawls": "all keys begin with '{crawl:'"}),
        (("-zcard",), {"crawls": "zcard"}),
        (("-zscan",), {"crawls": "zscan", "": "zscan"}),
        (("-evalsha_ro",), {"": "evalsha"}),
        (("resetkeys", "%R~{crawl:*"), {"": "all keys begin with '{semaphore}:'"}),
    ],
)
async def test_a_right_that_is_missing_is_named_and_the_server_is_not_away(
    server: RedisServer, changes: tuple[str, ...], lacking: dict[str, str]
) -> None:
    await set_one_aside(server, "books")
    async with serving(server, None, user(server, *changes, name="viewer")) as page:
        state = await page.state()
    for section in ("", "crawls"):
        prefix = f"{section}_" if section else ""
        assert state[f"{prefix}problem_since"] is None
        if section in lacking:
            assert "does not permit the user 'viewer'" in state[f"{prefix}problem"]
            assert lacking[section] in state[f"{prefix}problem"]
        else:
            assert state[f"{prefix}problem"] is None


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)
async def test_a_missing_right_is_one_grey_line(server: RedisServer, chromium: Chromium) -> None:
    await set_one_aside(server, "books")
    lines = "['#refusal', '#crawls p', '#problem'].map((one) => document.querySelector(one))"
    shown = f"{lines}.map((one) => one.checkVisibility() ? one.textContent : '')"
    soft = f"{lines}.map((one) => one.className)"
    for right, which in (("-zcard", 1), ("-evalsha_ro", 0)):
        url = user(server, right, name="viewer")
        async with looking(server, chromium, url) as (browser, _):
            await browser.until(f"{shown}[{which}].includes('{right[1:]}')")
            assert [bool(text) for text in await browser.see(shown)] == [
                which == 0,
                which == 1,
                False,
            ]
            assert (await browser.see(soft))[which] == "soft"
            assert "Away" not in await browser.see("document.body.innerText")
            assert "no crawls" not in await browser.see("document.body.innerText")
            await browser.size(390, 740, phone=True)
            await check(browser)


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
