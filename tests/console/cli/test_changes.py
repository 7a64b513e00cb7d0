"""`limit`, `pause`, `resume` and `reset` change what holds, at once, and say what holds then."""

from __future__ import annotations

import asyncio
import re

from semaphore_middleware import FairSemaphore
from tests.support.cli import LONG_NAME, SITE, semaphore, three_nodes
from tests.support.nodes import TIMEOUT_S, Outside
from tests.support.servers import RedisServer


async def test_a_limit_holds_at_once_for_nodes_that_wait(server: RedisServer) -> None:
    async with FairSemaphore(server.url) as node:
        await node.acquire(SITE, 1)
        waiting = [asyncio.create_task(node.acquire(SITE, 1)) for _ in range(2)]
        ran = await semaphore(server, "limit", "WWW.example.org", "3")
        await asyncio.wait_for(asyncio.gather(*waiting), TIMEOUT_S)
        assert (ran.status, ran.err) == (0, "")
        assert ran.out.startswith(f"{SITE}: limit 3; ")
        limits = {rule.name: (rule.concurrency, rule.delay) for rule in await node.admin.rules()}
        assert limits[SITE] == (3, None)


async def test_each_verb_says_what_holds_from_now_on(server: RedisServer) -> None:
    await three_nodes(server)
    limit = ("limit", SITE, "1")
    for arguments, said in (
        (("pause", SITE), f"{SITE}: paused; 2/2 held, 3 waiting"),
        ((*limit, "--delay", "0"), f"{SITE}: limit 1, delay 0 s, paused; 2/1 held, 3 waiting"),
        (
            (*limit, "--rate", "90/m", "--burst", "10"),
            f"{SITE}: limit 1, delay 0 s, rate 90/m, burst 10, paused; 2/1 held, 3 waiting",
        ),
        (("resume", SITE), f"{SITE}: limit 1, delay 0 s, rate 90/m, burst 10; 2/1 held, 3 waiting"),
        (
            (*limit, "--delay", "0.25", "--rate", "None"),
            f"{SITE}: limit 1, delay 0.25 s, rate none, burst 10; 2/1 held, 3 waiting",
        ),
        (("reset", SITE), f"{SITE}: nothing is set; 2/2 held, 3 waiting"),
        (("limit", LONG_NAME, "none"), f"{LONG_NAME}: limit ∞; 3/∞ held, 0 waiting"),
        (("limit", "*.Example.org", "1"), "*.example.org: limit 1"),
        (("reset", "*.example.org"), "*.example.org: nothing is set"),
    ):
        assert await semaphore(server, *arguments) == (0, f"{said}\n", "")


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


async def test_a_scope_in_use_may_be_named_like_a_url(server: RedisServer) -> None:
    name = "https://api.example.org/search"
    async with FairSemaphore(server.url) as node:
        await node.acquire(name, 1)
        ran = await semaphore(server, "pause", name)
        assert ran == (0, f"{name}: paused; 1/1 held, 0 waiting\n", "")


async def test_all_sites_are_paused_and_all_rules_are_reset_by_all(server: RedisServer) -> None:
    await three_nodes(server)
    await semaphore(server, "pause", "shop.example.org")
    usage = "5 held, 3 waiting"
    ran = await semaphore(server, "pause", "--all")
    assert ran == (0, f"all sites: paused; {usage}\n", "")
    first = (await semaphore(server, "status", environment={"LOGNAME": "alice"})).lines[0]
    assert re.fullmatch(r"All sites are paused, by \S+@\S+, until 'resume --all'\.", first)
    ran = await semaphore(server, "resume", "--all")
    paused = "Paused by themselves, and still so: shop.example.org."
    assert ran == (0, f"all sites: nothing is set; {usage}\n{paused}\n", "")
    asked = "1 rule will be removed: shop.example.org.\n"
    ran = await semaphore(server, "reset", "--all", answer="no\n")
    assert ran == (1, f"{asked}Go on? [y/N] Nothing was changed.\n", "")
    ran = await semaphore(server, "reset", "--all", "--yes")
    assert ran == (0, f"{asked}all sites: nothing is set; {usage}\n", "")
    ran = await semaphore(server, "reset", "--all")
    assert ran == (0, f"all sites: nothing is set; {usage}\n", "")


async def test_each_part_of_a_limit_has_its_option(server: RedisServer) -> None:
    for arguments, said in (
        (("--rate", "10/m"), "rate 10/m"),
        (("--burst", "4"), "rate 10/m, burst 4"),
        (
            ("--jitter", "0.5", "3", "--adaptive"),
            "limit 3, adaptive, jitter 0.5, rate 10/m, burst 4",
        ),
        (("--no-adaptive",), "limit 3, not adaptive, jitter 0.5, rate 10/m, burst 4"),
    ):
        ran = await semaphore(server, "limit", SITE, *arguments)
        assert ran == (0, f"{SITE}: {said}; not in use just now\n", "")


async def test_who_sets_is_the_user_at_this_host_or_has_a_name(server: RedisServer) -> None:
    async with FairSemaphore(server.url) as node:
        await semaphore(server, "pause", SITE, environment={"LOGNAME": "alice"})
        (rule,) = await node.admin.rules()
        assert rule.by.startswith("alice@")
        await semaphore(server, "pause", SITE, "-s", "SEMAPHORE_NODE=night-shift")
        (rule,) = await node.admin.rules()
        assert rule.by == "night-shift"


async def test_settings_that_it_does_not_need_may_be_wrong(server: RedisServer) -> None:
    wrong = ("SEMAPHORE_METRICS_PORT=no", "SEMAPHORE_BACKOFF_WHEN=no.such", "SEMAPHORE_LIMITS=no")
    options = [word for setting in wrong for word in ("-s", setting)]
    assert await semaphore(server, "pause", "x", *options) == (
        0,
        "x: paused; not in use just now\n",
        "",
    )


async def test_share_says_which_weight_is_set(server: RedisServer) -> None:
    for arguments, said in (
        (("news",), "news: weight as its nodes' settings say"),
        (("news", "3"), "news: weight 3, for all nodes"),
        (("news",), "news: weight 3, for all nodes"),
        (("news", "--reset"), "news: weight as its nodes' settings say"),
    ):
        assert await semaphore(server, "share", *arguments) == (0, f"{said}\n", "")
    for wrong, refused in (
        (("news", "0"), "the weight of 'news' = '0': allowed is a number >= 0.001"),
        (("news", "3", "--reset"), "share takes a weight or --reset, not both"),
    ):
        ran = await semaphore(server, "share", *wrong)
        assert (ran.status, ran.out) == (2, "")
        assert refused in ran.err
