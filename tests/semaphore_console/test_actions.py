"""What may be changed from the page, and by whom."""

from __future__ import annotations

from typing import Any

from semaphore_console.server import MAX_BODY
from semaphore_middleware import FairSemaphore
from tests.semaphore_console.pages import TOKEN, serving
from tests.support.nodes import Caller
from tests.support.servers import RedisServer
from tests.support.shared_crawl import set_one_aside
from tests.support.times import ENDLESS_S

HOST = "www.example.org"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


async def test_with_the_token_limits_are_set_and_taken_back(server: RedisServer) -> None:
    async with FairSemaphore(server.url, lease=ENDLESS_S) as node, serving(server) as page:
        await node.acquire(HOST, 2)
        assert await page.act(action="limit", name=HOST, limit=5) == (204, {})
        seen = await node.admin.inspect(HOST)
        assert (seen.limit, seen.set_by) == (5, page.admin.name)
        assert await page.act(action="limit", name="*.org", limit={"delay": 1.5}) == (204, {})
        assert (await node.admin.inspect(HOST)).force.delay == 1.5
        rate = {"rate": "90/m", "burst": 3}
        assert await page.act(action="limit", name=HOST, limit=rate) == (204, {})
        seen = await node.admin.inspect(HOST)
        assert (seen.limit, seen.force.rate, seen.force.burst) == (5, "90/m", 3)
        assert await page.act(action="limit", name=HOST, limit={"rate": None}) == (204, {})
        assert (await node.admin.inspect(HOST)).force.rate is None
        assert await page.act(action="pause", name=HOST) == (204, {})
        assert (await node.admin.inspect(HOST)).paused
        assert await page.act(action="resume", name=HOST) == (204, {})
        assert not (await node.admin.inspect(HOST)).paused
        assert await page.act(action="limit", name=HOST, limit=None) == (204, {})
        assert (await node.admin.inspect(HOST)).limit == 10**12
        strange = "\ud800"
        assert await page.act(action="pause", name=strange) == (204, {})
        assert (await page.state())["rules"][-1]["name"] == strange
        for name in (HOST, "*.org", strange):
            assert await page.act(action="reset", name=name) == (204, {})
        assert await node.admin.rules() == []


async def test_a_node_is_evicted_and_what_it_held_is_told(server: RedisServer) -> None:
    async with serving(server) as page:
        dead = await Caller.join(server, "dead")
        assert (await dead.take(HOST, 3, limit=2)).granted == 2
        status, told = await page.act(action="evict", name="dea")
        assert (status, told["error"]) == (400, "no node 'dea' holds a permit or waits")
        assert await page.act(action="evict", name="dead") == (200, {"permits": 2, "requests": 1})
        assert await page.admin.survey() == []


async def test_a_shared_crawl_is_retried_and_dropped(server: RedisServer) -> None:
    async with serving(server) as page:
        await set_one_aside(server, "books")
        (crawl,) = (await page.state())["crawls"]
        assert (crawl["name"], crawl["state"], crawl["set_aside"]) == ("books", "ended", 1)
        assert await page.act(action="retry", name="books") == (200, {"requests": 1})
        assert await page.act(action="retry", name="books") == (200, {"requests": 0})
        assert await page.act(action="drop", name="books") == (204, {})
        assert (await page.act(action="drop", name="books"))[0] == 400


async def test_without_a_token_configured_nothing_can_be_changed(server: RedisServer) -> None:
    async with serving(server, token=None) as page:
        assert not (await page.state())["can_change"]
        assert (await page.act(TOKEN, action="pause", name=HOST))[0] == 404
        assert await page.admin.rules() == []


async def test_a_wrong_token_or_another_site_is_refused(server: RedisServer) -> None:
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


OF_HOST = {"action": "limit", "name": HOST}
REFUSED: list[tuple[Any, str]] = [
    (OF_HOST | {"limit": 0}, f"the limit of {HOST!r} = 0: allowed is an int"),
    (OF_HOST | {"limit": "2"}, f"the limit of {HOST!r} = '2': allowed is"),
    (OF_HOST | {"limit": {"delay": float("nan")}}, "= nan: allowed is"),
    (OF_HOST | {"limit": {"speed": 1}}, "unknown key 'speed'; allowed are"),
    (OF_HOST, "a 'limit' belongs to the action 'limit'"),
    (OF_HOST | {"action": "pause", "limit": 3}, "a 'limit' belongs to the action 'limit'"),
    ({"action": "pause", "name": 7}, "name = 7: allowed is a text"),
    ({"action": "pause"}, "the host is empty"),
    (
        {"action": "limit", "name": "http://a.example", "limit": 2},
        "give only the host: 'a.example'",
    ),
    ({"action": ["pause"], "name": HOST}, "action = ['pause']: allowed is one of limit, pause, "),
    ({"action": "evict"}, "no node '' holds a permit or waits"),
    ({"action": "evict", "name": "\ud800"}, "no node '\\ud800' holds a permit or waits"),
    ({"action": "drop", "name": ""}, "there is no crawl ''"),
    ({"action": "drop", "name": "\ud800"}, "there is no crawl '\\ud800'"),
    ({"action": "retry", "name": "books"}, "there is no crawl 'books'"),
    ({"action": "pause", "name": HOST, "why": 1}, "unknown key 'why'; allowed are"),
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
