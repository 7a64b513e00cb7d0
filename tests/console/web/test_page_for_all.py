"""The page on a phone, in the dark, for screen readers, and when something is away."""

from __future__ import annotations

import pytest

from semaphore_middleware import FairSemaphore
from tests.console.web.pages import TOKEN, fill, looking
from tests.console.web.test_page import DASH, NAMES, ROWS, cells
from tests.support import accessibility as access
from tests.support.browser import CHROMIUM, WHY_NOT, Browser, Chromium
from tests.support.nodes import in_asyncio
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT), pytest.mark.slow]

PROBLEM = "document.querySelector('#problem').textContent"
NEWS = "document.querySelector('#news').textContent.replace(/^[\\d:]* /, '')"
ANSWER = "document.querySelector('.details .answer').textContent"


async def unlock(browser: Browser, token: str = TOKEN) -> None:
    await browser.until("document.querySelector('#unlock').hidden", False)
    await browser.click("#unlock")
    await browser.until("document.activeElement.id", "token")
    await browser.type(token)
    await browser.press("Enter")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (800, 1000), (360, 740)])
@in_asyncio
async def test_all_is_readable_named_and_in_order(
    server: RedisServer, chromium: Chromium, scheme: str, width: int, height: int
) -> None:
    async with FairSemaphore(server.url) as node, looking(server, chromium) as (browser, page):
        await browser.prefer(color_scheme=scheme, reduced_motion="reduce")
        await browser.size(width, height, phone=width == 360)
        await fill(node, "busy.example", held=2, waiting=3)
        await fill(node, "a-rather-long-name.of-a-site.example.org", held=1)
        parts = {"concurrency": 3, "delay": 60, "rate": "30/m", "burst": 10}
        await page.admin.configure("*.example.org", parts)
        await page.admin.pause("paused.example")
        refused = await node.acquire("refused.example", 1)
        refused.refused(retry_after=600)
        refused.release()
        await browser.until(f"{ROWS}.length", 4)
        await browser.until(f"{cells('refused.example', 'state')}[0].startsWith('backoff, ')")
        await access.check(browser)
        await unlock(browser)
        await browser.until("document.querySelector('#any').hidden", False)
        await browser.click("#scopes tbody .scope")
        await browser.until("document.querySelectorAll('.nodes tbody tr').length", 1)
        await access.check(browser)
        moving = "document.getAnimations().length"
        assert await browser.see(moving) == 0


@in_asyncio
async def test_a_screen_reader_is_told_of_a_table_with_headers_and_live_regions(
    server: RedisServer,
    chromium: Chromium,
) -> None:
    async with FairSemaphore(server.url) as node, looking(server, chromium) as (browser, _):
        await fill(node, "busy.example", held=1)
        for width in (1280, 360):  # as cards it is a table all the same
            await browser.size(width, 740)
            await browser.until(NAMES, ["busy.example"])
            tree = await browser.tree()
            roles = [(n["role"]["value"], n.get("name", {}).get("value")) for n in tree]
            assert ("table", "1 scope; sorted by waiting") in roles
            assert ("columnheader", "Longest wait") in roles
            assert [role for role, _ in roles].count("columnheader") == 10
            assert [role for role, _ in roles].count("rowheader") == 1
            assert [role for role, _ in roles].count("cell") == 9
            assert ("heading", "Semaphore") in roles
            assert ("searchbox", "Filter") in roles
            assert {"main", "banner"} <= {role for role, _ in roles}
            assert {"alert", "status"} <= {role for role, _ in roles}


@in_asyncio
async def test_what_matters_is_announced_and_what_ticks_is_not(
    server: RedisServer, chromium: Chromium
) -> None:
    async with FairSemaphore(server.url) as node, looking(server, chromium) as (browser, page):
        permits = await fill(node, "busy.example", held=2, waiting=1)
        await browser.until(NAMES, ["busy.example"])
        permits[0].release()
        await browser.until(cells("busy.example", "waiting"), ["0"])
        assert await browser.see(NEWS) == ""
        await page.admin.pause("busy.example")
        await browser.until(NEWS, "busy.example is paused.")
        await page.admin.resume("busy.example")
        await browser.until(NEWS, "busy.example goes on.")
        await page.admin.configure("busy.example", 7)
        await browser.until(NEWS, "busy.example has a limit of 7, set by page.")
        await page.admin.configure("busy.example", {"rate": "90/m"})
        await browser.until(NEWS, "busy.example has a rate of 90/m.")
        permits[1].refused(retry_after=300)
        permits[1].release()
        await browser.until(f"{NEWS}.startsWith('busy.example said “not now”: nothing starts for')")


# Changes ----------------------------------------------------------------------------------------


@in_asyncio
async def test_with_the_token_limits_are_changed_by_keyboard_alone(
    server: RedisServer, chromium: Chromium
) -> None:
    async with FairSemaphore(server.url) as node, looking(server, chromium) as (browser, page):
        await fill(node, "busy.example", held=2)
        await browser.until(NAMES, ["busy.example"])
        await browser.press("Tab")
        await browser.until("document.activeElement.id", "unlock")
        await browser.press("Enter")
        await browser.type(TOKEN)
        await browser.press("Enter")
        await browser.until("document.activeElement.textContent", "Lock")
        await browser.see(f"{ROWS}[0].querySelector('.scope').focus()")
        await browser.press("Enter")
        await browser.until("document.activeElement.ariaExpanded", "true")
        await browser.press("Tab")  # the list of nodes, which scrolls
        await browser.press("Tab")
        await browser.until("document.activeElement.name", "limit")
        await browser.type("6")
        await browser.press("Tab")
        await browser.type("0.25")
        await browser.press("Tab")
        await browser.type("90/m")
        await browser.press("Tab")
        await browser.type("3")
        await browser.press("Enter")
        await browser.until(ANSWER, "It is set.")
        seen = await node.admin.inspect("busy.example")
        assert (seen.limit, seen.delay, seen.set_by) == (6, 0.25, page.admin.name)
        assert (seen.rate, seen.burst) == ("90/m", 3)
        shown = ["2/6", "0.3 s", "90/m (3)"]
        await browser.until(cells("busy.example", "held", "delay", "rate"), shown)
        await browser.see("document.querySelector('.details [name=rate]').value = 'none'")
        await browser.click(".details [type=submit]")
        await browser.until(cells("busy.example", "rate"), [DASH])
        await browser.click(".details [data-action=pause]")
        await browser.until(ANSWER, "It is paused.")
        assert (await node.admin.inspect("busy.example")).paused
        await browser.click(".details [data-action=reset]")
        await browser.until(f"{ANSWER}.endsWith('settings hold again.')")
        assert await node.admin.rules() == []


@in_asyncio
async def test_a_pattern_is_changed_too_and_bad_values_are_explained(
    server: RedisServer, chromium: Chromium
) -> None:
    async with looking(server, chromium) as (browser, page):
        await unlock(browser)
        await browser.until("document.querySelector('#any').hidden", False)
        await browser.click("#name")
        await browser.type("a*")
        answer = "document.querySelector('#any .answer').textContent"
        await browser.click("#any [data-action=pause]")
        await browser.until(
            f"{answer}.startsWith('Refused: the limit of \\'a*\\': a \\'*\\' may only')"
        )
        browser.expect_complaint("400")
        await browser.see("document.querySelector('#name').value = '*.example.org'")
        await browser.click("#any [data-action=pause]")
        await browser.until(answer, "It is paused.")
        assert [(rule.name, rule.paused) for rule in await page.admin.rules()] == [
            ("*.example.org", True)
        ]
        await browser.until(
            "document.querySelector('#rules tbody th')?.textContent", "*.example.org"
        )


@in_asyncio
async def test_a_wrong_token_is_refused_and_the_right_one_kept_in_this_tab_alone(
    server: RedisServer,
    chromium: Chromium,
) -> None:
    async with looking(server, chromium) as (browser, page):
        await unlock(browser, "wrong")
        refused = "document.querySelector('#refused').textContent"
        await browser.until(refused, "Refused: this is not the token that the command was given.")
        browser.expect_complaint("403")
        assert await browser.see("document.querySelector('#any').hidden")
        assert await browser.see("document.activeElement.id") == "token"
        await browser.type(TOKEN)
        await browser.press("Enter")
        await browser.until("document.querySelector('#any').hidden", False)
        assert await browser.see("[localStorage.length, document.cookie]") == [0, ""]
        await browser.open(page.url)
        await browser.until("document.querySelector('#any').hidden", False)
        await browser.click("#unlock")
        await browser.until("document.querySelector('#any').hidden", True)
        assert await browser.see("sessionStorage.length") == 0


@in_asyncio
async def test_a_page_without_a_token_configured_shows_no_way_to_change_anything(
    server: RedisServer,
    chromium: Chromium,
) -> None:
    async with (
        FairSemaphore(server.url) as node,
        looking(server, chromium, token=None) as (browser, _),
    ):
        await fill(node, "busy.example", held=1)
        await browser.until(NAMES, ["busy.example"])
        await browser.click("#scopes tbody .scope")
        await browser.until("document.querySelectorAll('.nodes tbody tr').length", 1)
        shown = "[...document.querySelectorAll('button')].filter((b) => b.checkVisibility()).length"
        assert await browser.see(shown) == 10 + 1 + 1  # the columns, the scope, the tile of nodes
        await access.check(browser)


# When something is away -------------------------------------------------------------------------


@in_asyncio
async def test_a_redis_server_that_is_away_is_said_and_the_page_goes_on_when_it_is_back(
    server: RedisServer,
    chromium: Chromium,
) -> None:
    async with FairSemaphore(server.url) as node, looking(server, chromium) as (browser, _):
        await fill(node, "busy.example", held=1)
        await browser.until(NAMES, ["busy.example"])
        server.freeze()
        try:
            await browser.until(
                f"/^Away since [\\d:]+. The Redis server does not answer[^]*\\. No/.test({PROBLEM})"
            )
            assert await browser.see(NAMES) == ["busy.example"]
            await access.check(browser)
        finally:
            server.thaw()
        await browser.until(PROBLEM, "")


@in_asyncio
async def test_a_lost_connection_is_said_and_the_page_goes_on_by_itself(
    server: RedisServer,
    chromium: Chromium,
) -> None:
    async with looking(server, chromium) as (browser, page):
        await browser.until("document.querySelector('#server').textContent", server.url)
        await browser.cut_off(True)
        await browser.until(f"{PROBLEM}.startsWith('Connection lost: ')")
        await access.check(browser)
        await page.admin.configure("new.example", 1)
        await browser.cut_off(False)
        await browser.until(PROBLEM, "")
        await browser.until(NAMES, ["new.example"])
        assert await browser.see(NEWS) == "Connected again."
        browser.expect_complaint("ERR_INTERNET_DISCONNECTED")
