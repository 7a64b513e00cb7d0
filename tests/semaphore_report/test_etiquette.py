"""`scrapy semaphore etiquette` judges settings and history, and writes what is to be published."""

from __future__ import annotations

import html
import json
import re
import time
from pathlib import Path

import pytest
from protego import Protego

from semaphore_report.diary import Batch, Tally
from semaphore_report.etiquette import ADDRESSES, MET, NOT_MET, PAGE, UNKNOWN
from tests.semaphore_report.batches import write
from tests.support.cli import SITE, semaphore
from tests.support.nodes import Caller
from tests.support.servers import RedisServer

AGENT = "mybot/1.0 (+https://crawler.example/mybot.html)"
GOOD = {
    "ADDONS": '{"semaphore_middleware.addon.SemaphoreAddon": 500}',
    "ROBOTSTXT_OBEY": "True",
    "USER_AGENT": AGENT,
    "DOWNLOAD_DELAY": "1",
    "SEMAPHORE_LIMITS": '{"*.com": {"adaptive": true}}',
    "HTTPCACHE_ENABLED": "True",
    "HTTPCACHE_POLICY": "scrapy.extensions.httpcache.RFC2616Policy",
    "DOWNLOADER_MIDDLEWARES": '{"myproject.RobotsTag": 590, "scrapy.X": 1, "myproject.Off": null}',
}
PAGE_OPTIONS = ("--address", "192.0.2.0/28", "--use", "A <b>search</b>", "--contact", "a@b.example")
Practices = dict[str, tuple[str, str]]


async def practices(
    server: RedisServer | str | None, settings: dict[str, str], *options: str
) -> Practices:
    """Each practice's first words, its state, and how it is met."""
    given = [word for name, value in settings.items() for word in ("-s", f"{name}={value}")]
    ran = await semaphore(server, "etiquette", "--json", *options, *given)
    rows = json.loads(ran.out)["practices"]
    assert ran.status == int(any(row["state"] == NOT_MET for row in rows))
    return {row["practice"]: (row["state"], row["how"]) for row in rows}


async def crawl(server: RedisServer, failed: int) -> None:
    """A history of 100 requests, at 13:00 UTC of yesterday, some of which failed."""
    minute = int(time.time() // 86400 * 1440) - 660
    caller = await Caller.join(server, "a")
    tally = Tally(at=60 * minute, requests=100, scope=SITE, ok=100 - failed, server_errors=failed)
    tally.seconds = [7] + [0] * 59
    await write(caller, Batch(1, minute, [tally], is_last=True))


async def test_settings_of_scrapy_itself_meet_little(server: RedisServer) -> None:
    found = await practices(server, {})
    assert {state for state, _ in found.values()} == {NOT_MET, UNKNOWN}
    assert found["Obey robots.txt"] == (NOT_MET, "set ROBOTSTXT_OBEY = True")
    state, how = found["Say in the user agent whose crawler it is"]
    assert state == NOT_MET
    assert "scrapy.org" in how
    assert "too few requests" in found["Overload no site"][1]


async def test_what_the_settings_and_the_history_show(server: RedisServer) -> None:
    await crawl(server, failed=5)
    found = await practices(server, GOOD, "--address", "2001:db8::/48")
    assert [state for state, _ in found.values()] == [
        *(MET, UNKNOWN, MET, MET, MET, MET, MET, UNKNOWN, MET, UNKNOWN, UNKNOWN)
    ]
    how = [how for _, how in found.values()]
    assert how[1].endswith("does one of yours (myproject.RobotsTag)?")
    assert how[4] == f"5% of requests had 5xx or no response at {SITE}, the highest share"
    assert how[5] == "SEMAPHORE_LIMITS has adaptive limits: *.com"
    assert f"and at most 7 begun in one second, at {SITE}; DOWNLOAD_DELAY is 1 s" in how[6]
    assert how[7].startswith("100% of all requests began in the hour from 13:00 UTC on")
    assert how[10] == "does https://crawler.example/mybot.html say so?"


@pytest.mark.parametrize(
    ("changed", "number", "state", "how"),
    [
        ({"DOWNLOADER_MIDDLEWARES": "{}"}, 1, NOT_MET, "docs/report.md has a middleware"),
        ({"USER_AGENT": "Mozilla/5.0"}, 2, NOT_MET, "name a page"),
        ({"USER_AGENT": "Mozilla/5.0"}, 10, NOT_MET, "name its URL in USER_AGENT"),
        ({"USER_AGENT": "mybot (me@crawler.example)"}, 2, MET, "me@crawler.example"),
        ({"USER_AGENT": "mybot (me@crawler.example)"}, 10, NOT_MET, "name its URL"),
        ({"ADDONS": "{}"}, 3, NOT_MET, "add semaphore_middleware.addon.SemaphoreAddon to ADDONS"),
        ({"SEMAPHORE_ENABLED": "0"}, 6, NOT_MET, "each process has a limit of its own"),
        ({"SEMAPHORE_BACKOFF_CODES": "429"}, 3, NOT_MET, "add 503 to SEMAPHORE_BACKOFF_CODES"),
        ({"SEMAPHORE_BACKOFF_CODES": "429, 503"}, 3, MET, "429, 503 and Retry-After"),
        ({"SEMAPHORE_BACKOFF_CODES": "[503,429]"}, 3, MET, "429, 503 and Retry-After"),
        ({"ADDONS": '{"semaphore_middleware.SemaphoreAddon": 500}'}, 6, MET, "DOWNLOAD_DELAY is"),
        ({"SEMAPHORE_LIMITS": '{"a": 1}'}, 5, NOT_MET, "'adaptive': True"),
        ({"DOWNLOAD_DELAY": "0"}, 6, UNKNOWN, "does each site bear that?"),
        ({"HTTPCACHE_ENABLED": "0"}, 8, NOT_MET, "set HTTPCACHE_ENABLED = True"),
        ({"HTTPCACHE_POLICY": "x.DummyPolicy"}, 8, NOT_MET, "RFC2616Policy"),
        ({"HTTPCACHE_POLICY": "my.Policy"}, 8, UNKNOWN, "HTTPCACHE_POLICY is my.Policy"),
        ({}, 9, NOT_MET, "from each --address"),
    ],
)
async def test_what_is_to_be_done(
    server: RedisServer, changed: dict[str, str], number: int, state: str, how: str
) -> None:
    found = [*(await practices(server, GOOD | changed)).values()]
    assert found[number][0] == state
    assert how in found[number][1]


async def test_a_site_that_fails_is_named(server: RedisServer) -> None:
    await crawl(server, failed=6)
    ran = await semaphore(server, "etiquette", environment={"COLUMNS": "80"})
    assert (ran.status, ran.err) == (1, "")
    assert max(map(len, ran.lines)) <= 80
    place = ran.lines.index("not met         Overload no site")
    assert f"scrapy semaphore limit {SITE} 1" in " ".join(ran.out.split())
    assert ran.lines[place + 1].startswith(" " * 16 + "6% of requests")


async def test_a_terminal_of_any_width_will_do() -> None:
    ran = await semaphore("unix:///nowhere/s", "etiquette", environment={"COLUMNS": "14"})
    assert (ran.status, ran.err) == (1, "")
    assert len(ran.lines) > 22


@pytest.mark.parametrize("name", ["ROBOTSTXT_OBEY", "HTTPCACHE_ENABLED", "SEMAPHORE_ENABLED"])
async def test_a_setting_that_is_neither_true_nor_false_is_named(name: str) -> None:
    ran = await semaphore(None, "etiquette", "-s", f"{name}=maybe")
    assert (ran.status, ran.out) == (2, "")
    assert f"{name} = 'maybe'" in ran.err
    assert "True or False" in ran.err


async def test_without_a_server_the_settings_count() -> None:
    found = await practices("unix:///nowhere/s", GOOD)
    state, how = found["Overload no site"]
    assert state == UNKNOWN
    assert "there is no history: cannot reach unix:///nowhere/s" in how
    assert found["Obey robots.txt"][0] == MET


@pytest.mark.parametrize(
    "agent", [AGENT, "Mozilla/5.0 (compatible; mybot/0.1; +https://a.example)"]
)
async def test_the_page_says_how_to_block_the_crawler(
    server: RedisServer, tmp_path: Path, agent: str
) -> None:
    folder = tmp_path / "new" / "site"
    for _ in range(2):  # as a timer does each day
        await practices(server, GOOD | {"USER_AGENT": agent}, "--page", str(folder), *PAGE_OPTIONS)
    text = (folder / PAGE).read_text("utf-8")
    assert f'<link rel="client-ranges" href="{ADDRESSES}">' in text
    assert "A &lt;b&gt;search&lt;/b&gt;" in text
    assert "a@b.example" in text
    assert "$" not in text
    assert not re.findall(r"\b(?:src|@import|url)\b", text), "it needs nothing else"
    robots = re.search(r"<pre>(User-agent: .*?)</pre>", text, re.DOTALL)
    assert robots is not None
    rules = Protego.parse(html.unescape(robots[1]))
    assert not rules.can_fetch("https://b.example/", agent)
    assert rules.can_fetch("https://b.example/", "otherbot/1.0")
    published = json.loads((folder / ADDRESSES).read_text("utf-8"))
    assert published["formatVersion"] == "1.0"
    assert published["prefixes"] == [{"ipv4Prefix": "192.0.2.0/28"}]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", published["creationTime"])


async def test_what_cannot_be_published_is_refused(server: RedisServer, tmp_path: Path) -> None:
    obey = ("-s", "ROBOTSTXT_OBEY=True")
    allowed = "allowed is an address or a network, like 192.0.2.0/28"
    needed = "--page needs --address, --use, --contact, and ROBOTSTXT_OBEY = True"
    file = tmp_path / "file"
    file.touch()
    for options, said in (
        (("--address", "192.0.2.1/28"), f"192.0.2.1/28 has host bits set; {allowed}"),
        (
            ("--address", "x"),
            f"--address x: 'x' does not appear to be an IPv4 or IPv6 network; {allowed}",
        ),
        (("--page", str(tmp_path), *PAGE_OPTIONS), needed),
        (("--page", str(tmp_path), *PAGE_OPTIONS[:4], *obey), needed),
        (("--page", str(file), *PAGE_OPTIONS, *obey), f"--page {file}: File exists"),
        (("--contact", "us"), "--use and --contact are only for --page"),
    ):
        ran = await semaphore(server, "etiquette", *options)
        assert (ran.status, ran.out) == (2, "")
        assert ran.err.endswith(f"{said}\n")
