"""What the page's server answers."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from typing import Any

import pytest

from semaphore_middleware import FairSemaphore
from semaphore_middleware.console import poller
from semaphore_middleware.console.snapshot import scope_id
from semaphore_middleware.console.web import server as web
from semaphore_middleware.console.web.server import FILES
from semaphore_middleware.core.admin import Admin
from tests.support.nodes import eventually, in_asyncio
from tests.support.paths import PACKAGE
from tests.support.servers import RedisServer
from tests.support.web import TOKEN, serving

PAGE = PACKAGE / "console" / "web" / "static"
HOST = "www.example.org"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


# Files ------------------------------------------------------------------------------------------


def test_every_file_of_the_page_is_served() -> None:
    assert {path.name for path in PAGE.iterdir() if path.suffix in (".html", ".css", ".js", ".svg")}
    assert {path.name for path in PAGE.iterdir()} == {*FILES}


def test_no_file_of_the_page_is_too_long() -> None:
    for name in FILES:
        assert len((PAGE / name).read_text("utf-8").splitlines()) <= 300, name


def test_names_only_ever_become_text_and_nothing_comes_from_elsewhere() -> None:
    for name in FILES:
        text = (PAGE / name).read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
        assert not re.search(r"https?:|//[a-z]", text), name
        assert not re.search(r"<[^>]* (on\w+|style)=", text), name


@in_asyncio
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
                assert "aiohttp" not in str(answer.headers)
                if path in FILES:
                    assert answer.headers["Content-Type"] == FILES[path]
                    assert await answer.read() == (PAGE / path).read_bytes()


@in_asyncio
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
        ("GET", "actions", 405),
        ("GET", "token", 405),
        ("OPTIONS", "actions", 405),
    ],
)
@in_asyncio
async def test_there_is_nothing_else(
    server: RedisServer, method: str, path: str, status: int
) -> None:
    async with serving(server) as page, page.client.request(method, page.url + path) as answer:
        assert answer.status == status
        assert list(await answer.json()) == ["error"]
        assert "Access-Control-Allow-Origin" not in answer.headers


# The state --------------------------------------------------------------------------------------


@in_asyncio
async def test_the_state_is_that_of_the_server(server: RedisServer) -> None:
    async with FairSemaphore(server.url, node="a") as a, serving(server) as page:
        for _ in range(3):
            await a.acquire(HOST, 3)
        waiting = [asyncio.create_task(a.acquire(HOST, 3)) for _ in range(2)]

        async def all_there() -> bool:
            return (await page.admin.inspect(HOST)).waiting == 2

        await eventually(all_there)
        told = await page.state(open=scope_id(HOST))
        times = [told["totals"].pop("longest_wait"), told["scopes"][0].pop("longest_wait")]
        opened = told.pop("opened")
        (node,) = opened["nodes"]
        (row,) = told.pop("nodes")
        assert row == {**node, "scopes": 1}
        assert times[0] == times[1] == node["longest_wait"]
        assert 0 <= node["oldest"] < 60
        assert 0 < node["lease_left"] <= 15
        assert (node["node"], node["held"], node["waiting"]) == (a.node, 3, 2)
        assert told == {
            "server": server.url,
            "problem": None,
            "problem_since": None,
            "can_change": True,
            "lease": 15.0,
            "totals": {
                "scopes": 1,
                "nodes": 1,
                "held": 3,
                "waiting": 2,
                "starts_per_second": None,
                "recovery_left": None,
            },
            "matching": 1,
            "scopes": [
                {
                    "id": scope_id(HOST),
                    "scope": HOST,
                    "held": 3,
                    "limit": 3,
                    "limit_max": 3,
                    "unlimited": False,
                    "waiting": 2,
                    "starts_per_second": None,
                    "delay": None,
                    "rate": None,
                    "burst": None,
                    "next_start": None,
                    "backoff_left": None,
                    "backoff_last": None,
                    "down_for": None,
                    "paused": False,
                    "set_by": None,
                    "started": 3,
                }
            ],
            "more_nodes": 0,
            "rules": [],
            "more_rules": 0,
            "crawls": [],
            "more_crawls": 0,
            "crawls_problem": None,
            "crawls_problem_since": None,
        }
        for task in waiting:
            task.cancel()


@in_asyncio
async def test_a_state_that_is_as_it_was_is_not_sent_again(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "INTERVAL_S", 0.0)
    monkeypatch.setattr(poller, "MAX_SHARE", 1.0)
    async with serving(server) as page:
        await page.state()  # which tells no starts a second yet
        async with page.client.get(f"{page.url}state.json") as first:
            tag = first.headers["ETag"]
            assert first.headers["Cache-Control"] == "no-cache"
        asked = {"If-None-Match": tag}
        async with page.client.get(f"{page.url}state.json", headers=asked) as again:
            assert (again.status, await again.read()) == (304, b"")
        await page.admin.pause("x")
        async with page.client.get(f"{page.url}state.json", headers=asked) as other:
            assert other.status == 200


@in_asyncio
async def test_all_browsers_share_one_survey_a_second_and_none_is_made_for_nobody(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    surveys = 0
    survey = Admin.survey

    async def counted(admin: Admin) -> Any:
        nonlocal surveys
        surveys += 1
        return await survey(admin)

    monkeypatch.setattr(Admin, "survey", counted)
    monkeypatch.setattr(web, "INTERVAL_S", 600.0)
    async with serving(server) as page:
        assert surveys == 0
        await asyncio.gather(*(page.state(match=str(i)) for i in range(20)))
        assert surveys == 1
        await page.state()
        assert surveys == 1


@in_asyncio
async def test_a_server_that_is_away_is_said_and_the_last_state_is_shown_until_it_is_back(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = time.time()
    monkeypatch.setattr(poller, "LATE_AFTER_S", 0.2)
    monkeypatch.setattr(poller, "LATE_FACTOR", 0.0)
    monkeypatch.setattr(web, "INTERVAL_S", 0.0)
    monkeypatch.setattr(poller, "MAX_SHARE", 1.0)
    async with FairSemaphore(server.url) as node, serving(server) as page:
        await node.acquire(HOST, 1)
        assert (await page.state())["problem"] is None
        server.freeze()
        try:
            told = await page.state()
            assert told["problem"] == "The Redis server does not answer."
            since = told["problem_since"]
            assert begin <= since <= time.time()
            assert (await page.state())["problem_since"] == since
            assert [row["scope"] for row in told["scopes"]] == [HOST]
        finally:
            server.thaw()

        async def back() -> bool:
            return (await page.state())["problem"] is None

        await eventually(back)


@in_asyncio
async def test_the_log_has_one_line_when_the_server_goes_and_one_when_it_is_back(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(web, "INTERVAL_S", 0.0)
    monkeypatch.setattr(poller, "MAX_SHARE", 1.0)
    caplog.set_level(logging.INFO, "semaphore_middleware.console")
    async with serving(server) as page:
        await page.state()
        server.kill()
        told = [await page.state() for _ in range(5)]
        assert {one["problem_since"] is None for one in told} == {False}
        assert len({one["problem_since"] for one in told}) == 1
        server.start()
        assert (await page.state())["problem"] is None
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2, lines
    assert server.url in lines[0]
    assert lines[0].endswith("; trying again.")
    assert lines[1] == "The server answers again."


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1:8379"])
@in_asyncio
async def test_a_strange_name_that_leads_here_sees_nothing(server: RedisServer, host: str) -> None:
    async with serving(server) as page:
        for path in ("", "script.js", "state.json"):
            async with page.client.get(page.url + path, headers={"Host": host}) as answer:
                assert answer.status == 403
                assert "this page is for its own machine" in (await answer.json())["error"]
        headers = {**BEARER, "Host": host}
        async with page.client.post(f"{page.url}token", headers=headers) as answer:
            assert answer.status == 403


@pytest.mark.parametrize(
    ("header", "values"),
    [
        *(("Host", [v]) for v in ("[::1", "[x]:1", "a@b@c", "\xe9", "", "127.0.0.1:x", "//")),
        *(("Host", [v]) for v in ("\0", "\x7f", "\xff" * 100, "a" * 100_000, "[::ffff:1%x]")),
        ("Host", ["127.0.0.1", "evil.example"]),
        *(("Origin", [v]) for v in ("http://[::1", "null", "\xe9", "", "http://[x]:99999")),
        *(("Origin", [v]) for v in ("\0", "http://\xe2\x84\x80", "http://\x80", "a" * 100_000)),
        ("Origin", ["http://evil.example", "http://127.0.0.1"]),
        *(("Authorization", [v]) for v in ("", "Bearer", "\xe9", "Bearer \xff", "a" * 8000)),
        *(("Authorization", [v]) for v in ("\0", "Bearer \x80\0", "a" * 100_000, "Basic :::")),
        ("Authorization", ["Bearer", f"Bearer {TOKEN}"]),
        *(("Content-Type", [v]) for v in ("", ";", "\xe9/x", "application/json;;=")),
        *(("If-None-Match", [v]) for v in ("x", '"', '"\xe9"', "*, *", "W/", '"a"' * 2000)),
        *(("Content-Length", [v]) for v in ("x", "-1", "9" * 30)),
        *(("X", ["\xff\0"] * count) for count in (1, 1000)),
    ],
    ids=lambda text: str(text)[:30],
)
@in_asyncio
async def test_an_odd_header_is_no_error_of_the_server(
    server: RedisServer, caplog: pytest.LogCaptureFixture, header: str, values: list[str]
) -> None:
    async with serving(server) as page:
        authority = page.url.removeprefix("http://").removesuffix("/")
        for method, path in (("POST", "actions"), ("POST", "token"), ("GET", "state.json")):
            usual = {"Host": authority, **BEARER, "Connection": "close"}
            headers = [(name, value) for name, value in usual.items() if name != header]
            headers += [(header, value) for value in values]
            lines = [f"{method} /{path} HTTP/1.1", *(f"{k}: {v}" for k, v in headers)]
            reader, writer = await asyncio.open_connection(*authority.split(":"))
            writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
            status = int((await reader.readline()).split()[1])
            assert 200 <= status < 500, (method, path)
            if header in ("Origin", "Authorization") and method == "POST":
                assert status in (400, 403)
            await reader.read()
            writer.close()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@in_asyncio
async def test_an_unexpected_exception_is_an_error_of_the_server_and_is_logged(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(web, "show", broken)
    async with serving(server) as page, page.client.get(f"{page.url}state.json") as answer:
        assert answer.status == 500
        assert list(await answer.json()) == ["error"]
        assert "Content-Security-Policy" in answer.headers
    assert "ZeroDivisionError" in caplog.text
