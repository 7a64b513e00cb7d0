"""The lists of nodes and of shared crawls, the help, and a page whose server is away."""

from __future__ import annotations

import pytest

from tests.console.web.pages import looking, serving
from tests.console.web.test_page import FOCUS, STRANGE, tab_to
from tests.console.web.test_page_for_all import PROBLEM, unlock
from tests.support import accessibility as access
from tests.support.browser import CHROMIUM, WHY_NOT, Browser, Chromium, browsing
from tests.support.frontier import set_one_aside
from tests.support.nodes import Caller, in_asyncio
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT), pytest.mark.slow]

DASH = "\u2013"
QUESTION = "document.querySelector('#confirm-text').textContent"
PAUSES = """
  const pauses = [];
  const later = window.setTimeout;
  window.setTimeout = (callback, ms) => {
    if (callback.name === "look") pauses.push(ms);
    return later(callback, callback.name === "look" ? 5 : ms);
  };
"""


def rows(section: str) -> str:
    """What the cells of a list say, without those of its buttons."""
    return (
        f"[...document.querySelectorAll('{section} tbody tr')]"
        ".map((tr) => [...tr.cells].slice(0, -1).map((cell) => cell.textContent))"
    )


def answer(section: str) -> str:
    return f"document.querySelector('{section} .answer').textContent"


async def open_nodes(browser: Browser) -> None:
    await browser.until("document.querySelector('#nodes-count').textContent !== '\u2013'")
    await browser.click("#show-nodes")
    await browser.until("document.querySelector('#nodes').hidden", False)


@in_asyncio
async def test_the_tile_opens_the_nodes_and_one_is_evicted_by_keyboard_alone(
    server: RedisServer, chromium: Chromium
) -> None:
    dead = await Caller.join(server, "dead-node")
    await dead.take("a.example", 3, limit=2)
    other = await Caller.join(server, "other-node")
    await other.take("b.example", 1, limit=1)
    async with looking(server, chromium) as (browser, page):
        await browser.until("document.querySelector('#nodes-count').textContent", "2")
        names = [node.get("name", {}).get("value") for node in await browser.tree()]
        assert "2 nodes" in names
        await browser.see("document.querySelector('#show-nodes').focus()")
        await browser.press("Enter")
        await browser.until("document.activeElement.ariaExpanded", "true")
        shown = f"{rows('#nodes')}.map((row) => row.slice(0, 4))"
        await browser.until(shown, [["dead-node", "2", "1", "1"], ["other-node", "1", "0", "1"]])
        assert await browser.see("document.querySelector('#nodes .locked').hidden")
        await unlock(browser)
        await browser.until("document.querySelector('#nodes .locked').hidden", False)
        await access.check(browser)
        await tab_to(browser, "Evict\u2026")
        assert await browser.see("document.activeElement.ariaLabel") == "Evict dead-node"
        await browser.press("Enter")
        await browser.until("document.querySelector('#confirm').open")
        assert await browser.see(FOCUS) == "Cancel"
        said = await browser.see(QUESTION)
        assert said.startswith("dead-node holds 2 permits and has 1 waiting request, at 1 site. It")
        await access.check(browser)
        await browser.press("Enter")
        await browser.until("document.querySelector('#confirm').open", False)
        assert await browser.see(FOCUS) == "Evict\u2026"
        assert len(await page.admin.survey()) == 2
        await browser.press("Enter")
        await browser.press("Tab", shift=True)
        assert await browser.see(FOCUS) == "Evict"
        await browser.press("Enter")
        told = "dead-node gave back 2 permits and dropped 1 waiting request."
        await browser.until(answer("#nodes"), told)
        await browser.until(shown, [["other-node", "1", "0", "1"]])
        assert await browser.see(FOCUS) == "Nodes"
        assert [seen.scope for seen in await page.admin.survey()] == ["b.example"]


@in_asyncio
async def test_rows_of_nodes_do_not_move_away_from_who_is_about_to_press_a_button(
    server: RedisServer, chromium: Chromium
) -> None:
    first = await Caller.join(server, "first")
    await first.take("a.example", 3, limit=1)
    second = await Caller.join(server, "second")
    await second.take("a.example", 1, limit=1)
    order = f"{rows('#nodes')}.map(([name]) => name)"
    async with looking(server, chromium) as (browser, _):
        await unlock(browser)
        await open_nodes(browser)
        await browser.until(order, ["first", "second"])
        await browser.see("document.querySelector('#nodes tbody button').focus()")
        await second.take("b.example", 9, limit=1)
        waiting = f"{rows('#nodes')}.map((row) => row[2])"
        await browser.until(waiting, ["2", "9"])
        assert await browser.see(order) == ["first", "second"]
        await browser.see("document.activeElement.blur()")
        await browser.until(order, ["second", "first"])


@in_asyncio
async def test_crawls_are_listed_retried_and_dropped(
    server: RedisServer, chromium: Chromium
) -> None:
    async with looking(server, chromium) as (browser, page):
        await browser.until("document.querySelector('#server').textContent", server.url)
        assert await browser.see("document.querySelector('#crawls').hidden")
        await set_one_aside(server, "books")
        await browser.until("document.querySelector('#crawls').hidden", False)
        shown = f"{rows('#crawls')}.map((row) => row.with(1, row[1].replace(/ [^]*/, '')))"
        await browser.until(shown, [["books", "ended", *"000001", "1"]])
        await unlock(browser)
        await browser.until("document.querySelector('#crawls .locked').hidden", False)
        await access.check(browser)
        retry, drop = ("#crawls tbody button:first-child", "#crawls tbody button:last-child")
        await browser.click(retry)
        await browser.until(
            QUESTION,
            "books has 1 request that three nodes have failed with. Now nodes get them again. The "
            "crawl has ended: the next node that is started goes on with it.",
        )
        await browser.click("#confirm .danger")
        await browser.until(answer("#crawls"), "books has 1 request queued again.")
        await browser.until(shown, [["books", "stopped", *"0110010"]])
        await browser.until(f"document.querySelector('{retry}').disabled")
        await browser.click(drop)
        await browser.until("document.querySelector('#confirm').open")
        await page.state()
        await browser.click("#confirm .danger")
        await browser.until(answer("#crawls"), "books is dropped.")
        await browser.until(shown, [])
        assert (await page.state())["crawls"] == []


@in_asyncio
async def test_names_of_nodes_and_crawls_stay_text_and_nothing_overflows(
    server: RedisServer, chromium: Chromium
) -> None:
    for name in STRANGE:
        await (await Caller.join(server, name)).take("a.example", 1, limit=99)
        await set_one_aside(server, name)
    async with looking(server, chromium) as (browser, _):
        await unlock(browser)
        await open_nodes(browser)
        for section in ("#nodes", "#crawls"):
            await browser.until(f"{rows(section)}.length", len(STRANGE))
        made = "document.querySelectorAll('main img, main script, main b, [onmouseover]').length"
        assert await browser.see(made) == 0
        await browser.see("document.querySelector('#help').open = true")
        for width in (1280, 800, 390):
            await browser.size(width, 800, phone=width == 390)
            await access.check(browser)
            await browser.click("#nodes tbody tr:nth-child(7) button")
            await browser.until("document.querySelector('#confirm').open")
            await access.check(browser)
            await browser.click("#confirm .plain")


@in_asyncio
async def test_each_column_and_figure_has_its_help_as_a_title_and_in_the_legend(
    server: RedisServer, chromium: Chromium
) -> None:
    async with looking(server, chromium) as (browser, _):
        helped = "#totals div, thead th"
        found = await browser.see(
            "[document, ...[...document.querySelectorAll('template')].map((one) => one.content)]"
            f".flatMap((root) => [...root.querySelectorAll('{helped}')])"
            ".map((part) => [part.textContent.trim(), part.title])"
        )
        assert len(found) > 30
        assert [name for name, title in found if not title] == []
        legend = await browser.see(
            "[...document.querySelectorAll('#help dd')].map((dd) => dd.textContent)"
        )
        assert {title for _, title in found} == {*legend}
        await tab_to(browser, "What the figures mean")
        await browser.press("Enter")
        await browser.until("document.querySelector('#help').open")
        await access.check(browser)
        roles = {node["role"]["value"] for node in await browser.tree()}
        assert {"DisclosureTriangle", "term", "definition"} <= roles


@in_asyncio
async def test_while_the_page_s_server_is_away_it_is_asked_less_and_less_often(
    server: RedisServer, chromium: Chromium
) -> None:
    async with browsing(chromium) as browser:
        await browser.run_first(PAUSES)
        async with serving(server) as page:
            await browser.open(page.url)
            await browser.until("document.querySelector('#server').textContent", server.url)
            assert await browser.see("Math.max(...pauses)") == 1000
            assert browser.complaints == []
            await browser.see("pauses.length = 0")
            await browser.cut_off(True)
            await browser.until("pauses.filter((ms) => ms === 30000).length > 1")
            growing = "[...new Set(pauses)].filter((ms) => ms > 1000).join()"
            assert await browser.see(growing) == "2000,4000,8000,16000,30000"
            assert (await browser.see(PROBLEM)).startswith("Connection lost: since ")
            await browser.cut_off(False)
            await browser.until(PROBLEM, "")
            await browser.until("pauses.at(-1)", 1000)


@in_asyncio
async def test_while_the_redis_server_is_away_the_browsers_console_stays_quiet(
    server: RedisServer, chromium: Chromium
) -> None:
    async with looking(server, chromium) as (browser, page):
        await browser.until("document.querySelector('#server').textContent", server.url)
        server.kill()
        await browser.until(f"{PROBLEM}.startsWith('Away since ')")
        before = await browser.see(PROBLEM)
        assert (await page.state())["problem"]
        await browser.see("new Promise((done) => setTimeout(done, 1500))")
        assert (await browser.see(PROBLEM)).partition(". ")[0] == before.partition(". ")[0]
        server.start()
        await browser.until(PROBLEM, "")
