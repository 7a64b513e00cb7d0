"""The text and the JSON of `scrapy semaphore report`."""

from __future__ import annotations

import json
import re
import time

import pytest

from semaphore_middleware import FairSemaphore
from semaphore_middleware.core.observer import RobotsTxtObeyed
from semaphore_middleware.operators.admin import Admin
from semaphore_middleware.report.diary import Batch, PauseNote, Tally
from semaphore_middleware.report.keys import HistoryKeys
from tests.report.batches import write
from tests.support.cli import SITE, semaphore
from tests.support.nodes import Caller
from tests.support.servers import RedisServer

PER_MINUTE = 30
MINUTES = 10
PAUSES = 30
KEYS = HistoryKeys("semaphore")


async def crawl(server: RedisServer) -> None:
    """A node's history of `MINUTES`, which ended some minutes ago."""
    first = int(time.time() // 60) - 60
    a = await Caller.join(server, "a")
    for n in range(MINUTES):
        tally = Tally(
            60 * (first + n),
            PER_MINUTE,
            most=2,
            limit=2,
            least_interval=1.5,
            interval=2,
            scope=SITE,
        )
        tally.ok, tally.client_errors, tally.refused, tally.size = PER_MINUTE - 1, 1, 1, 12_345
        tally.seconds = [1, 0] * 30
        if n == 0:
            begun = 60_000 * first
            tally.pauses = {
                begun + number: PauseNote(5000.0, asked=3000.0, refused=1, last=20.0)
                for number in range(PAUSES)
            }
        await write(a, Batch(n + 1, first + n, [tally], n + 1 == MINUTES))


async def test_it_shows_what_was_done_in_80_columns(server: RedisServer) -> None:
    await crawl(server)
    async with Admin(server.url, name="alice@desk") as admin:
        await admin.configure(SITE, 2)
        await admin.pause("*")
    async with Admin(server.url, name="bob@desk") as admin:
        await admin.resume("*")
        await admin.reset(SITE)
    ran = await semaphore(server, "report", SITE, environment={"COLUMNS": "80"})
    assert ran.status == 0, ran.err
    long = ("refused a request", "paused by")
    assert max(len(text) for text in ran.lines if not any(map(text.count, long))) <= 80
    assert f"{SITE} from" in ran.lines[0]
    assert ran.lines[1].endswith("All times are UTC.")
    total = next(text for text in ran.lines if text.startswith("sum"))
    assert "300" in total
    assert "123.5 kB" in total
    assert "2, at least 1.5 s apart, one per 2 s on average" in ran.out
    changes = ran.out.partition("set by operators\n")[2].partition("At all other times")[0]
    assert [line.split("  ", 1)[1] for line in changes.splitlines()] == [
        f"alice@desk  limit 2 for {SITE}",
        "alice@desk  paused for *",
        "bob@desk  nothing is set for *",
        f"bob@desk  nothing is set for {SITE}",
    ]
    assert "s  paused by alice@desk  resumed by bob@desk\nIn a pause" in ran.out
    assert "requests by job\nnews  300\nIn whole hours" in ran.out
    pause = (
        "5 s  the site refused a request and asked for 3 s without requests  the last request "
        "began 0.02 s after it"
    )
    assert ran.out.count(pause) == PAUSES
    assert "each last wrote\nnone\n" in ran.out
    assert "as it was obeyed\nnone" in ran.out


async def test_it_shows_the_robots_txt_that_was_obeyed_and_processes_that_were_killed(
    server: RedisServer,
) -> None:
    await crawl(server)
    files = {
        f"https://{SITE}": (200, "", b"User-agent: *\nDisallow: /\x1b[31mx\n"),
        f"http://{SITE}": (404, "", b""),
        f"http://{SITE}:81": (0, "it hung up", b""),
    }
    async with FairSemaphore(server.url, recovery_wait=0.0) as node:
        for origin, file in files.items():
            node.emit(RobotsTxtObeyed, origin, *file)
    await write(await Caller.join(server, "killed"), Batch(1, 0, [], is_last=False))
    with server.client() as client:
        client.zincrby(KEYS.nodes, -300_000, "killed")
    ran = await semaphore(server, "report", SITE)
    assert re.search(rf"\nfrom [-0-9 :]{{19}}  https://{SITE}  status 200", ran.out)
    assert f"  https://{SITE}  status 200\n  User-agent: *\n  Disallow: /\\x1b[31mx\n" in ran.out
    assert f"  http://{SITE}  status 404\n  (empty)\n" in ran.out
    assert f"  http://{SITE}:81  it hung up\n  (empty)" in ran.out
    assert ran.out.endswith("\nEach holds until the crawler reads another one.\n")
    assert "  killed\nEach writes once a minute" in ran.out


async def test_its_json_has_all_that_the_text_says(server: RedisServer) -> None:
    await crawl(server)
    report = json.loads((await semaphore(server, "report", SITE, "--json")).out)
    assert report.keys() == {
        *("scope", "since", "until", "sum", "hours", "minutes"),
        *("pauses", "operators_pauses", "changes", "robotstxt", "ended", "jobs"),
    }
    assert len(report["minutes"]) == MINUTES
    for counts in (report["minutes"], report["hours"]):
        for name in ("requests", "size", "ok", "client_errors", "silent", "refused"):
            assert sum(part[name] for part in counts) == report["sum"][name]
    assert report["sum"]["requests"] == PER_MINUTE * MINUTES
    assert report["jobs"] == {"news": PER_MINUTE * MINUTES}
    (pause, *others) = report["pauses"]
    assert len(others) == PAUSES - 1
    assert (pause["length"], pause["asked"], pause["refused"], pause["last_start"]) == (
        *(5.0, 3.0, True, 0.02),
    )


async def test_a_site_without_a_history_is_unknown(server: RedisServer) -> None:
    ran = await semaphore(server, "report", "elsewhere.example")
    assert (ran.status, ran.err) == (
        4,
        "scrapy semaphore: nothing is known of 'elsewhere.example'\n",
    )


@pytest.mark.parametrize(
    ("since", "said"),
    [
        ("7", "--since 7: allowed is '0', or a number of s, m, h or d"),
        ("", "argument --since: the value is empty; see scrapy semaphore report -h"),
    ],
)
async def test_a_time_that_is_none_is_named(server: RedisServer, since: str, said: str) -> None:
    ran = await semaphore(server, "report", SITE, f"--since={since}")
    assert (ran.status, ran.out) == (2, "")
    (line,) = ran.err.splitlines()
    assert line.startswith(f"scrapy semaphore: {said}")
