"""The answers of the page's server."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from semaphore_middleware import FairSemaphore
from semaphore_middleware.console import poller
from semaphore_middleware.console import server as web
from semaphore_middleware.console.server import TYPES
from semaphore_middleware.operators.admin import Admin
from semaphore_middleware.operators.snapshot import scope_id
from tests.console.pages import TOKEN, Served, fill, serving, survey_at_each_visit
from tests.support.nodes import calls_of, eventually
from tests.support.paths import PACKAGE
from tests.support.servers import RedisServer

Logged = pytest.LogCaptureFixture
Patch = pytest.MonkeyPatch

FILES = {file.name: file for file in (PACKAGE / "console" / "static").iterdir()}
HOST = "www.example.org"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def prompt(monkeypatch: Patch) -> None:
    survey_at_each_visit(monkeypatch)


# Files ------------------------------------------------------------------------------------------


async def test_all_answers_have_a_policy_that_allows_no_more(server: RedisServer) -> None:
    async with serving(server) as page:
        for path in ("", *FILES, "nothing", "state.json"):
            async with page.client.get(f"{page.url}{path}") as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
                assert "unsafe" not in policy
                assert "frame-ancestors 'none'" in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert answer.headers["Referrer-Policy"] == "no-referrer"
                assert "aiohttp" not in str(answer.headers)
                if path in FILES:
                    assert answer.headers["Content-Type"] == TYPES[FILES[path].suffix]
                    assert await answer.read() == FILES[path].read_bytes()


async def test_there_is_nothing_else(server: RedisServer) -> None:
    nowhere = ("nothing", "server.py", "../errors.py", "%2e%2e/errors.py", "//etc/passwd")
    forbidden = [("POST", ""), ("PUT", "state.json"), ("GET", "actions"), ("OPTIONS", "actions")]
    async with serving(server) as page:
        for method, path, status in (
            *(("GET", path, 404) for path in nowhere),
            *((method, path, 405) for method, path in forbidden),
        ):
            async with page.client.request(method, page.url + path) as answer:
                assert answer.status == status, (method, path)
                assert list(await answer.json()) == ["error"]
                assert "Access-Control-Allow-Origin" not in answer.headers


# The state --------------------------------------------------------------------------------------


async def test_the_state_is_that_of_the_server(server: RedisServer) -> None:
    """The parts shown of it are tested in test_view.py."""
    async with FairSemaphore(server.url, node="a") as a, serving(server) as page:
        await fill(a, HOST, held=3, waiting=2)
        told = await page.state(open=scope_id(HOST))
        assert (told["server"], told["can_change"]) == (server.url, True)
        problems = {name: told[name] for name in told if "problem" in name}
        assert problems.keys() >= {"problem", "problem_since"}
        assert {*problems.values()} == {None}
        expected = {"scope": HOST, "held": 3, "limit": 3, "waiting": 2, "started": 3}
        assert told["opened"].items() >= {**told["scopes"][0], **expected}.items()
        assert [node["node"] for node in told["nodes"]] == [a.node]


@pytest.mark.usefixtures("prompt")
async def test_a_state_that_is_as_it_was_is_not_sent_again(server: RedisServer) -> None:
    async with serving(server) as page:
        asked: dict[str, str] = {}

        async def is_as_it_was() -> bool:
            async with page.client.get(f"{page.url}state.json", headers=asked) as answer:
                assert answer.headers["Cache-Control"] == "no-cache"
                asked["If-None-Match"] = answer.headers["ETag"]
                assert (await answer.read() == b"") == (answer.status == 304)
                return answer.status == 304

        await eventually(is_as_it_was)
        await page.admin.pause("x")
        async with page.client.get(f"{page.url}state.json", headers=asked) as other:
            assert other.status == 200


async def test_all_browsers_share_one_survey_a_second_and_none_is_made_for_nobody(
    server: RedisServer, monkeypatch: Patch
) -> None:
    surveys = calls_of(monkeypatch, Admin, "survey")
    monkeypatch.setattr(web, "INTERVAL_S", 600.0)
    async with serving(server) as page:
        assert surveys == []
        await asyncio.gather(*(page.state(match=str(i)) for i in range(20)))
        await page.state()
        assert len(surveys) == 1


async def is_back(page: Served) -> bool:
    return (await page.state())["problem"] is None


@pytest.mark.usefixtures("prompt")
async def test_a_server_that_hangs_is_said_until_it_is_back(
    server: RedisServer, monkeypatch: Patch
) -> None:
    begin = time.time()
    async with FairSemaphore(server.url) as node, serving(server) as page:
        await node.acquire(HOST, 1)
        assert await is_back(page)
        monkeypatch.setattr(poller, "LATE_AFTER_S", 0.1)
        monkeypatch.setattr(poller, "LATE_FACTOR", 0.0)
        server.freeze()
        told = await page.state()
        since = told["problem_since"]
        assert (await page.state())["problem_since"] == since
        server.thaw()
        assert told["problem"] == "The Redis server does not answer."
        assert begin <= since <= time.time()
        assert [row["scope"] for row in told["scopes"]] == [HOST]
        await eventually(lambda: is_back(page))


@pytest.mark.usefixtures("prompt")
async def test_the_log_has_one_line_when_the_server_goes_and_one_when_it_is_back(
    server: RedisServer, caplog: Logged
) -> None:
    caplog.set_level(logging.INFO, "semaphore_middleware.console")
    async with serving(server) as page:
        await page.state()
        server.kill()
        told = [await page.state() for _ in range(5)]
        assert len({one["problem_since"] for one in told} - {None}) == 1
        server.start()
        await eventually(lambda: is_back(page))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2, lines
    assert server.url in lines[0]
    assert lines[0].endswith("; trying again.")
    assert lines[1] == "The Redis server answers again."


# Strangers --------------------------------------------------------------------------------------


async def test_a_strange_name_that_leads_here_sees_and_changes_nothing(server: RedisServer) -> None:
    async with serving(server) as page:
        for host in ("evil.example", "127.0.0.1.evil.example", "10.0.0.1:8379"):
            for method, path in (("GET", ""), ("GET", "state.json"), ("POST", "token")):
                headers = {**BEARER, "Host": host}
                async with page.client.request(method, page.url + path, headers=headers) as answer:
                    assert answer.status == 403
                    assert "is not this machine" in (await answer.json())["error"]


@pytest.mark.parametrize(
    ("method", "path", "header", "value"),
    [
        *(
            ("GET", "state.json", "Host", value)
            for value in ("[::1", "a@b@c", "\xe9", "127.0.0.1:x")
        ),
        *(("POST", "token", "Origin", value) for value in ("http://[::1", "http://[x]:99999")),
        *(("POST", "actions", "Authorization", value) for value in ("Bearer \xff", "a" * 8000)),
        *(("GET", "state.json", "If-None-Match", value) for value in ("*, *", '"\xe9"')),
        ("POST", "actions", "X", "\xff\0"),
    ],
)
async def test_an_odd_header_is_no_error_of_the_server(
    server: RedisServer, caplog: Logged, method: str, path: str, header: str, value: str
) -> None:
    async with serving(server) as page:
        authority = page.url.removeprefix("http://").removesuffix("/")
        headers = {"Host": authority, **BEARER, "Connection": "close", header: value}
        lines = [f"{method} /{path} HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items()), "", ""]
        reader, writer = await asyncio.open_connection(*authority.split(":"))
        writer.write("\r\n".join(lines).encode("latin-1"))
        status = int((await reader.readline()).split()[1])
        assert status in ((200, 304) if header == "If-None-Match" else (400, 403))
        writer.close()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_an_unexpected_exception_is_an_error_of_the_server_and_is_logged(
    server: RedisServer, monkeypatch: Patch, caplog: Logged
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(web, "show", broken)
    async with serving(server) as page, page.client.get(f"{page.url}state.json") as answer:
        assert answer.status == 500
        assert list(await answer.json()) == ["error"]
        assert "Content-Security-Policy" in answer.headers
    assert "ZeroDivisionError" in caplog.text
