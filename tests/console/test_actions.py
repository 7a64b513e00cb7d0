"""Changes from the page: which are allowed, and to whom."""

from __future__ import annotations

from typing import Any

from semaphore_middleware import FairSemaphore
from semaphore_middleware.console.server import MAX_BODY
from tests.console.pages import TOKEN, serving
from tests.support.crawls import Log
from tests.support.servers import RedisServer

HOST = "www.example.org"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


async def test_with_the_token_scopes_and_patterns_are_paused_and_resumed(
    server: RedisServer,
) -> None:
    async with FairSemaphore(server.url) as node, serving(server) as page:
        await node.acquire(HOST, 2)
        assert await page.act(action="pause", name=HOST) == (204, {})
        seen = await node.admin.inspect(HOST)
        assert (seen.paused, seen.set_by) == (True, page.admin.name)
        assert await page.act(action="resume", name=HOST) == (204, {})
        assert not (await node.admin.inspect(HOST)).paused
        for name in ("*.org", "*"):
            assert await page.act(action="pause", name=name) == (204, {})
            assert (await node.admin.inspect(HOST)).paused
            assert await page.act(action="resume", name=name) == (204, {})
        assert not (await node.admin.inspect(HOST)).paused
        strange = "\ud800"
        assert await page.act(action="pause", name=strange) == (204, {})
        assert (await page.state())["rules"][-1]["name"] == strange


async def test_without_a_token_configured_nothing_can_be_changed(server: RedisServer) -> None:
    async with serving(server, token=None) as page:
        assert not (await page.state())["can_change"]
        assert (await page.act(TOKEN, action="pause", name=HOST))[0] == 404
        assert await page.admin.rules() == []


async def test_a_wrong_token_or_another_site_is_refused_and_logged_once_a_minute(
    server: RedisServer, caplog: Log
) -> None:
    async with serving(server) as page:
        action = {"action": "pause", "name": HOST}
        for headers in ({}, {**BEARER, "Origin": "http://evil.example"}):
            for path in ("actions", f"actions?token={TOKEN}", "token"):
                url = page.url + path
                async with page.client.post(url, json=action, headers=headers) as answer:
                    assert answer.status == 403
        assert await page.admin.rules() == []
        own = {**BEARER, "Origin": page.url.removesuffix("/")}
        async with page.client.post(f"{page.url}token", headers=own) as answer:
            assert answer.status == 204
    words = "A change asked for by 127.0.0.1 was refused: the token is wrong."
    assert [record.getMessage() for record in caplog.records] == [words]


REFUSED: list[tuple[Any, str]] = [
    ({"action": "pause", "name": 7}, "name = 7: allowed is a text"),
    ({"action": "pause"}, "the host is empty"),
    ({"action": "pause", "name": "http://a.example"}, "give only the host: 'a.example'"),
    ({"action": "resume", "name": "all"}, "no scope 'all' is in use; '*' is for all sites"),
    ({"action": ["pause"], "name": HOST}, "action = ['pause']: allowed is pause or resume"),
    ({"action": "limit", "name": HOST}, "action = 'limit': allowed is pause or resume"),
    ({"action": "pause", "name": HOST, "limit": 1}, "unknown key 'limit'; allowed are"),
    ([], "the body is not a JSON object"),
]
JSON = "application/json"
NO_ACTIONS = [
    (b"{", JSON, 400),
    (b"\xff", f"{JSON}; charset=utf-8", 400),
    (b"[" * MAX_BODY, JSON, 400),
    (b" " * (MAX_BODY + 1), JSON, 413),
    (b" " * 3_000_000, JSON, 413),
    (b'{"action": "pause", "name": "x"}', "text/plain", 415),
    (b"action=pause&name=x", "application/x-www-form-urlencoded", 415),
]


async def test_bad_values_are_refused_in_the_words_of_the_settings(server: RedisServer) -> None:
    async with serving(server) as page:
        url = f"{page.url}actions"
        for action, said in REFUSED:
            async with page.client.post(url, json=action, headers=BEARER) as answer:
                assert answer.status == 400, action
                assert said in (await answer.json())["error"]
        for body, kind, status in NO_ACTIONS:
            headers = {**BEARER, "Content-Type": kind}
            async with page.client.post(url, data=body, headers=headers) as answer:
                assert answer.status == status, body[:40]
        assert await page.admin.rules() == []
