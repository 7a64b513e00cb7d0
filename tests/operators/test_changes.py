"""The verbs for changes: they take effect at once, and print the result."""

import asyncio
import re

import pytest

from semaphore_middleware import FairSemaphore, PermitLostError, ServerUnreachableError
from semaphore_middleware.model.inspection import ServerState
from semaphore_middleware.operators.admin import SCOPES_PER_CALL, Admin
from tests.support.cli import LONG_NAME, SITE, semaphore, terminal, three_nodes
from tests.support.crawls import Patch
from tests.support.nodes import Caller, Outside, until_waiting
from tests.support.rights import user
from tests.support.servers import RedisServer
from tests.support.times import ENDLESS_S, TIMEOUT_S

SAYS = "scrapy semaphore: "


async def test_a_limit_holds_at_once_for_nodes_that_wait(server: RedisServer) -> None:
    async with FairSemaphore(server.url) as node:
        await node.acquire(SITE, 1)
        waiting = [asyncio.create_task(node.acquire(SITE, 1)) for _ in range(2)]
        ran = await semaphore(server, "limit", "WWW.example.org", "3")
        await asyncio.wait_for(asyncio.gather(*waiting), TIMEOUT_S)
        assert (ran.status, ran.err) == (0, "")
        assert ran.out.startswith(f"{SITE}: limit 3; ")
        limits = {rule.name: rule.limit for rule in await node.admin.rules()}
        assert limits[SITE] == {"concurrency": 3}


async def test_each_verb_says_what_holds_from_now_on(server: RedisServer) -> None:
    await three_nodes(server)
    limit = ("limit", SITE, "1")
    for arguments, said in (
        (("pause", "WWW.example.org"), f"{SITE}: paused; 2/2 held, 3 waiting"),
        ((*limit, "--delay", "0"), f"{SITE}: limit 1, delay 0 s, paused; 2/1 held, 3 waiting"),
        (
            (*limit, "--rate", "90/m", "--burst", "10"),
            f"{SITE}: limit 1, delay 0 s, rate 90/m, burst 10, paused; 2/1 held, 3 waiting",
        ),
        (("resume", SITE), f"{SITE}: limit 1, delay 0 s, rate 90/m, burst 10; 2/1 held, 3 waiting"),
        (
            (*limit, "--delay", "0.25", "--rate", "None"),
            f"{SITE}: limit 1, delay 0.25 s, rate none; 2/1 held, 3 waiting",
        ),
        (("reset", SITE), f"{SITE}: nothing is set; 2/2 held, 3 waiting"),
        (("limit", LONG_NAME, "none"), f"{LONG_NAME}: no limit; 3/∞ held, 0 waiting"),
        (("limit", "*.Example.org", "1"), "*.example.org: limit 1"),
        (("reset", "*.example.org"), "*.example.org: nothing is set"),
        (("limit", "x", "--rate", "10/m"), "x: rate 10/m; not in use just now"),
        (("limit", "x", "--burst", "4"), "x: rate 10/m, burst 4; not in use just now"),
        (
            ("limit", "x", "--jitter", "0.5", "3", "--adaptive"),
            "x: limit 3, jitter 0.5, adaptive, rate 10/m, burst 4; not in use just now",
        ),
        (
            ("limit", "x", "--no-adaptive"),
            "x: limit 3, jitter 0.5, not adaptive, rate 10/m, burst 4; not in use just now",
        ),
        (("limit", "Bücher.Example", "2"), "xn--bcher-kva.example: limit 2; not in use just now"),
        (("limit", "API-A", "2"), "API-A: limit 2; not in use just now"),
    ):
        assert await semaphore(server, *arguments) == (0, f"{said}\n", "")


async def test_names_that_look_wrong(server: RedisServer) -> None:
    async with FairSemaphore(server.url) as node:
        await node.acquire("a.test/", 1)  # as a user's own function may name it
        ran = await semaphore(server, "pause", "a.test/")
        assert ran == (0, "a.test/: paused; 1/1 held, 0 waiting\n", "")
    ran = await semaphore(server, "limit", "domain:www.example.co.uk", "2")
    assert ran.status == 0
    assert ran.err.startswith("scrapy semaphore: domain:www.example.co.uk: www.example.co.uk is")


async def test_a_site_that_nobody_uses_can_be_paused(server: RedisServer, outside: Outside) -> None:
    for verb in ("status", "resume", "reset"):
        ran = await semaphore(server, verb, SITE)
        assert ran == (4, "", f"scrapy semaphore: nothing is known of {SITE!r}\n")
    ran = await semaphore(server, "pause", SITE)
    assert ran == (0, f"{SITE}: paused; not in use just now\n", "")
    async with FairSemaphore(server.url) as node:
        assert (await node.admin.inspect(SITE)).paused
        assert (await semaphore(server, "reset", SITE)).status == 0
        assert not (await node.admin.inspect(SITE)).paused
    assert outside.in_use() == set()


async def test_what_is_limited_under_the_name_all_can_be_paused(server: RedisServer) -> None:
    for verb in (("limit", "all", "5"), ("pause", "all"), ("reset", "all")):
        assert (await semaphore(server, *verb)).status == 0  # a rule is enough


async def test_all_sites_are_paused_and_all_rules_are_reset_by_all(server: RedisServer) -> None:
    await three_nodes(server)
    await semaphore(server, "pause", "shop.example.org")
    usage = "5 held, 3 waiting"
    ran = await semaphore(server, "pause", "--all")
    assert ran == (0, f"all sites: paused; {usage}\n", "")
    first = (await semaphore(server, "status", environment={"LOGNAME": "alice"})).lines[0]
    assert re.fullmatch(r"All sites are paused, by \S+@\S+, until 'resume --all'\.", first)
    ran = await semaphore(server, "resume", "--all")
    paused = "Still paused individually: shop.example.org."
    assert ran == (0, f"all sites: nothing is set; {usage}\n{paused}\n", "")
    asked = "1 rule will be removed: shop.example.org.\n"
    ran = await semaphore(server, "reset", "--all", answer="no\n")
    assert ran == (1, f"{asked}Go on? [y/N] Nothing was changed.\n", "")
    ran = await semaphore(server, "reset", "--all", "--yes")
    assert ran == (0, f"{asked}all sites: nothing is set; {usage}\n", "")
    ran = await semaphore(server, "reset", "--all")
    assert ran == (0, f"all sites: nothing is set; {usage}\n", "")


async def test_what_cannot_be_read_after_a_change_fails_no_change(
    server: RedisServer, monkeypatch: Patch
) -> None:
    url = user(server, name="crawler")  # who may change rules, but not list the scopes
    await three_nodes(server)
    for verb, now, is_paused in (
        (("pause", "--all"), "paused", True),
        (("resume", "--all"), "nothing is set", False),
        (("pause", "--all"), "paused", True),
        (("reset", "--all", "--yes"), "nothing is set", False),
    ):
        ran = await semaphore(url, *verb)
        assert (ran.status, ran.lines[-1]) == (0, f"all sites: {now}")
        done = f"{SAYS}{verb[0]} --all is done, but the totals cannot be shown:"
        assert ran.err.startswith(done)
        assert "'zscan'" in ran.err
        async with Admin(server.url) as admin:
            assert (await admin.inspect(SITE)).paused == is_paused

    async def lost(*_: object) -> None:
        raise ServerUnreachableError("lost the server")

    monkeypatch.setattr(Admin, "rule", lost)
    monkeypatch.setattr(Admin, "rules", lost)
    for arguments in (("limit", SITE, "5"), ("pause", SITE), ("pause", "--all")):
        done = " ".join(arguments[:2])
        said = f"{SAYS}{done} is done, but the result cannot be shown: lost the server\n"
        assert await semaphore(server, *arguments) == (0, "", said)


async def test_who_sets_is_the_user_at_this_host_or_has_a_name(server: RedisServer) -> None:
    async with FairSemaphore(server.url) as node:
        await semaphore(server, "pause", SITE, environment={"LOGNAME": "alice"})
        (rule,) = await node.admin.rules()
        assert rule.by.startswith("alice@")
        await semaphore(server, "pause", SITE, "-s", "SEMAPHORE_NODE=night-shift")
        (rule,) = await node.admin.rules()
        assert rule.by == "night-shift"


async def test_settings_that_it_does_not_need_may_be_wrong(server: RedisServer) -> None:
    wrong = ("SEMAPHORE_METRICS=no", "SEMAPHORE_BACKOFF_WHEN=no.such", "SEMAPHORE_LIMITS=no")
    options = [word for setting in wrong for word in ("-s", setting)]
    ran = await semaphore(server, "pause", "x", *options)
    assert ran == (0, "x: paused; not in use just now\n", "")


# A dead node --------------------------------------------------------------------------------------

ALIVE = (
    "so it may be alive. If it is, its requests go on for a while, on top of those that other "
    "nodes may start."
)


async def nodes_at(server: RedisServer, scope: str) -> list[tuple[str, int, int]]:
    """The nodes of a scope, each with the permits that it holds and its waiting requests."""
    async with Admin(server.url) as operator:
        seen = await operator.inspect(scope)
    return [(member.node, member.held, member.waiting) for member in seen.members]


async def test_what_it_held_is_free_at_once_and_limits_stay(server: RedisServer) -> None:
    living = (await three_nodes(server))[1:]
    assert await nodes_at(server, SITE) == [("three", 0, 1), ("one", 1, 1), ("two", 1, 1)]
    ran = await semaphore(server, "evict", "one", "--yes")
    assert (ran.status, ran.err) == (0, "")
    assert ran.lines[-1] == "Gave back 2 permits and dropped 1 waiting request."
    for node in living:  # as they do when they are notified of a change
        await node.renew(SITE, limit=2)
    assert await nodes_at(server, SITE) == [("two", 1, 1), ("three", 1, 0)]
    assert await nodes_at(server, LONG_NAME) == [("three", 1, 0), ("two", 1, 0)]
    async with Admin(server.url) as operator:
        seen = await operator.inspect(SITE)
    assert (seen.limit, seen.limit_max, seen.effective.delay) == (2, 2, 0)


async def test_more_than_one_call_can_carry_goes_back_too(server: RedisServer) -> None:
    dead = await Caller.join(server, "dead")
    for i in range(2 * SCOPES_PER_CALL + 1):
        await dead.take(f"{i}.example", 3)
    async with Admin(server.url) as operator:
        for node, found in (("nobody", (0, 0)), ("dead", (401, 802)), ("dead", (0, 0))):
            assert await operator.evict(node) == found
        assert await operator.survey() == []


async def test_a_living_node_loses_its_permits_at_once(server: RedisServer) -> None:
    async with FairSemaphore(server.url, node="living") as living:
        waiting: list[asyncio.Task[object]] = []
        with pytest.raises(PermitLostError, match="an operator evicted this node"):
            async with living.permit(SITE, 1):
                waiting = [asyncio.create_task(living.acquire(SITE, 1))]
                await until_waiting(living, 1, SITE)
                async with Admin(server.url) as operator:
                    assert await operator.evict(living.node) == (1, 1)
                await asyncio.sleep(ENDLESS_S)
        # Waiting requests ask again by themselves.
        await asyncio.wait_for(asyncio.gather(*waiting), TIMEOUT_S)


async def test_a_node_seems_dead_when_none_has_called_for_long(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(_: Admin) -> ServerState:
        return ServerState(silent_for=5400.0)

    await three_nodes(server)
    monkeypatch.setattr(Admin, "server_state", silent)
    ran = await semaphore(server, "evict", "three", "-s", f"SEMAPHORE_LEASE={ENDLESS_S}")
    assert "It has renewed no lease for 90 min: it seems to be dead." in ran.out


async def test_it_does_nothing_unless_told_yes(server: RedisServer, outside: Outside) -> None:
    await three_nodes(server)
    before = outside.dump()
    lease = ("-s", f"SEMAPHORE_LEASE={ENDLESS_S}")
    for answer in ("", "\n", "no\n"):
        ran = await semaphore(server, "evict", "three", *lease, answer=answer)
        assert ran.status == 1
        assert ran.lines[0].startswith(
            "three holds 1 permit and has 1 waiting request, at 2 sites. It renewed its leases "
        )
        assert ran.lines[0].endswith(f" ago, {ALIVE}")
        assert ran.lines[1].startswith("Give it all back now? [y/N]")
        assert ran.lines[-1].endswith("Nothing was changed.")
    ran = await semaphore(server, "evict", "three", "-s", "SEMAPHORE_LEASE=6000")
    assert ran.status == 1
    assert "It has renewed no lease for 90 min: it seems to be dead." in ran.out
    assert outside.dump() == before
    assert (await semaphore(server, "evict", "three", *lease, answer="y\n")).status == 0
    assert await nodes_at(server, SITE) == [("one", 1, 1), ("two", 1, 1)]


async def test_ctrl_c_at_a_question_changes_nothing(server: RedisServer, outside: Outside) -> None:
    await three_nodes(server)
    before = outside.dump()
    async with terminal(server, "evict", "one") as shown:
        await shown.has_drawn("[y/N] ")
        assert await shown.ends_with(b"\x03") == 130
        assert "Traceback" not in shown.drawn
    assert outside.dump() == before


async def test_a_beginning_is_enough_for_one_node(server: RedisServer, outside: Outside) -> None:
    await three_nodes(server)
    before = outside.dump()
    several = await semaphore(server, "evict", "t", "--yes")
    assert several == (2, "", "scrapy semaphore: 't' matches several nodes: three, two\n")
    nobody = (
        "scrapy semaphore: no node whose name begins with 'four' holds a permit or waits; "
        "'status --nodes' lists the nodes\n"
    )
    assert await semaphore(server, "evict", "four", "--yes") == (4, "", nobody)
    assert (await semaphore(server, "evict", "", "--yes")).status == 4
    assert outside.dump() == before
    await (await Caller.join(server, "two-more")).take(LONG_NAME, limit=8)
    exact = await semaphore(server, "evict", "two", "--yes")
    assert exact.lines[-1] == "Gave back 2 permits and dropped 1 waiting request."


# A new server -------------------------------------------------------------------------------------

EXPLAINED = (
    "will grant permits at once, as if it had granted none before. If a node still holds any, a "
    "site may see too many requests, for up to one lease (15 s)."
)


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        ("y\ny\n", 0, "Permits are granted from now on."),
        ("y\n\n", 1, "Nothing was changed."),
        ("n\n", 1, "Nothing was changed."),
    ],
)
async def test_it_asks_twice_on_a_terminal_and_elsewhere_wants_to_be_told_so(
    server: RedisServer, outside: Outside, answer: str, status: int, said: str
) -> None:
    outside.client.flushall()
    ran = await semaphore(server, "trust", answer=answer)
    asks = "trust asks for confirmation, which needs a terminal; without one, give --yes"
    assert ran == (2, "", f"scrapy semaphore: {asks}\n")
    assert not outside.client.keys("*")
    ran = await semaphore(server, "trust", answer=answer, in_terminal=True)
    assert (ran.status, ran.err) == (status, "")
    assert ran.lines[0] == f"{server.url} {EXPLAINED}"
    assert ran.out.count("[y/N] ") == answer.count("\n")
    assert ran.out.endswith(f"{said}\n")
    assert bool(outside.client.keys("*")) == (status == 0)


async def test_all_spellings_of_a_host_are_one_rule(server: RedisServer) -> None:
    await semaphore(server, "limit", "Example.COM", "3")
    assert (await semaphore(server, "status", "example.com.")).lines[1].split()[0] == "example.com"
    assert len((await semaphore(server, "status")).lines) == 2, "a title and one row"
    ran = await semaphore(server, "reset", "example.com")
    assert ran == (0, "example.com: nothing is set; not in use just now\n", "")
    assert (await semaphore(server, "status", "Example.COM")).status == 4
