"""What everybody must be able to read and reach: checks that look at the page as it is drawn."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from tests.support.browser import Browser

CONTROLS = {
    *("button", "textbox", "searchbox", "spinbutton", "checkbox", "combobox", "link"),
    *("table", "dialog", "region", "form", "image"),
}

# Every element with text of its own, and what is behind it: WCAG's formula on the computed styles.
CONTRASTS = """(() => {
  const parse = (text) => {
    const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
    return [r, g, b, a];
  };
  const over = ([r, g, b, a], under) =>
    [r, g, b].map((c, i) => c * a + under[i] * (1 - a)).concat(1);
  const behind = (element) => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) {
      layers.unshift(parse(getComputedStyle(e).backgroundColor));
    }
    return layers.reduce((under, layer) => over(layer, under), [255, 255, 255, 1]);
  };
  const light = (color) => color.slice(0, 3).map((c) => c / 255)
    .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ratio = (a, b) =>
    (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  const bad = [];
  let checked = 0;
  const check = (what, color, element, least) => {
    const ground = behind(element);
    const found = ratio(over(parse(color), ground), ground);
    if (found < least) bad.push(`${what}: ${found.toFixed(2)} < ${least}`);
    checked += 1;
  };
  for (const element of document.body.querySelectorAll("*")) {
    if (!element.checkVisibility({ visibilityProperty: true })) continue;
    const style = getComputedStyle(element);
    const text = element.textContent.slice(0, 20);
    const name = `${element.tagName} .${element.getAttribute("class")} "${text}"`;
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    if ([...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) {
      check(name, style.color, element, large ? 3 : 4.5);
    }
    for (const part of ["::before", "::after"]) {
      const made = getComputedStyle(element, part);
      if (["none", "normal", '""'].includes(made.content)) continue;
      check(name + part, made.color, element, 4.5);
    }
    if (element.placeholder) {
      const { color } = getComputedStyle(element, "::placeholder");
      check(`${name} placeholder`, color, element, 4.5);
    }
    if (element.tagName === "INPUT") {
      check(`${name} border`, style.borderTopColor, element.parentElement, 3);
    }
    if (element.tagName === "polyline") check(name, style.stroke, element.parentElement, 3);
    if (element === document.activeElement && style.outlineStyle !== "none") {
      check(`${name} focus`, style.outlineColor, element.parentElement, 3);
    }
  }
  return { bad, checked };
})()"""

HEADINGS = """[...document.querySelectorAll("h1, h2, h3, h4")]
  .filter((e) => e.checkVisibility()).map((e) => Number(e.tagName[1]))"""

TABLES = """[...document.querySelectorAll("table")].filter((e) => e.checkVisibility())
  .flatMap((table) => {
    const bad = [];
    const columns = [...table.tHead.rows[0].cells];
    if (!table.caption || !table.caption.textContent) bad.push("no caption");
    if (columns.some((th) => th.scope !== "col" || !th.textContent)) bad.push("column");
    for (const tr of table.tBodies[0].rows) {
      if (tr.classList.contains("details")) continue;
      if (tr.cells[0].tagName !== "TH" || tr.cells[0].scope !== "row") bad.push("row");
      if (tr.cells.length !== columns.length) bad.push("cells");
    }
    return bad;
  })"""


async def unreadable(browser: Browser) -> list[str]:
    """What has too little contrast (WCAG 2.2 AA)."""
    told = await browser.see(CONTRASTS)
    assert told["checked"] > 20
    bad: list[str] = told["bad"]
    return bad


async def nameless(browser: Browser) -> list[dict[str, Any]]:
    """Controls, tables and dialogs that a screen reader has no name for."""
    tree = await browser.tree()
    found = [node for node in tree if node["role"]["value"] in CONTROLS]
    assert found
    return [node for node in found if not node.get("name", {}).get("value")]


async def leaps(browser: Browser) -> list[tuple[int, int]]:
    """Headings that leave out a level; and there is one of the first, at the top."""
    levels = await browser.see(HEADINGS)
    assert levels[0] == 1
    assert levels.count(1) == 1
    return [pair for pair in pairwise(levels) if pair[1] > pair[0] + 1]


async def check(browser: Browser) -> None:
    assert await unreadable(browser) == []
    assert await nameless(browser) == []
    assert await leaps(browser) == []
    assert await browser.see(TABLES) == []
    assert await browser.see("document.documentElement.lang") == "en"
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert await browser.see(wide) == 0
