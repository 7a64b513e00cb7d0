"""What the page's server answers to those who look."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from semaphore_middleware import Admin, FairSemaphore
from semaphore_middleware.console import poller as lookout
from semaphore_middleware.console.web.answers import FILES
from semaphore_middleware.console.web.state import scope_id
from tests.support.nodes import eventually
from tests.support.paths import PACKAGE
from tests.support.servers import RedisServer
from tests.support.web import TOKEN, on_the_loop, serving

PAGE = PACKAGE / "page"
HOST = "www.example.org"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


# Files ------------------------------------------------------------------------------------------


def test_every_file_of_the_page_is_served() -> None:
    assert {path.name for path in PAGE.iterdir() if path.suffix in (".html", ".css", ".js", ".svg")}
    assert {path.name for path in PAGE.iterdir() if path.is_file() and path.suffix != ".py"} == {
        *FILES
    }


def test_no_file_of_the_page_wants_a_second_room() -> None:
    for name in FILES:
        assert len((PAGE / name).read_text("utf-8").splitlines()) <= 300, name


def test_names_only_ever_become_text_and_nothing_comes_from_elsewhere() -> None:
    for name in FILES:
        text = (PAGE / name).read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
        assert not re.search(r"https?:|//[a-z]", text), name
        assert not re.search(r"<[^>]* (on\w+|style)=", text), name


@on_the_loop
async def test_files_come_with_their_type_and_with_a_policy_that_allows_no_other_script(
    server: RedisServer,
) -> None:
    async with serving(server) as page:
        for path in ("", *FILES, "nothing", "state.json?sort=speed"):
            async with page.client.get(f"{page.url}{path}") as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
                assert "unsafe" not in policy
                assert "frame-ancestors 'none'" in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert answer.headers["Referrer-Policy"] == "no-referrer"
                assert "Twisted" not in str(answer.headers)
                if path in FILES:
                    assert answer.headers["Content-Type"] == FILES[path]
                    assert await answer.read() == (PAGE / path).read_bytes()


@on_the_loop
async def test_head_tells_as_much_as_get_and_sends_nothing(server: RedisServer) -> None:
    async with serving(server) as page:
        for path in ("", "script.js"):
            async with page.client.get(f"{page.url}{path}") as got:
                body = await got.read()
            async with page.client.head(f"{page.url}{path}") as told:
                assert (told.status, await told.read()) == (200, b"")
                assert told.headers["Content-Length"] == str(len(body))
                assert told.headers["ETag"] == got.headers["ETag"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "nothing", 404),
        ("GET", "server.py", 404),
        ("GET", "../errors.py", 404),
        ("GET", "%2e%2e/errors.py", 404),
        ("GET", "//etc/passwd", 404),
        ("POST", "", 405),
        ("PUT", "state.json", 405),
        ("DELETE", "state.json", 405),
        ("GET", "steer", 405),
        ("GET", "token", 405),
        ("OPTIONS", "steer", 405),
    ],
)
@on_the_loop
async def test_there_is_nothing_else(
    server: RedisServer, method: str, path: str, status: int
) -> None:
    async with serving(server) as page, page.client.request(method, page.url + path) as answer:
        assert answer.status == status
        assert list(await answer.json()) == ["error"]
        assert "Access-Control-Allow-Origin" not in answer.headers


# The state --------------------------------------------------------------------------------------


@on_the_loop
async def test_the_state_is_that_of_the_server(server: RedisServer) -> None:
    async with FairSemaphore(server.url, node="a") as a, serving(server) as page:
        for _ in range(3):
            await a.acquire(HOST, 3)
        waiting = [asyncio.create_task(a.acquire(HOST, 3)) for _ in range(2)]

        async def all_there() -> bool:
            return len((await page.semaphore.admin.inspect(HOST)).waiters) == 2

        await eventually(all_there)
        told = await page.state(open=scope_id(HOST))
        times = [told["totals"].pop("longest"), told["scopes"][0].pop("longest")]
        opened = told.pop("opened")
        members = [*opened["holders"], *opened["waiters"]]
        assert times[0] == times[1] == max(one["age"] for one in opened["waiters"])
        assert all(0 <= one["age"] < 60 and 0 < one["left"] <= 15 for one in members)
        assert [one["node"] for one in members] == [a.node] * 5
        assert told == {
            "server": "redis://the-server",
            "problem": None,
            "steering": True,
            "totals": {"scopes": 1, "nodes": 1, "held": 3, "waiting": 2, "rate": None},
            "matching": 1,
            "scopes": [
                {
                    "id": scope_id(HOST),
                    "scope": HOST,
                    "held": 3,
                    "limit": 3,
                    "most": 3,
                    "waiting": 2,
                    "rate": None,
                    "delay": 0.0,
                    "next": 0.0,
                    "quiet": 0.0,
                    "backoff": 0.0,
                    "paused": False,
                    "by": None,
                }
            ],
            "rules": [],
            "more_rules": 0,
        }
        for task in waiting:
            task.cancel()


@on_the_loop
async def test_a_state_that_is_as_it_was_is_not_sent_again(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookout, "EVERY", 0.0)
    monkeypatch.setattr(lookout, "SHARE", 1.0)
    async with serving(server) as page:
        async with page.client.get(f"{page.url}state.json") as first:
            tag = first.headers["ETag"]
            assert first.headers["Cache-Control"] == "no-cache"
        asked = {"If-None-Match": tag}
        async with page.client.get(f"{page.url}state.json", headers=asked) as again:
            assert (again.status, await again.read()) == (304, b"")
        await page.semaphore.admin.pause("x")
        async with page.client.get(f"{page.url}state.json", headers=asked) as other:
            assert other.status == 200


@on_the_loop
async def test_all_browsers_share_one_survey_a_second_and_none_is_made_for_nobody(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    surveys = 0
    survey = Admin.survey

    async def counted(semaphore: Admin) -> Any:
        nonlocal surveys
        surveys += 1
        return await survey(semaphore)

    monkeypatch.setattr(Admin, "survey", counted)
    monkeypatch.setattr(lookout, "EVERY", 600.0)
    async with serving(server) as page:
        assert surveys == 0
        await asyncio.gather(*(page.state(match=str(i)) for i in range(20)))
        assert surveys == 1
        await page.state()
        assert surveys == 1


@on_the_loop
async def test_a_server_that_is_away_is_said_and_the_last_state_is_shown_until_it_is_back(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookout, "PATIENCE", 0.2)
    monkeypatch.setattr(lookout, "EVERY", 0.0)
    monkeypatch.setattr(lookout, "SHARE", 1.0)
    async with FairSemaphore(server.url) as node, serving(server) as page:
        await node.acquire(HOST, 1)
        assert (await page.state())["problem"] is None
        server.freeze()
        try:
            told = await page.state()
            assert told["problem"] == "The Redis server does not answer."
            assert [row["scope"] for row in told["scopes"]] == [HOST]
        finally:
            server.thaw()

        async def back() -> bool:
            return (await page.state())["problem"] is None

        await eventually(back)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1:8379"])
@on_the_loop
async def test_a_strange_name_that_leads_here_sees_nothing(server: RedisServer, host: str) -> None:
    async with serving(server) as page:
        for path in ("", "script.js", "state.json"):
            async with page.client.get(page.url + path, headers={"Host": host}) as answer:
                assert answer.status == 403
                assert "this page is for its own machine" in (await answer.json())["error"]
        headers = {**BEARER, "Host": host}
        async with page.client.post(f"{page.url}token", headers=headers) as answer:
            assert answer.status == 403
