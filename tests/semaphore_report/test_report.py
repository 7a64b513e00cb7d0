"""`scrapy semaphore report` shows what was done to a site, and convicts a report or a log that is
not true.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from semaphore_middleware.core.admin import Admin
from semaphore_middleware.model.rules import LoggedChange
from semaphore_report.diary import Batch, Tally
from semaphore_report.history import History, Minute, ObeyedFile, Pause
from semaphore_report.report import as_json, read_json
from semaphore_report.verify import lines_of
from tests.semaphore_report.batches import write
from tests.support.cli import SITE, semaphore
from tests.support.nodes import Caller
from tests.support.servers import RedisServer

PER_MINUTE = 30
MINUTES = 10
AGENT = "crawler/1.0 (+https://crawler.example)"


async def crawl(server: RedisServer) -> int:
    """A node's history of `MINUTES`, which ended some minutes ago. Returns its first minute."""
    first = int(time.time() // 60) - 60
    a = await Caller.join(server, "a")
    for n in range(MINUTES):
        tally = Tally(
            60 * (first + n), PER_MINUTE, most=2, limit=2, gap=1.5, interval=2, scope=SITE
        )
        tally.ok, tally.client_errors, tally.refused, tally.size = PER_MINUTE - 1, 1, 1, 12_345
        tally.seconds = [1, 0] * 30
        await write(a, Batch(n + 1, first + n, [tally], n + 1 == MINUTES))
    return first


def line(minute: int, number: int, status: int = 200, agent: str = AGENT) -> str:
    """A line of nginx's combined format, with the time that the request took."""
    at = time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime(60 * minute + 2 * number))
    return f'192.0.2.7 - - [{at}] "GET /{number} HTTP/1.1" {status} 411 "-" "{agent}" 0.250\n'


def ours(first: int, when: Callable[[int], int]) -> list[str]:
    """What the site has logged of it; `when` in its minute, in steps of 2 s, a request comes."""
    return [
        line(first + m, when(n), 429 if n == 0 else 200)
        for m in range(MINUTES)
        for n in range(PER_MINUTE)
    ]


def log_of(first: int) -> list[str]:
    """What the site has logged of it, and of others."""
    return [
        *ours(first, int),
        *(line(first + m, 1, agent="curl/8") for m in range(MINUTES)),
        *(f'{line(first, 1, agent="curl/8").strip()} "{many * "9"}"\n' for many in (400, 5000)),
        "no request\n",
    ]


async def test_it_shows_what_was_done_in_80_columns(server: RedisServer, tmp_path: Path) -> None:
    await crawl(server)
    async with Admin(server.url, name="alice@desk") as admin:
        await admin.configure(SITE, 2)
    ran = await semaphore(server, "report", SITE, environment={"COLUMNS": "80"})
    assert ran.status == 0, ran.err
    assert max(map(len, ran.lines)) <= 80
    assert f"{SITE} from" in ran.lines[0]
    total = next(text for text in ran.lines if text.startswith("sum"))
    assert "300" in total
    assert "123.5 kB" in total
    assert "2, 1.5 s apart, one per 2 s" in ran.out
    assert f"alice@desk  limit 2 for {SITE}" in ran.out
    assert "requests by job, in whole hours\nnews  300" in ran.out
    page = tmp_path / "report.html"
    assert (await semaphore(server, "report", SITE, "--html", str(page))).status == 0
    text = page.read_text("utf-8")
    assert "<svg" in text
    assert "alice@desk" in text
    assert "counted in whole hours" in text
    assert "http://" not in text
    assert "$" not in text
    ran = await semaphore(server, "report", SITE, "--html", str(tmp_path))
    assert (ran.status, ran.err) == (2, f"scrapy semaphore: --html {tmp_path}: Is a directory\n")
    ran = await semaphore(server, "report", "elsewhere.example")
    assert (ran.status, ran.err) == (
        4,
        "scrapy semaphore: nothing is known of 'elsewhere.example'\n",
    )


def test_a_saved_report_is_read_whole() -> None:
    history = History(
        scope=SITE,
        since=60.0,
        until=7200.0,
        minutes=(Minute(3600, 2, gap=0.5, ok=2),),
        pauses=(Pause(3601.5, 30.0, 0.0, True, None),),
        changes=(LoggedChange(3602.5, SITE, {"by": "alice@desk", "concurrency": 2}),),
        robotstxt=(ObeyedFile(61.5, f"https://{SITE}", 3603.5, 200, "", "Disallow: /x"),),
        ended=(("a", 3604.5),),
        jobs={"books": 2},
    )
    assert all(getattr(history, part.name) for part in fields(History))
    report = json.loads(json.dumps(as_json(history)))
    assert read_json(report) == history
    assert json.loads(json.dumps(as_json(read_json(report)))) == report


Change = Callable[[dict[str, Any], list[str], int], None]


def as_it_was(_: dict[str, Any], __: list[str], ___: int) -> None:
    """Nothing is changed."""


def in_a_slow_clock(_: dict[str, Any], log: list[str], first: int) -> None:
    """The site's clock is 40 s late."""
    log[:] = ours(first, lambda n: n - 20)


def given_up(report: dict[str, Any], _: list[str], __: int) -> None:
    """The crawler did not wait for what the site logs as answered."""
    for part in (*report["minutes"], *report["hours"], report["sum"]):
        part["ok"], part["silent"] = 0, part["ok"]


def one_more(_: dict[str, Any], log: list[str], first: int) -> None:
    log.append(line(first + 9, 15))


def one_more_of_a_node_that_ended(report: dict[str, Any], log: list[str], first: int) -> None:
    one_more(report, log, first)
    report["ended"] = [{"node": "a", "at": 60.0 * (first + 9)}]


def fewer_in_sum(report: dict[str, Any], _: list[str], __: int) -> None:
    report["sum"]["requests"] -= 100


def fewer_in_each_minute(report: dict[str, Any], _: list[str], __: int) -> None:
    for part in (*report["minutes"], *report["hours"], report["sum"]):
        part["requests"] = part["requests"] * 9 // 10
        part["ok"] = part["requests"] - part["client_errors"]


def no_refusals(report: dict[str, Any], _: list[str], __: int) -> None:
    for part in (*report["minutes"], *report["hours"], report["sum"]):
        part["ok"], part["client_errors"] = part["ok"] + part["client_errors"], 0


def more_in_the_log(_: dict[str, Any], log: list[str], first: int) -> None:
    log += [line(first + 5, n) for n in range(5)] * 14


def fewer_in_the_log(_: dict[str, Any], log: list[str], __: int) -> None:
    del log[100:200]


def of_no_class(_: dict[str, Any], log: list[str], __: int) -> None:
    """Below 200 a status counts as 2xx."""
    log[:] = [text.replace('" 200 ', '" 199 ') for text in log]


def of_its_own_kind(report: dict[str, Any], log: list[str], __: int) -> None:
    """Some sites answer with statuses above 599: these count as 5xx."""
    log[:] = [text.replace('" 200 ', '" 999 ') for text in log]
    for part in (*report["minutes"], *report["hours"], report["sum"]):
        part["ok"], part["server_errors"] = 0, part["ok"]


def faster(_: dict[str, Any], log: list[str], first: int) -> None:
    """All that should be a delay apart comes in the first seconds of each minute."""
    log[:] = ours(first, lambda n: n // 10)


def faster_by_a_rule(report: dict[str, Any], log: list[str], first: int) -> None:
    faster(report, log, first)
    report["changes"] = [{"at": 60.0 * (first - 1), "name": SITE, "rule": {"jitter": 1.0}}]


def more_at_once(_: dict[str, Any], log: list[str], __: int) -> None:
    log[50:56] = [text.replace(" 0.250", " 30.000") for text in log[50:56]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (as_it_was, "all fit the report"),
        (in_a_slow_clock, "all fit the report"),
        (of_no_class, "all fit the report"),
        (of_its_own_kind, "all fit the report"),
        (given_up, "all fit the report"),
        (one_more, "1 of 31 requests in the log at"),
        (
            one_more_of_a_node_that_ended,
            "what it did last.\n301 requests of the log compared: all fit",
        ),
        (fewer_in_sum, "its sums do not follow from its minutes"),
        (fewer_in_each_minute, "are not in the report (from 192.0.2.7)"),
        (no_refusals, "responses of the log (4xx) are others in the report"),
        (more_in_the_log, "requests in the log at"),
        (fewer_in_the_log, "responses of the report (2xx) are not in the log"),
        (faster, "came sooner after others than the report says"),
        (faster_by_a_rule, "gaps are not compared.\n300 requests of the log compared: all fit"),
        (more_at_once, "requests were open at once at"),
    ],
)
async def test_a_report_and_a_log_that_do_not_fit_are_convicted(
    server: RedisServer, tmp_path: Path, change: Change, said: str
) -> None:
    first = await crawl(server)
    report = json.loads((await semaphore(server, "report", SITE, "--json")).out)
    log = log_of(first)
    change(report, log, first)
    saved, packed = tmp_path / "report.json", tmp_path / "access.log.gz"
    saved.write_text(json.dumps(report), "utf-8")
    packed.write_bytes(gzip.compress("".join(log).encode()))
    read = ("--from", str(saved), "--verify", str(packed), "--agent", "crawler/1.0")
    ran = await semaphore(None, "report", SITE, *read)
    assert said in ran.out, ran.out + ran.err
    assert ran.status == (0 if "all fit" in said else 1)
    if change is as_it_was:
        ran = await semaphore(None, "report", "b.example", *read)
        assert (ran.status, ran.out) == (2, "")
        assert ran.err.endswith(f"report.json: it is of {SITE!r}\n")


MEGABYTE = 2**20


@pytest.mark.parametrize(
    "text",
    [
        "x" * MEGABYTE,
        "x x x [" * (MEGABYTE // 7),
        f'x x x [28/Nov/2026:18:00:00 +0000] "GET /" 200 {"1" * MEGABYTE} x',
        'x x x [28/Nov/2026:18:00:00 +0000] "GET /" 200 1 x ' * (MEGABYTE // 51),
    ],
    ids=["one word", "times", "a size", "beginnings"],
)
def test_a_long_line_in_another_format_takes_no_longer_than_others(text: str) -> None:
    began = time.process_time()
    assert list(lines_of([text])) == [None]
    assert time.process_time() - began < 10


async def test_it_asks_whose_lines_are_meant(server: RedisServer, tmp_path: Path) -> None:
    first = await crawl(server)
    log = tmp_path / "access.log"
    log.write_text("".join(log_of(first)), "utf-8")
    ran = await semaphore(server, "report", SITE, "--verify", str(log))
    assert ran.status == 2
    assert "say which lines are the crawler's by --agent or --address" in ran.err
    ran = await semaphore(server, "report", SITE, "--verify", str(log), "--address", "192.0.2.0/24")
    assert ran.status == 1
    assert "are not in the report" in ran.out
    log.write_text(log.read_text("utf-8").replace("192.0.2.7", "::ffff:192.0.2.7"), "utf-8")
    for network in ("192.0.2.0/24", "::ffff:192.0.2.0/120"):
        mapped = await semaphore(server, "report", SITE, "--verify", str(log), "--address", network)
        assert mapped.out.replace("::ffff:", "") == ran.out
    log.write_text("\n".join(["", *log.read_text("utf-8").split("\n"), "another format"]), "utf-8")
    ran = await semaphore(server, "report", SITE, "--verify", str(log), "--address", "192.0.2.0/24")
    assert "lines in another format than the common or the combined one: 4;" in ran.out
    for words, said in (
        (("--json",), "give --verify or --json, not both"),
        (("--address", "here"), "--address here: "),
        (("--agent", "nobody"), "(lines in another format than the common or the combined one: 4)"),
    ):
        ran = await semaphore(server, "report", SITE, "--verify", str(log), *words)
        assert (ran.status, said in ran.err) == (2, True)
    for line, said in (
        ("--agent crawler", "--agent and --address are only for --verify"),
        ("--address 192.0.2.1", "--agent and --address are only for --verify"),
        (f"--from {log} --since 1d", "give --from or --since, not both"),
        ("--since=7", "--since 7: allowed is '0', or a number of s, m, h or d"),
    ):
        ran = await semaphore(server, "report", SITE, *line.split())
        assert (ran.status, ran.out, said in ran.err) == (2, "", True)
    packed = gzip.compress(log.read_bytes())
    for number, broken in enumerate((packed[:-20], packed[:15] + b"\xff" + packed[16:])):
        log = tmp_path / f"{number}.gz"
        log.write_bytes(broken)
        ran = await semaphore(server, "report", SITE, "--verify", str(log))
        assert (ran.status, ran.out) == (2, "")
        assert ran.err.startswith(f"scrapy semaphore: --verify {log}: ")
