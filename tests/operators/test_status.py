"""`scrapy semaphore status`: its tables for people, and its JSON for programs."""

import json
from pathlib import Path

from semaphore_middleware import FairSemaphore
from semaphore_middleware.link.environment import URL_NAMES
from semaphore_middleware.model.feedback import FeedbackSummary
from semaphore_middleware.model.limits import Limit
from semaphore_middleware.operators.admin import Admin
from tests.support.cli import LONG_NAME, OLD, SITE, semaphore, semaphore_process, three_nodes
from tests.support.nodes import Caller, Outside
from tests.support.servers import RedisServer

TABLE = f"""\
scope                            held  waiting  longest  state
{SITE}                   2/2        3      3 h  full
{LONG_NAME}   3/8        0        -  open
"""
OF_SITE = f"""\
scope            held  waiting  longest  state
{SITE}   2/2        3      3 h  full

{SITE}
node   held  waiting  oldest  longest  lease left  asks for
three     0        1       -      3 h      10 min         2
one       1        1     3 h      3 h      10 min         2
two       1        1     3 h      3 h      10 min         2
"""
BY_NODE = f"""{TABLE}
node   held  waiting  scopes  oldest  longest  lease left
one       2        1       2     3 h      3 h      10 min
two       2        1       2     3 h      3 h      10 min
three     1        1       2     3 h      3 h      10 min
"""


async def test_it_shows_queues_and_changes_nothing(server: RedisServer, outside: Outside) -> None:
    await three_nodes(server)
    before = outside.dump()
    assert await semaphore(server, "status") == (0, TABLE, "")
    for spelling in (SITE, "WWW.Example.ORG.", "*.org"):
        assert await semaphore(server, "status", spelling) == (0, OF_SITE, "")
    assert await semaphore(server, "status", "--nodes") == (0, BY_NODE, "")
    # A name after an option is a scope, too.
    ran = await semaphore(server, "status", LONG_NAME, "--nodes", SITE)
    assert [line.split()[0] for line in ran.lines[1:5] if line] == [SITE, LONG_NAME, "node"]
    assert (await semaphore(server, "status", "--json", "--nodes")).status == 0
    assert outside.dump() == before
    assert outside.notified() == []


async def test_a_name_shows_what_the_table_lists(server: RedisServer) -> None:
    """Also an idle scope kept for its last starts, none of which holds back the next."""
    caller = await Caller.join(server, "a")
    limit = Limit(2, rate="30/m", burst=4)
    await caller.take(SITE, limit=limit)
    await caller.give_back(SITE, limit=limit)
    assert not (await caller.inspect(SITE)).next_start
    listed = await semaphore(server, "status")
    assert listed.lines[1].split()[0] == SITE
    assert await semaphore(server, "status", SITE) == listed


async def test_of_many_scopes_some_are_chosen(server: RedisServer) -> None:
    one, *_ = await three_nodes(server)
    await one.hold("a.example.org", 1)
    await one.hold("paused.example.org", 9)
    await one.take("paused.example.org", 9, limit=9)
    async with Admin(server.url) as operator:
        await operator.pause("paused.example.org")

    async def names(*options: str) -> list[str]:
        shown = json.loads((await semaphore(server, "status", "--json", *options)).out)
        assert shown["totals"]["scopes"] == 4
        return [row["scope"] for row in shown["scopes"]] + [row["node"] for row in shown["nodes"]]

    assert await names() == [
        *(SITE, LONG_NAME, "a.example.org", "paused.example.org"),
        *("one", "two", "three"),
    ]
    waiting = await names("--waiting", "--filter", "WWW")
    assert waiting == [SITE, "one", "two", "three"]
    assert await names("--filter", "three") == [SITE, LONG_NAME, "three"]
    assert await names("--top", "1", "--sort", "held") == [LONG_NAME, "one"]
    assert await names("--top", "1", "--sort", "host") == ["a-very-long-name.of.example.edu", "one"]
    ran = await semaphore(server, "status", "--top", "2", "--sort", "wait")
    assert ran.lines[-2:] == ["", "2 of 4 scopes; on all 15 held, 4 waiting"]


async def test_a_hundred_scopes_are_shown_and_those_that_matter_most(server: RedisServer) -> None:
    caller = await Caller.join(server, "one")
    names = [f"{number:03}.example.org" for number in range(103)]
    for name in names:
        await caller.take(name)
    await caller.take("102.example.org")  # waits
    await caller.give_back("101.example.org", feedback=FeedbackSummary(refused=1, retry_after=60))
    ran = await semaphore(server, "status")
    assert [line.split()[0] for line in ran.lines[1:4]] == [names[102], names[101], names[0]]
    last = "100 of 103 scopes (--all shows all); on all 102 held, 1 waiting"
    assert ran.lines[101:] == ["", last]
    shown = json.loads((await semaphore(server, "status", "--json")).out)
    assert (len(shown["scopes"]), shown["totals"]["scopes"]) == (100, 103)
    for options in (("--all",), ("--top", "103")):
        assert len((await semaphore(server, "status", *options)).lines) == 104


async def test_a_delay_shows_how_much_it_varies(server: RedisServer) -> None:
    caller = await Caller.join(server, "one")
    await caller.take(SITE, limit=Limit(2, 1.5, 0.5))
    async with Admin(server.url, name="boss") as operator:
        await operator.configure("*.museum", {"delay": 2, "jitter": 0.125})
    _, site, *_, rule = (await semaphore(server, "status")).lines
    assert ("  1.5 s ±50 %  " in site, "  2 s ±12.5 %  " in rule) == (True, True)
    ran = await semaphore(server, "status", SITE)
    assert ran.lines[-1].endswith("  1.5 s ±50 %")


async def test_rules_show_who_set_them(server: RedisServer, outside: Outside) -> None:
    await three_nodes(server)
    outside.start_is_due(SITE)
    async with Admin(server.url, name="alice@desk") as operator:
        await operator.configure(SITE, {"concurrency": None, "delay": 0.25})
        await operator.configure("*.edu", {"concurrency": 5, "rate": "90/m"})
        await operator.pause("*.edu")
        await operator.pause("*.museum")
    ran = await semaphore(server, "status")
    assert ran.lines == [
        "scope                            held  waiting  longest   delay  rate  state   set by",
        f"{SITE}                   2/∞        3      3 h  0.25 s     -  open    alice@desk",
        f"{LONG_NAME}   3/5        0        -       -  90/m  paused  alice@desk",
        "",
        "pattern   limit  rate  paused  set by",
        "*.edu         5  90/m  paused  alice@desk",
        "*.museum      -     -  paused  alice@desk",
    ]
    # A pattern's rule is shown even if no host below it is in use, and only where it fits.
    assert (await semaphore(server, "status", SITE, "--nodes")).out.count("*.edu") == 0
    ran = await semaphore(server, "status", "*.museum")
    assert (ran.status, ran.lines[1].split()) == (0, ["*.museum", "-", "paused", "alice@desk"])


async def test_a_server_that_is_empty_or_lost_all(server: RedisServer, outside: Outside) -> None:
    ran = await semaphore(server, "status", "--json")
    shown = json.loads(ran.out)
    assert set(shown["totals"].values()) == {0, None}
    assert [shown[rows] for rows in ("scopes", "nodes", "rules")] == [[], [], []]
    nothing = "No scope is in use at {}, prefix {!r}.\n"
    assert (await semaphore(server, "status")).out == nothing.format(server.url, "semaphore")
    await three_nodes(server)
    ran = await semaphore(server, "status", "-s", "SEMAPHORE_PREFIX=other")
    assert ran == (0, nothing.format(server.url, "other"), "")
    outside.client.flushall()
    async with FairSemaphore(server.url, recovery_wait=OLD):
        ran = await semaphore(server, "status")
        assert ran.lines[0] == (
            "The server is new, or may have lost its data. Nothing starts for another 3 h."
        )
        ran = await semaphore(server, "status", "--json")
        assert OLD - 60 < json.loads(ran.out)["totals"]["recovery_left"] <= OLD


async def test_no_name_commands_the_terminal(server: RedisServer) -> None:
    caller = await Caller.join(server, "no\x1b[31mde")
    await caller.take("a\x1b[2J[red]b\n\udcff")
    ran = await semaphore(server, "status", "--nodes")
    assert ran.lines[1].startswith(r"a\x1b[2J[red]b\n\udcff ")
    assert ran.lines[4].startswith(r"no\x1b[31mde ")
    shown = json.loads((await semaphore(server, "status", "--json")).out)
    assert shown["scopes"][0]["scope"] == "a\x1b[2J[red]b\n\udcff"


async def test_it_finds_the_server_of_the_project(server: RedisServer, tmp_path: Path) -> None:
    await three_nodes(server)
    (tmp_path / "scrapy.cfg").write_text("[settings]\ndefault = their_settings\n")
    (tmp_path / "their_settings.py").write_text(f"SEMAPHORE_REDIS_URL = {server.url!r}\n")
    environment = {"PYTHONPATH": str(tmp_path)}
    for ran in (
        await semaphore_process(
            "redis://0.0.0.0:1", "status", directory=tmp_path, environment=environment
        ),
        *[await semaphore(None, "-s", f"{name}={server.url}", "status") for name in URL_NAMES],
        *[await semaphore(None, "status", environment={name: server.url}) for name in URL_NAMES],
    ):
        assert ran == (0, TABLE, "")
