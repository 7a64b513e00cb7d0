"""The benchmarks run, and their judge can convict. What they measure is not for a test to say."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, nullcontext
from importlib import import_module

import pytest
from rich.console import Console

from benchmarks import rivals
from benchmarks.cases import contest as contest_case
from benchmarks.cases import fair
from benchmarks.cases.frontier import MOST_BYTES_SEEN
from benchmarks.harness import large_crawl
from benchmarks.harness.contender import Client, Contender, Place
from benchmarks.harness.contest import Result, Visit, contest, in_python
from benchmarks.harness.meter import Reading
from benchmarks.harness.race import MARGIN, Judge
from benchmarks.harness.report import Report
from benchmarks.rivals import scrapy_redis
from tests.support.nodes import in_asyncio
from tests.support.servers import RedisServer


def measured(name: str) -> Report:
    """Its small version, in a thread: the main thread's event loop belongs to pytest-twisted."""
    module = import_module(f"benchmarks.cases.{name}")
    with ThreadPoolExecutor(1) as thread:
        report: Report = thread.submit(module.measure, True).result()
    assert report.rows
    assert report.goals
    assert report.notes
    assert {len(row) for row in report.rows} == {len(report.columns)}
    figures = json.loads(json.dumps(report.as_json()))
    assert len(figures["rows"]) == len(report.rows)
    text = io.StringIO()
    report.show(Console(file=text))
    assert report.title in text.getvalue()
    return report


@pytest.mark.slow
def test_server_counts_what_a_permit_takes() -> None:
    report = measured("server")

    assert [row[:2] for row in report.rows] == [(1, 1), (10, 1), (100, 1), (100, 10), (100, 100)]
    commands = [float(str(row[-1])) for row in report.rows]
    assert commands[0] > commands[1] > commands[2]  # what a call shares


@pytest.mark.slow
def test_cluster_measures_both() -> None:
    report = measured("cluster")

    assert [row[0] for row in report.rows] == ["one server", "a cluster of three masters"]
    assert all(float(str(cell)) > 0 for row in report.rows for cell in row[1:])


@pytest.mark.slow
def test_growth_leaves_no_keys_behind() -> None:
    report = measured("growth")

    found = {str(row[0]): [cell for cell in row[1:] if cell is not None] for row in report.rows}
    assert found["keys left"] == [0, 0, 0, 0]
    assert all(int(str(cell)) > 0 for cell in found["bytes of a site in use"])


@pytest.mark.slow
def test_scale_finds_nothing_over_a_limit_and_permits_that_are_handed_off() -> None:
    report = measured("scale")

    assert [(row[0], row[1]) for row in report.rows] == [(1_000, 10), (10_000, 10), (10_000, 3)]
    assert [row[3] for row in report.rows] == [0, 0, 0]
    assert all(float(str(cell)) > 0 for row in report.rows for cell in (*row[2:3], *row[4:]))


@pytest.mark.slow
def test_fair_gives_each_node_its_share_of_the_permits() -> None:
    report = measured("fair")

    found = {(row[0], row[2]): [float(str(cell)) for cell in row[3:]] for row in report.rows}
    five = "300, 3, 3, 3, 3"
    jain, least, share, *_ = found[five, "ours"]
    assert 0 < least <= 1
    assert 0 < jain <= 1
    assert jain > 0.9
    assert 0.7 < share < 0.9
    assert found[five, "asking again"][0] < jain
    assert len(report.goals) == 4


@pytest.mark.slow
def test_classic_finds_nothing_against_ours_and_something_against_the_others() -> None:
    report = measured("classic")

    assert {goal.value for goal in report.goals} == {0}
    passed = {(row[0], row[1]): row[2] for row in report.rows}
    semaphores = {name for name, _ in passed}
    assert len(semaphores) == 9
    assert len(passed) == 4 * len(semaphores)
    over_its_lease = {name for name, trial in passed if trial == "work" and passed[name, trial]}
    assert over_its_lease == semaphores - {"refreshed", "ours", "ours, turn 0", "ours of 1"}


@pytest.mark.slow
@pytest.mark.skipif(bool(rivals.missing()), reason="the peers are in the extra 'bench' only")
def test_handoff_hands_over_between_processes() -> None:
    report = measured("handoff")

    handed_over = {row[0]: int(str(row[-1])) for row in report.rows}
    assert set(rivals.MODULES) < set(handed_over)
    assert all(count > 0 for count in handed_over.values())


@pytest.mark.slow
@pytest.mark.skipif(bool(rivals.missing()), reason="the peers are in the extra 'bench' only")
def test_contest_counts_permits_and_finds_nobody_above_the_limit() -> None:
    report = measured("contest")

    rates = {str(row[0]): row[1] for row in report.rows}
    assert {"ours", *rivals.MODULES} < set(rates)
    assert all(rate is None or float(str(rate)) > 0 for rate in rates.values())
    most = {row[4] for row in report.rows if row[4] is not None}
    assert most <= set(range(1, contest_case.LIMIT + 1))


@pytest.mark.slow
@pytest.mark.skipif(not scrapy_redis.is_installed(), reason="it is in the group 'bench' only")
def test_frontier_loses_no_page_and_keeps_few_bytes_of_one() -> None:
    report = measured("frontier")

    found = {str(row[0]): row[1:] for row in report.rows}
    assert found["pages lost of 600, a node killed"][0] == "0"
    assert all(float(str(cell)) > 0 for cell in found["server time a page, us"])
    of_seen = [float(str(row[1])) for row in report.rows if "bytes a URL seen" in str(row[0])]
    assert len(of_seen) == 3
    assert all(8 <= each < MOST_BYTES_SEEN for each in of_seen)


# The judge --------------------------------------------------------------------------------------


class Anybody(Client):
    """A semaphore that lets everybody in and remembers nobody."""

    async def acquire(self) -> None:
        pass

    async def release(self) -> None:
        pass

    async def holds(self) -> bool | None:
        return False


@in_asyncio
async def test_the_judge_sees_who_goes_in_above_the_limit_and_who_is_robbed() -> None:
    judge = Judge(limit=2)
    client = Anybody(Place("", "s", limit=2))

    await asyncio.gather(*(judge.visit(client, 0.01) for _ in range(5)))

    assert judge.passed == 3
    assert judge.stolen == 5
    assert judge.inside == 0


def everybody(place: Place, clients: int) -> AbstractAsyncContextManager[Sequence[Client]]:
    """All clients of one process, none of whom is ever refused."""
    return nullcontext([Anybody(place) for _ in range(clients)])


@pytest.mark.slow
def test_a_contest_sees_how_many_are_at_work_at_once() -> None:
    server = RedisServer().start()
    try:
        place = Place(str(server.path), "contest", limit=2)
        join = in_python(Contender("anybody", everybody))
        result = contest(server, join, place, (3, 1), work_s=0.05, seconds=0.5)
    finally:
        server.remove()

    assert result.most == 4
    assert 3 < result.mean <= 4
    assert {visit.node for visit in result.counted} == {0, 1}


def test_fair_sees_a_window_in_which_one_node_has_it_all() -> None:
    begins = [(node, 5 * node + second / 10) for node in (0, 1) for second in range(50)]
    visits = [Visit(node, begin - 1, begin, begin + 0.1) for node, begin in begins]
    result = Result(visits, 0, 10, client_seconds=0, server=Reading(0, 0))

    seen = fair.Seen(fair.Demand((9, 1), limit=2, work_s=0.1), result, window_s=5)

    assert seen.jain == 1
    assert seen.least_jain == 0.5
    assert seen.small_share == 0.5
    assert round(seen.in_use, 3) == 0.5


def test_scale_sees_what_is_over_a_limit_and_how_long_hand_offs_take() -> None:
    visits = [
        large_crawl.Visit(-2, node=1, begin=1.0, end=2.0),
        large_crawl.Visit(-2, node=2, begin=2.5, end=3.0),
        large_crawl.Visit(-2, node=2, begin=4.0, end=5.0),  # its own again: no hand-off
        large_crawl.Visit(-1, node=1, begin=1.0, end=3.0),
        large_crawl.Visit(-1, node=2, begin=2.0, end=4.0),
        *[large_crawl.Visit(7, node, begin=1.0, end=2.0) for node in range(15)],
    ]

    def seen(visits: Sequence[large_crawl.Visit]) -> large_crawl.Result:
        return large_crawl.Result(visits, 2.0, 9.0, 0, 0.0, Reading(0, 0))

    assert seen(visits).over == 1
    assert seen(visits[:3]).over == seen(visits[5:]).over == 0
    assert seen([*visits[5:], visits[-1]]).over == 1
    assert seen(visits[:3]).handoffs == [0.5]
    assert seen(visits).permits == 3


def test_the_judge_sees_who_overtakes_by_more_than_the_margin() -> None:
    step = 2 * MARGIN

    def overtakers(*visits: tuple[float, float]) -> int:
        """Of visits as (asked, granted), both in steps."""
        scaled = [(asked * step, granted * step) for asked, granted in visits]
        return Judge(limit=1, visits=scaled).out_of_order

    assert overtakers((0, 5), (1, 6), (2, 7)) == 0
    assert overtakers((0, 7), (1, 6), (2, 5)) == 2
    assert overtakers((0, 7), (1, 5), (2, 6)) == 2
    assert overtakers((0, 5.2), (0.2, 5)) == 0  # on the way to the server, and back from it
