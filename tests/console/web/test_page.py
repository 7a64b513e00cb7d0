"""The page, as a real browser shows it and a keyboard reaches it."""

from __future__ import annotations

import pytest

from semaphore_middleware import FairSemaphore
from tests.console.web.pages import fill, looking
from tests.support import accessibility as access
from tests.support.browser import CHROMIUM, WHY_NOT, Browser, Chromium
from tests.support.nodes import Outside, in_asyncio
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT), pytest.mark.slow]

ROWS = "[...document.querySelectorAll('#scopes tbody tr:not(.details)')]"
NAMES = f"{ROWS}.map((row) => row.cells[0].textContent)"
CAPTION = "document.querySelector('#caption').textContent"
DASH = "\u2013"
FOCUS = "document.activeElement.textContent"
STRANGE = [
    "<img src=x onerror=alert(1)>",
    "</table><script>alert(1)</script>",
    '" onmouseover="alert(1)',
    "javascript:alert(1)",
    "&lt;b&gt;",
    "\u202eelpmaxe.reversed",
    "a" * 3000,
    "ü.example",
    "__proto__",
]


def cells(scope: str, *columns: str) -> str:
    """What the columns of a scope's row say."""
    return (
        f"{list(columns)}.map((column) => {ROWS}.find((row) => row.cells[0].textContent === "
        f"{scope!r})?.querySelector(`td.${{column}} > span`).textContent)"
    )


async def tab_to(browser: Browser, text: str) -> None:
    """By keyboard alone, from where the focus is."""
    for _ in range(60):
        await browser.press("Tab")
        if await browser.see(FOCUS) == text:
            return
    raise AssertionError(f"Tab does not lead to {text!r}")


@in_asyncio
async def test_a_server_that_grants_nothing_yet_is_said_to_do_so(
    server: RedisServer, outside: Outside, chromium: Chromium
) -> None:
    outside.client.flushall()
    said = (
        "No permit is granted for another 3 h: the Redis server is new, or may have lost its data."
    )
    async with (
        FairSemaphore(server.url, recovery_wait=10800),
        looking(server, chromium) as (browser, page),
    ):
        await browser.until("document.querySelector('#recovery').textContent", said)
        await page.admin.trust()
        await browser.until("document.querySelector('#recovery').hidden", True)


@in_asyncio
async def test_the_table_shows_what_is_held_and_follows_it_by_itself(
    server: RedisServer, chromium: Chromium
) -> None:
    async with FairSemaphore(server.url) as node, looking(server, chromium) as (browser, page):
        await browser.until(CAPTION, "No scope is in use.")
        first = await fill(node, "busy.example", held=3, waiting=2)
        await fill(node, "calm.example", held=1)
        await browser.until(NAMES, ["busy.example", "calm.example"])
        columns = ("held", "waiting", "state", "set_by")
        await browser.until(cells("busy.example", *columns), ["3/3", "2", "full", "settings"])
        await browser.until(cells("calm.example", *columns), ["1/1", "0", "full", "settings"])
        assert await browser.text("#server") == server.url
        totals = "[...document.querySelectorAll('#totals dd')].map((cell) => cell.textContent)"
        held, waiting, longest, _, nodes, scopes = await browser.see(totals)
        assert (held, waiting, nodes, scopes) == ("4", "2", "1", "2")
        assert longest.endswith("s")
        for permit in first:
            permit.release()
        await browser.until(cells("busy.example", "held", "waiting"), ["2/3", "0"])
        parts = {"concurrency": 9, "delay": 0.5, "rate": "90/m", "burst": 3}
        await page.admin.configure("busy.example", parts)
        await page.admin.pause("calm.example")
        shown = ["2/9", "0.5 s", "90/m (3)", "open"]
        await browser.until(cells("busy.example", "held", "delay", "rate", "state"), shown)
        rule = (
            "[...document.querySelector('#rules tbody tr').cells].map((cell) => cell.textContent)"
        )
        await browser.until(rule, ["busy.example", "9", "0.5 s", "90/m (3)", DASH, "page"])
        await browser.until(cells("calm.example", "state", "set_by"), ["paused", "page"])


@in_asyncio
async def test_the_filter_finds_parts_of_names_and_says_how_many(
    server: RedisServer, chromium: Chromium
) -> None:
    async with FairSemaphore(server.url) as node, looking(server, chromium) as (browser, _):
        for scope in ("a.example.org", "b.example.org", "c.example.net"):
            await fill(node, scope, held=1)
        await browser.until(NAMES, ["a.example.org", "b.example.org", "c.example.net"])
        await browser.click("#filter")
        await browser.type("EXAMPLE.Org")
        await browser.until(NAMES, ["a.example.org", "b.example.org"])
        await browser.until(CAPTION, "2 scopes that match, of 3; sorted by waiting")
        await browser.type("?")
        await browser.until(CAPTION, "0 scopes that match, of 3; sorted by waiting")
        assert await browser.see(NAMES) == []


@in_asyncio
async def test_columns_are_sorted_by_keyboard_alone(
    server: RedisServer, chromium: Chromium
) -> None:
    async with FairSemaphore(server.url) as node, looking(server, chromium) as (browser, _):
        for scope, held, waiting in (("a", 1, 1), ("b", 3, 0), ("c", 2, 2)):
            await fill(node, scope, held, waiting)
        await browser.until(NAMES, ["c", "a", "b"])
        sorts = (
            "[...document.querySelectorAll('[aria-sort]')]"
            ".map((th) => th.textContent + th.ariaSort)"
        )
        assert await browser.see(sorts) == ["Waitingdescending"]
        await tab_to(browser, "Held")
        await browser.press("Enter")
        await browser.until(NAMES, ["b", "c", "a"])
        assert await browser.see(sorts) == ["Helddescending"]
        await browser.press("Space")
        await browser.until(NAMES, ["a", "c", "b"])
        assert await browser.see(sorts) == ["Heldascending"]
        assert await browser.see(FOCUS) == "Held"
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert await browser.see(outline) == "solid"


@in_asyncio
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
        caption = "Nodes, those that wait first, in the order of the queue: 1"
        assert await browser.see(f"{table}.caption.textContent") == caption
        times = f"[2, 4, 5].map((column) => {table}.tBodies[0].rows[0].cells[column].textContent)"
        assert all(time.endswith("s") for time in await browser.see(times))
        expanded = "document.activeElement.ariaExpanded"
        assert await browser.see(expanded) == "true"
        described = "document.activeElement.getAttribute('aria-controls')"
        assert await browser.see(f"document.getElementById({described}).className") == "details"
        permits[0].release()
        await browser.until(nodes, [[node.node, "2", "2"]])
        assert await browser.see(FOCUS) == "busy.example"
        await browser.press("Enter")
        await browser.until("document.querySelector('.nodes')", None)
        assert await browser.see(expanded) == "false"


@in_asyncio
async def test_rows_do_not_move_away_from_who_is_at_them(
    server: RedisServer, chromium: Chromium
) -> None:
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


@in_asyncio
async def test_names_stay_text_whatever_they_are(server: RedisServer, chromium: Chromium) -> None:
    async with (
        FairSemaphore(server.url, node="<b>node</b>") as node,
        looking(server, chromium) as (b, page),
    ):
        for name in STRANGE:
            await fill(node, name, held=1)
        await page.admin.configure(STRANGE[0], 2)
        shown = sorted(name if len(name) <= 200 else name[:200] + "…" for name in STRANGE)
        await b.until(f"{NAMES}.sort()", sorted(shown, key=lambda n: n.encode("utf-16-be")))
        for i in range(1, len(STRANGE) + 1):
            await b.click(f"#scopes tbody tr:nth-child({i}) .scope")
            await b.until("document.querySelector('.nodes tbody th')?.textContent", node.node)
            await b.click(f"#scopes tbody tr:nth-child({i}) .scope")
        await b.until("document.querySelector('#rules tbody th')?.textContent", STRANGE[0])
        made = "document.querySelectorAll('main img, main script, main b, [onmouseover]').length"
        assert await b.see(made) == 0
        for width in (1280, 360):
            await b.size(width, 740, phone=width == 360)
            await access.check(b)


@in_asyncio
async def test_of_hundreds_of_scopes_the_first_are_shown_and_the_rest_counted(
    server: RedisServer,
    chromium: Chromium,
) -> None:
    async with looking(server, chromium) as (browser, page):
        for i in range(230):
            await page.admin.configure(f"{i:03}.example.org", 1)
        await browser.until(CAPTION, "The first 200 of 230 scopes, 30 more; sorted by waiting")
        assert await browser.see(f"{ROWS}.length") == 200
        await browser.click("#filter")
        await browser.type("229")
        await browser.until(NAMES, ["229.example.org"])
