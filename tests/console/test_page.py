"""The page in a real browser: on the screen, by keyboard, and for screen readers."""

from __future__ import annotations

import pytest

from semaphore_middleware import FairSemaphore, LimitDict
from semaphore_middleware.console import view
from tests.console.pages import (
    MARKUP,
    STRANGE,
    TOKEN,
    check,
    fill,
    looking,
    rows,
    serving,
)
from tests.support.browser import CHROMIUM, WHY_NOT, Browser, Chromium, browsing
from tests.support.nodes import KEYS, Caller
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT), pytest.mark.slow]

ROWS = "[...document.querySelectorAll('#scopes tbody tr:not(.details)')]"
NAMES = f"{ROWS}.map((row) => row.cells[0].textContent)"
CAPTION = "document.querySelector('#caption').textContent"
FOCUS = "document.activeElement.textContent"
PROBLEM = "document.querySelector('#problem').textContent"
NEWS = "document.querySelector('#news').textContent.replace(/^[\\d:]* /, '')"
ADDRESS = "location.href.slice(location.origin.length)"
HEADS = (
    "[...document.querySelectorAll('#scopes > thead th')]"
    ".filter((th) => th.checkVisibility()).map((th) => th.textContent)"
)
CHARTS = "[...document.querySelectorAll('.hour figcaption')].map((one) => one.textContent)"
ANSWER = "document.querySelector('.details .answer').textContent"
DASH = "\u2013"
ANY = "document.querySelector('#any').checkVisibility()"
PAUSES = """
  const pauses = [];
  const later = window.setTimeout;
  window.setTimeout = (callback, ms) => {
    if (callback.name === "look") pauses.push(ms);
    return later(callback, callback.name === "look" ? 5 : ms);
  };
"""


def cells(scope: str, *columns: str) -> str:
    """An expression for the texts of some cells of a scope's row."""
    return (
        f"{list(columns)}.map((column) => {ROWS}.find((row) => row.cells[0].textContent === "
        f"{scope!r})?.querySelector(`td.${{column}} > span`).textContent)"
    )


async def tab_to(browser: Browser, text: str) -> None:
    """Move the focus by keyboard to the element with this text."""
    for _ in range(60):
        await browser.press("Tab")
        if await browser.see(FOCUS) == text:
            return
    raise AssertionError(f"Tab does not lead to {text!r}")


async def unlock(browser: Browser, token: str = TOKEN) -> None:
    await browser.until("document.querySelector('#unlock').hidden", False)
    await browser.click("#unlock")
    await browser.until("document.activeElement.id", "token")
    await browser.type(token)
    await browser.press("Enter")


async def test_the_table_follows_what_is_held(server: RedisServer, chromium: Chromium) -> None:
    async with FairSemaphore(server.url) as node, looking(server, chromium) as (browser, page):
        await browser.until(CAPTION, "No scope is in use.")
        first = await fill(node, "busy.example", held=3, waiting=2)
        await fill(node, "calm.example", held=1)
        await browser.until(NAMES, ["busy.example", "calm.example"])
        columns = ("held", "waiting", "state", "set_by")
        await browser.until(cells("busy.example", *columns), ["3/3", "2", "full", "settings"])
        await browser.until(cells("calm.example", *columns), ["1/1", "0", "full", "settings"])
        assert await browser.see("document.querySelector('#server').textContent") == server.url
        totals = "[...document.querySelectorAll('#totals dd')].map((cell) => cell.textContent)"
        held, waiting, longest, _, nodes, scopes = await browser.see(totals)
        assert (held, waiting, nodes, scopes) == ("4", "2", "1", "2")
        assert longest.endswith("s")
        for permit in first:
            permit.release()
        await browser.until(cells("busy.example", "held", "waiting"), ["2/3", "0"])
        parts: LimitDict = {"concurrency": 9, "delay": 0.5, "rate": "90/m", "burst": 3}
        await page.admin.configure("busy.example", parts)
        await page.admin.pause("calm.example")
        shown = ["2/9", "0.5 s", "90/m (3)", "open"]
        await browser.until(cells("busy.example", "held", "delay", "rate", "state"), shown)
        rule = (
            "[...document.querySelector('#rules tbody tr').cells].map((cell) => cell.textContent)"
        )
        await browser.until(rule, ["busy.example", "9", "0.5 s", "90/m (3)", DASH, "page"])
        await browser.until(cells("calm.example", "state", "set_by"), ["paused", "page"])


async def test_columns_are_there_when_a_row_has_a_figure_and_twenty_rows_fit_a_screen(
    server: RedisServer, chromium: Chromium
) -> None:
    async with FairSemaphore(server.url) as node, looking(server, chromium) as (browser, page):
        await browser.size(1280, 900)
        await fill(node, "busy.example", held=1)
        await browser.until(NAMES, ["busy.example"])
        always = ["Scope", "Held", "Waiting", "Longest wait", "Starts/s", "State"]
        await browser.until(HEADS, always)
        await page.admin.configure("busy.example", {"delay": 0.5})
        await browser.until(HEADS, [*always[:5], "Delay", "Next start", "State", "Set by"])
        await page.admin.reset("busy.example")
        await browser.until(HEADS, always)
        await page.admin.configure("busy.example", {"delay": 1.5, "jitter": 0.5})
        await browser.until(cells("busy.example", "delay"), ["1.5 s ±50 %"])
        rule = "document.querySelector('#rules tbody tr').cells[2].textContent"
        await browser.until(rule, "1.5 s ±50 %")
        await page.admin.reset("busy.example")
        for i in range(19):
            await page.admin.configure(f"www.site-{i}.example.org", {"delay": 0.5, "rate": "60/m"})
        await browser.until(f"{NAMES}.length", 20)
        assert await browser.see(f"{ROWS}.at(-1).getBoundingClientRect().bottom < innerHeight")


async def test_the_address_says_what_is_shown(server: RedisServer, chromium: Chromium) -> None:
    nodes = {name: await Caller.join(server, name) for name in ("books-1-x", "news-2-y")}
    for name, scope in (
        ("books-1-x", "a b&c/ü"),
        ("books-1-x", "both"),
        ("news-2-y", "both"),
        ("news-2-y", "c"),
    ):
        await nodes[name].take(scope, 1, limit=9)
    async with looking(server, chromium) as (browser, page):
        await browser.until(f"{NAMES}.length", 3)
        await browser.click("#show-nodes")
        await browser.click("#filter")
        await browser.type("Books")
        await browser.until(f"{rows('#nodes')}.map((row) => row[0])", ["books-1-x"])
        await browser.until(NAMES, ["both", "a b&c/ü"])
        caption = "2 scopes that match, of 3; those where most requests wait first"
        await browser.until(CAPTION, caption)
        await browser.click("#scopes tbody tr:last-child button")
        await browser.until(ADDRESS, "/?match=Books&nodes=1#a+b%26c%2F%C3%BC")
        address = await browser.see("location.href")
        await browser.open("about:blank")
        await browser.open(address)
        opened = "document.querySelector('[aria-expanded=true].scope')?.textContent"
        await browser.until(opened, "a b&c/ü")
        await browser.until(f"{rows('#nodes')}.map((row) => row[0])", ["books-1-x"])
        assert await browser.see("document.querySelector('#filter').value") == "Books"
        at_most = "last minute: at most"
        figures = [f"Starts/s, {at_most} 0.0", f"Longest wait, {at_most} 0 s"]
        charts = f"{CHARTS}.map((text) => text.replace(/last \\d minutes/, 'last minute'))"
        await browser.until(charts, [*figures, f"Backoff, {at_most} 0 s"])
        share = "line.getBBox().width / line.ownerSVGElement.viewBox.baseVal.width"
        drawn = f"[...document.querySelectorAll('.hour polyline')].map((line) => {share})"
        assert await browser.see(drawn) == [1, 1, 1], "the charts have no empty time"
        await check(browser)
        await browser.see("location.hash = 'news'")
        await browser.until(NEWS, "news is not in use.")
        await browser.open("about:blank")
        await browser.open(f"{page.url}?match=nothing#both")  # also one that the filter hides
        await browser.until(opened, "both")


async def test_there_is_a_next_page_of_scopes(
    server: RedisServer, chromium: Chromium, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "MAX_ROWS", 2)
    async with looking(server, chromium) as (browser, page):
        pages = "document.querySelector('#pages').hidden"
        for name in "ab":
            await page.admin.pause(name)
        await browser.until(NAMES, ["a", "b"])
        assert await browser.see(pages)
        await page.admin.pause("c")
        await browser.until(pages, False)
        await tab_to(browser, "Next")
        await browser.press("Enter")
        await browser.until(NAMES, ["c"])
        assert await browser.see(FOCUS) == "Scopes"
        await browser.until(CAPTION, "3 to 3 of 3 scopes; those where most requests wait first")
        assert await browser.see(ADDRESS) == "/?page=2"
        await page.admin.reset("c")
        await browser.until(NAMES, ["a", "b"])
        await page.admin.pause("c")  # as after a server that was away
        await browser.until(NAMES, ["c"])
        await check(browser)
        await browser.click("[data-step='-1']")
        await browser.until(NAMES, ["a", "b"])


async def test_a_scope_s_nodes_are_shown_on_demand(server: RedisServer, chromium: Chromium) -> None:
    async with FairSemaphore(server.url) as node, looking(server, chromium) as (browser, _):
        permits = await fill(node, "busy.example", held=2, waiting=3)
        await fill(node, "calm.example", held=1)
        await browser.until(NAMES, ["busy.example", "calm.example"])
        await tab_to(browser, "busy.example")
        await browser.press("Enter")
        table = "document.querySelector('.nodes table')"
        nodes = (
            f"[...{table}.tBodies[0].rows].map((row) => "
            "[0, 1, 3].map((column) => row.cells[column].textContent))"
        )
        await browser.until(f"{table}?.tBodies[0].rows.length", 1)
        await browser.until(nodes, [[node.node, "2", "3"]])
        times = f"[2, 4, 5].map((column) => {table}.tBodies[0].rows[0].cells[column].textContent)"
        assert all(time.endswith((" s", " min")) for time in await browser.see(times))
        expanded = "document.activeElement.ariaExpanded"
        assert await browser.see(expanded) == "true"
        for width in (1280, 390):
            await browser.size(width, 740, phone=width == 390)
            await check(browser)
        permits[0].release()
        await browser.until(nodes, [[node.node, "2", "2"]])
        assert await browser.see(FOCUS) == "busy.example"
        await browser.press("Enter")
        await browser.until("document.querySelector('.nodes')", None)
        assert await browser.see(expanded) == "false"


async def test_rows_stay_for_who_is_at_them(server: RedisServer, chromium: Chromium) -> None:
    async with FairSemaphore(server.url) as node, looking(server, chromium) as (browser, _):
        first = await fill(node, "first", held=1, waiting=1)
        await fill(node, "second", held=1)
        await browser.until(NAMES, ["first", "second"])
        await tab_to(browser, "second")
        await fill(node, "third", held=1, waiting=5)
        await browser.until(NAMES, ["first", "second", "third"])  # and not at the top
        await browser.until(CAPTION, "3 scopes; order held while you are in the table")
        assert await browser.see(FOCUS) == "second"
        await browser.press("Tab", shift=True)
        for permit in first:
            permit.release()
        await node.close()
        await browser.until(NAMES, ["first"])  # it is gone, and stays until it is left
        await browser.until(cells("first", "state"), ["not listed"])
        assert await browser.see(FOCUS) == "first"
        await browser.press("Tab", shift=True)
        await browser.until(NAMES, [])


async def test_names_stay_text_whatever_they_are(server: RedisServer, chromium: Chromium) -> None:
    for name in STRANGE:
        await (await Caller.join(server, name)).take(name, 1, limit=99)
    async with looking(server, chromium) as (browser, page):
        await page.admin.configure(STRANGE[0], 2)
        await unlock(browser)
        await browser.until("document.querySelector('#nodes-count').textContent", "7")
        await browser.see("document.querySelector('#show-nodes').click()")
        shown = sorted(name if len(name) <= 200 else name[:200] + "…" for name in STRANGE)
        await browser.until(f"{NAMES}.sort()", shown)
        await browser.until(f"{rows('#nodes')}.length", len(STRANGE))
        await browser.until("document.querySelector('#rules tbody th')?.textContent", STRANGE[0])
        assert await browser.see(MARKUP) == 0
        await browser.see("document.querySelector('#help').open = true")
        for width in (1280, 360):
            await browser.size(width, 740, phone=width == 360)
            await check(browser)


async def test_what_matters_is_announced(server: RedisServer, chromium: Chromium) -> None:
    async with FairSemaphore(server.url) as node, looking(server, chromium) as (browser, page):
        permits = await fill(node, "busy.example", held=2, waiting=1)
        await browser.until(NAMES, ["busy.example"])
        # A look that another one replaces has not failed.
        await browser.see("[1, 2].forEach(() => document.dispatchEvent(new Event('changed')))")
        permits[0].release()
        await browser.until(cells("busy.example", "waiting"), ["0"])
        assert await browser.see(NEWS) == ""
        await page.admin.pause("busy.example")
        why = "An operator has paused the site until it is resumed."
        await browser.until(NEWS, f"busy.example is closed. {why}")
        await page.admin.resume("busy.example")
        await browser.until(NEWS, "busy.example goes on.")
        await page.admin.configure("busy.example", 7)
        await browser.until(NEWS, "busy.example has a limit of 7, set by page.")
        await page.admin.configure("busy.example", {"rate": "90/m"})
        await browser.until(NEWS, "busy.example has a rate of 90/m.")
        permits[1].refused(retry_after=300)
        permits[1].release()
        why = (
            "The site refused a request, did not respond, or asked for a pause. Nothing starts for"
        )
        await browser.until(f"{NEWS}.startsWith('busy.example is closed. {why}')")


async def test_a_scope_is_paused_and_resumed_by_keyboard(
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
        assert await browser.see(FOCUS) == "Pause"
        await browser.press("Enter")
        await browser.until(ANSWER, "It is paused.")
        seen = await node.admin.inspect("busy.example")
        assert (seen.paused, seen.set_by) == (True, page.admin.name)
        await browser.until(cells("busy.example", "state"), ["paused"])
        await check(browser)
        await browser.press("Tab")
        assert await browser.see(FOCUS) == "Resume"
        await browser.press("Enter")
        await browser.until(ANSWER, "It goes on.")
        await browser.until(cells("busy.example", "state"), ["full"])


async def test_the_token_pauses_any_pattern_and_is_kept_in_this_tab(
    server: RedisServer, chromium: Chromium
) -> None:
    async with looking(server, chromium) as (browser, page):
        await unlock(browser, "wrong")
        refused = "document.querySelector('#refused').textContent"
        await browser.until(refused, "Refused: the token is wrong.")
        assert all("403" in one for one in browser.complaints)
        browser.complaints.clear()
        assert not await browser.see(ANY)
        assert await browser.see("document.activeElement.id") == "token"
        await browser.click("#cancel")
        await browser.click("#unlock")
        assert await browser.see(f"[document.activeElement.value, {refused}]") == ["", ""]
        await browser.type(TOKEN)
        await browser.press("Enter")
        await browser.until(ANY)
        await browser.click("#name")
        await browser.type("*.example.org")
        await browser.click("#any [data-action=pause]")
        await browser.until("document.querySelector('#any .answer').textContent", "It is paused.")
        (rule,) = await page.admin.rules()
        assert (rule.name, rule.paused) == ("*.example.org", True)
        assert await browser.see("[localStorage.length, document.cookie]") == [0, ""]
        await browser.open(page.url)
        await browser.until(ANY)
        await browser.click("#unlock")
        await browser.until(ANY, False)
        assert await browser.see("sessionStorage.length") == 0


async def test_all_sites_are_paused_by_one_click_and_resumed_by_another(
    server: RedisServer, chromium: Chromium
) -> None:
    async with FairSemaphore(server.url) as node, looking(server, chromium) as (browser, page):
        await fill(node, "busy.example", held=1, waiting=1)
        assert not await browser.see("document.querySelector('#all .change').checkVisibility()")
        await unlock(browser)
        await browser.until("document.querySelector('#all .change').checkVisibility()")
        answer = "document.querySelector('#all .answer').textContent"
        await browser.click("#all [data-action=pause]")
        await browser.until(answer, "All sites are paused.")
        (rule,) = await page.admin.rules()
        assert (rule.name, rule.paused, rule.by) == ("*", True, "page")
        await browser.until(cells("busy.example", "state"), ["paused"])
        notice = "All sites are paused, by page, until 'resume --all'."
        await browser.until("document.querySelector('#wait').textContent", notice)
        for width in (1280, 390):
            await browser.size(width, 740, phone=width == 390)
            await check(browser)
        await browser.click("#all [data-action=resume]")
        await browser.until(answer, "The pause of all sites has ended.")
        await browser.until(cells("busy.example", "state"), ["full"])
        assert await page.admin.rules() == []
        assert [change.by for change in await page.admin.changes()] == ["page", "page"]


async def test_nodes_are_listed(server: RedisServer, chromium: Chromium) -> None:
    first = await Caller.join(server, "first-node")
    await first.take("a.example", 3, limit=2)
    second = await Caller.join(server, "second-node")
    await second.take("b.example", 1, limit=1)
    async with looking(server, chromium) as (browser, _):
        await browser.until("document.querySelector('#nodes-count').textContent", "2")
        await browser.see("document.querySelector('#show-nodes').focus()")
        await browser.press("Enter")
        await browser.until("document.activeElement.ariaExpanded", "true")
        shown = f"{rows('#nodes')}.map((row) => row.slice(0, 4))"
        await browser.until(shown, [["first-node", "2", "1", "1"], ["second-node", "1", "0", "1"]])
        assert await browser.see("document.querySelector('#crawls').hidden")
        await check(browser)


async def test_who_asks_for_less_and_who_is_gone_is_said(
    server: RedisServer, chromium: Chromium
) -> None:
    visitor = await Caller.join(server, "visitor-90be77aa01f2", lease=15.0)
    async with looking(server, chromium) as (browser, _):
        async with FairSemaphore(server.url) as node:
            held = await node.acquire("busy.example", 8)
            await visitor.take("busy.example", limit=1)
            await browser.until(cells("busy.example", "held", "set_by"), ["1/1", "visitor"])
            held.release()
        wait = "document.querySelector('#wait')"
        assert await browser.see(f"{wait}.hidden")
        with server.client() as client:
            client.hincrbyfloat(KEYS.epoch, "wall", -90_000)
        await browser.until(f"/^No node has called for 9\\d s/.test({wait}.textContent)")


async def test_a_redis_server_that_is_away_is_said(server: RedisServer, chromium: Chromium) -> None:
    async with FairSemaphore(server.url) as node, looking(server, chromium) as (browser, _):
        await fill(node, "busy.example", held=1)
        await browser.until(NAMES, ["busy.example"])
        with server.frozen():
            await browser.until(
                f"/^Away since [\\d:]+. The Redis server does not answer[^]*\\. No/.test({PROBLEM})"
            )
            assert await browser.see(NAMES) == ["busy.example"]
            await check(browser)
        await browser.until(PROBLEM, "")


async def test_a_page_server_away_is_asked_less_often(
    server: RedisServer, chromium: Chromium
) -> None:
    async with browsing(chromium) as browser:
        await browser.do("Page.addScriptToEvaluateOnNewDocument", source=PAUSES)
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
            assert (await browser.see(PROBLEM)).startswith("Connection lost: ")
            await browser.cut_off(False)
            await browser.until(PROBLEM, "")
            await browser.until("pauses.at(-1)", 1000)
