"""`scrapy semaphore status` shows what is, in a form for people and in one for programs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from semaphore_middleware import FairSemaphore
from semaphore_middleware.console.snapshot import scope_id
from semaphore_middleware.core.admin import Admin
from tests.support.cli import (
    LONG_NAME,
    OLD,
    SITE,
    Terminal,
    semaphore,
    three_nodes,
)
from tests.support.nodes import ENDLESS_S, Caller, Outside, in_asyncio
from tests.support.paths import REPOSITORY
from tests.support.servers import RedisServer

TABLE = f"""\
scope                            held  waiting  longest  delay  rate  next  backoff  paused  set by
{SITE}                   2/2        3      3 h      -     -     -        -  -       -
{LONG_NAME}   3/8        0        -      -     -     -        -  -       -
"""


@in_asyncio
async def test_without_a_scope_it_shows_all_the_longest_line_first(server: RedisServer) -> None:
    await three_nodes(server)
    assert await semaphore(server, "status") == (0, TABLE, "")


@in_asyncio
async def test_with_a_scope_it_shows_its_nodes_in_the_order_of_the_queue(
    server: RedisServer,
) -> None:
    await three_nodes(server)
    shown = f"""\
scope            held  waiting  longest  delay  rate  next  backoff  paused  set by
{SITE}   2/2        3      3 h      -     -     -        -  -       -

{SITE}
node   held  waiting  oldest  longest  lease left
three     0        1       -      3 h      10 min
one       1        1     3 h      3 h      10 min
two       1        1     3 h      3 h      10 min
"""
    assert await semaphore(server, "status", SITE) == (0, shown, "")
    assert (await semaphore(server, "status", "WWW.Example.ORG.")).out == shown
    assert (await semaphore(server, "status", "*.org")).out == shown


@in_asyncio
async def test_nodes_are_summed_up(server: RedisServer) -> None:
    await three_nodes(server)
    ran = await semaphore(server, "status", "--nodes")
    assert (
        ran.out
        == f"""{TABLE}
node   held  waiting  scopes  oldest  longest  lease left
one       2        1       2     3 h      3 h      10 min
two       2        1       2     3 h      3 h      10 min
three     1        1       2     3 h      3 h      10 min
"""
    )


@in_asyncio
async def test_what_stands_behind_an_option_is_a_scope_too(server: RedisServer) -> None:
    await three_nodes(server)
    ran = await semaphore(server, "status", LONG_NAME, "--nodes", SITE)
    assert ran.lines[1].startswith(SITE)
    assert ran.lines[2].startswith(LONG_NAME)
    assert ran.lines[4].startswith("node ")
    assert await semaphore(server, "status", "--nodes", LONG_NAME, SITE) == ran


@in_asyncio
async def test_rules_show_who_set_them(server: RedisServer) -> None:
    await three_nodes(server)
    async with Admin(server.url, name="alice@desk") as operator:
        await operator.configure(SITE, {"concurrency": None, "delay": 0.25})
        await operator.configure("*.edu", {"concurrency": 5, "rate": "90/m"})
        await operator.pause("*.edu")
    ran = await semaphore(server, "status")
    assert (
        ran.out
        == f"""\
scope                            held  waiting  longest   delay  rate  next  backoff  paused  set by
{SITE}                   2/∞        3      3 h  0.25 s     -     -        -  -       alice@desk
{LONG_NAME}   3/5        0        -       -  90/m     -        -  paused  alice@desk

pattern  limit  delay  rate  paused  set by
*.edu        5      -  90/m  paused  alice@desk
"""
    )
    # A pattern has its rule, be no host below it in use; and what fits none shows none.
    assert (await semaphore(server, "status", SITE, "--nodes")).out.count("*.edu") == 0
    async with Admin(server.url) as operator:
        await operator.pause("*.museum")
    ran = await semaphore(server, "status", "*.museum")
    assert (ran.status, ran.lines[1].split()[:4]) == (0, ["*.museum", "-", "-", "-"])


@in_asyncio
async def test_what_a_site_has_asked_for_and_when_it_starts_next_is_shown(
    server: RedisServer,
) -> None:
    async with FairSemaphore(server.url, lease=ENDLESS_S) as node:
        permit = await node.acquire(SITE, 3)
        permit.refused(retry_after=200)
        permit.release()
    ran = await semaphore(server, "status")
    assert re.fullmatch(rf"{re.escape(SITE)} +0/- +0 +- +- +- +- +3 min +- +-", ran.lines[1])


@in_asyncio
async def test_an_empty_server_is_said_to_be_one(server: RedisServer) -> None:
    nothing = f"No scope is in use at {server.url}, prefix 'semaphore'.\n"
    assert await semaphore(server, "status") == (0, nothing, "")
    ran = await semaphore(server, "status", "--json")
    shown = json.loads(ran.out)
    assert set(shown["totals"].values()) == {0, None}
    assert [shown[rows] for rows in ("scopes", "nodes", "rules")] == [[], [], []]


@in_asyncio
async def test_a_server_that_may_have_lost_its_data_is_said_to_grant_nothing(
    server: RedisServer, outside: Outside
) -> None:
    outside.client.flushall()
    async with FairSemaphore(server.url, recovery_wait=OLD):
        ran = await semaphore(server, "status")
        assert ran.lines[0] == (
            "No permit is granted for another 3 h: the server is new, or may have lost its data."
        )
        ran = await semaphore(server, "status", "--json")
        assert OLD - 60 < json.loads(ran.out)["totals"]["recovery_left"] <= OLD
        assert (await semaphore(server, "trust", "--yes")).status == 0
        assert (await semaphore(server, "status")).lines[0].startswith("No scope is in use")


@in_asyncio
async def test_json_has_the_keys_that_are_documented(server: RedisServer) -> None:
    await three_nodes(server)
    async with Admin(server.url, name="alice@desk") as operator:
        parts = {"concurrency": 2, "delay": 0.25, "rate": "30/m", "burst": 10}
        await operator.configure("*.org", parts)
    ran = await semaphore(server, "status", "--json", SITE)
    shown = json.loads(ran.out)
    (scope,) = shown["scopes"]
    assert OLD <= shown["totals"].pop("longest_wait") < OLD + ENDLESS_S
    counts = {"scopes": 1, "nodes": 3, "held": 2, "waiting": 3}
    assert shown["totals"] == {**counts, "starts_per_second": None, "recovery_left": None}
    nodes = scope.pop("nodes")
    assert OLD <= scope.pop("longest_wait") < OLD + ENDLESS_S
    assert scope == {
        "id": scope_id(SITE),
        "scope": SITE,
        "held": 2,
        "limit": 2,
        "limit_max": 2,
        "unlimited": False,
        "waiting": 3,
        "starts_per_second": None,
        "delay": 0.25,
        "rate": "30/m",
        "burst": 10,
        "next_start": None,
        "backoff_left": None,
        "backoff_last": None,
        "down_for": None,
        "paused": False,
        "set_by": "alice@desk",
        "started": 2,
    }
    assert [(n["node"], n["held"], n["waiting"]) for n in nodes] == [
        ("three", 0, 1),
        ("one", 1, 1),
        ("two", 1, 1),
    ]
    assert nodes[0]["oldest"] is None
    for node in nodes:
        assert list(node) == ["node", "held", "waiting", "oldest", "longest_wait", "lease_left"]
        for age in (node["oldest"] or OLD, node["longest_wait"]):
            assert OLD <= age < OLD + ENDLESS_S
        assert 0 < node["lease_left"] <= ENDLESS_S
    assert [node["node"] for node in shown["nodes"]] == ["one", "two", "three"]
    assert shown["nodes"][2].keys() == {
        *("node", "held", "waiting", "scopes", "oldest", "longest_wait", "lease_left")
    }
    assert [shown["nodes"][2][k] for k in ("held", "waiting", "oldest")] == [0, 1, None]
    assert shown["rules"] == [
        {
            "name": "*.org",
            "limit": 2,
            "unlimited": False,
            "delay": 0.25,
            "jitter": None,
            "adaptive": None,
            "rate": "30/m",
            "burst": 10,
            "paused": None,
            "set_by": "alice@desk",
        }
    ]


@in_asyncio
async def test_no_name_commands_the_terminal(server: RedisServer) -> None:
    caller = await Caller.join(server, "no\x1b[31mde")
    await caller.take("a\x1b[2J[red]b\n\udcff")
    ran = await semaphore(server, "status", "--nodes")
    assert ran.lines[1].startswith(r"a\x1b[2J[red]b\n\udcff ")
    assert ran.lines[4].startswith(r"no\x1b[31mde ")
    shown = json.loads((await semaphore(server, "status", "--json")).out)
    assert shown["scopes"][0]["scope"] == "a\x1b[2J[red]b\n\udcff"


@pytest.mark.parametrize(
    "arguments", [("status",), ("status", SITE), ("status", "--json", "--nodes")]
)
@in_asyncio
async def test_looking_changes_nothing(
    server: RedisServer, outside: Outside, arguments: tuple[str, ...]
) -> None:
    await three_nodes(server)
    before = outside.dump()
    assert (await semaphore(server, *arguments)).status == 0
    assert outside.dump() == before
    assert outside.told() == []


@in_asyncio
async def test_in_a_narrow_terminal_all_fits_and_empty_columns_are_left_out(
    server: RedisServer,
) -> None:
    await three_nodes(server)
    await (await Caller.join(server, "four")).take("other.example")
    terminal = await Terminal(48, 24).start(server, "status")
    try:
        assert await terminal.ended() == 0
        plain = re.sub(r"\x1b\[[0-9;]*m", "", terminal.drawn)
        assert plain.splitlines() == [
            "scope                     held  waiting  longest",
            "www.example.org            2/2        3      3 h",
            "a-very-long-…example.edu   3/8        0        -",
            "other.example              1/1        0        -",
        ]
    finally:
        await terminal.close()


@in_asyncio
async def test_it_reads_the_settings_of_the_project(server: RedisServer, tmp_path: Path) -> None:
    await three_nodes(server)
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = their_settings\n")
    (tmp_path / "their_settings.py").write_text(f"SEMAPHORE_REDIS_URL = {server.url!r}\n")
    python = {"PYTHONPATH": str(tmp_path)}
    inside = await semaphore("redis://0.0.0.0:1", "status", directory=tmp_path, environment=python)
    assert inside == (0, TABLE, "")
    by_option = ("-s", f"SEMAPHORE_REDIS_URL={server.url}")
    assert await semaphore(None, *("status", *by_option), directory=REPOSITORY) == (0, TABLE, "")
    assert await semaphore(None, *(*by_option, "status")) == (0, TABLE, "")
    by_old_name = {"REDIS_URL": server.url}
    assert await semaphore(None, "status", environment=by_old_name) == (0, TABLE, "")


@in_asyncio
async def test_another_prefix_is_another_world(server: RedisServer) -> None:
    await three_nodes(server)
    ran = await semaphore(server, "status", "-s", "SEMAPHORE_PREFIX=other")
    assert ran == (0, f"No scope is in use at {server.url}, prefix 'other'.\n", "")
