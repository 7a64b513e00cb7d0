"""The add-on's priority queue: its order, at any number of hosts."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.pqueues import DownloaderAwarePriorityQueue
from scrapy.squeues import FifoMemoryQueue, PickleFifoDiskQueue

from semaphore_middleware.model.limits import Limit, parse_limits
from semaphore_middleware.scrapy import hooks
from semaphore_middleware.scrapy.admission import Admissions
from semaphore_middleware.scrapy.hooks import SemaphorePriorityQueue
from semaphore_middleware.scrapy.scopes import ScopeFinder, names_in
from tests.support.crawls import ready_crawler

TRACES = 15
STEPS = 60
HOSTS = [f"{name}.{domain}.com" for domain in ("one", "two") for name in "abc"]
MANY = 1_000


def admissions(*kinds: str, **limits: Any) -> Admissions:
    table = parse_limits(limits, {}, Limit(2), kinds)
    return Admissions(ScopeFinder(kinds, table), 16, lambda: None)


@pytest.fixture
def crawler() -> Crawler:
    crawler = ready_crawler()
    downloader = SimpleNamespace(slots={}, get_slot_key=lambda request: request.url.split("/")[2])
    crawler.engine = SimpleNamespace(downloader=downloader)  # type: ignore[assignment]
    return crawler


@pytest.fixture
def queue_of(crawler: Crawler, monkeypatch: pytest.MonkeyPatch) -> Any:
    def queue_of(of: Admissions, key: str = "", slots: Any = None) -> SemaphorePriorityQueue:
        crawl = SimpleNamespace(downloads=SimpleNamespace(admissions=of))
        monkeypatch.setattr(hooks, "crawl_of", lambda _: crawl)
        kind = PickleFifoDiskQueue if key else FifoMemoryQueue
        return SemaphorePriorityQueue.from_crawler(crawler, kind, key, slots)

    return queue_of


def request_to(host: str, number: int = 0) -> Request:
    return Request(f"http://{host}/{number}", dont_filter=True)


def wait(of: Admissions, request: Request, scope: str) -> None:
    """Let a request wait for a permit of one of its scopes in the downloader."""
    admission = of.enter_fetch(request)
    next_scope = [load.name for load in admission.usages].index(scope)
    of.follow(admission, next_scope, waits=True)


def by_comparing_all(slots: Sequence[str], of: Admissions, last: tuple[str, ...]) -> str | None:
    """The next slot, found as Scrapy does by comparing all slots."""
    loads = {slot: [of._usages.get(name) for name in slot.split(" + ")] for slot in slots}
    waiting = {
        slot: sum(load.asking for load in loads[slot] if load)
        for slot in slots
        if not any(load and load.is_saturated for load in loads[slot])
    }
    fewest = sorted(
        names_in(slot) for slot in waiting if waiting[slot] == min(waiting.values(), default=0)
    )
    later = [path for path in fewest if path > last]
    return " + ".join(reversed([*later, *fewest][0])) if fewest else None


@pytest.mark.parametrize("kinds", [("host",), ("host", "domain"), ("host", "domain", "all")])
def test_requests_come_in_the_order_found_by_looking_at_each_slot(
    queue_of: Any, kinds: tuple[str, ...]
) -> None:
    for seed in range(TRACES):
        draw = random.Random(seed)
        of = admissions(*kinds, **{"domain:two.com": 3, "domain:one.com": 4, "all": 6})
        queue, in_fetch = queue_of(of), list[Any]()
        last: tuple[str, ...] = ()
        for number in range(STEPS):
            match draw.choice(("push", "push", "pop", "pop", "leave")):
                case "push":
                    queue.push(request_to(draw.choice(HOSTS), number))
                case "pop":
                    due = by_comparing_all([*queue.pqueues], of, last)
                    request = queue.pop()
                    assert due == (request and of.queue_key(request)), f"seed {seed}"
                    if request:
                        last = names_in(of.queue_key(request))
                        in_fetch.append(of.enter_fetch(request))
                        wait(of, request, draw.choice(last))
                case "leave" if in_fetch:
                    of.leave_fetch(in_fetch.pop(draw.randrange(len(in_fetch))))
        assert sorted(map(names_in, queue.pqueues)) == queue._names


@pytest.fixture
def lines() -> Iterator[Any]:
    """Counts the lines of Python that a function runs."""

    def lines_of(function: Any) -> int:
        count = 0

        def trace(_frame: Any, event: str, _arg: Any) -> Any:
            nonlocal count
            count += event == "line"
            return trace

        sys.settrace(trace)
        try:
            function()
        finally:
            sys.settrace(before)
        return count

    before = sys.gettrace()
    yield lines_of
    sys.settrace(before)


@pytest.mark.parametrize(
    ("full", "limit", "host", "due"),
    [
        ("", 0, "", "h0.big.com"),
        ("www.other.test", 2, "www.other.test", "h0.big.com"),
        ("domain:big.com", 3, "busy.big.com", "www.other.test"),
        ("all", 4, "elsewhere.test", None),
    ],
)
def test_a_pop_looks_at_few_of_many_hosts(
    queue_of: Any, lines: Any, full: str, limit: int, host: str, due: str | None
) -> None:
    of = admissions("host", "domain", "all", **{"domain:big.com": 3, "all": 4})
    queue = queue_of(of)
    for number in range(MANY):
        queue.push(request_to(f"h{number}.big.com"))
    queue.push(request_to("www.other.test"))
    for number in range(limit):
        wait(of, request_to(host, number), full)
    popped = list[Request | None]()
    assert lines(lambda: popped.append(queue.pop())) < MANY / 5
    assert due == (popped[0] and popped[0].url.split("/")[2])


def test_a_queue_on_disk_written_by_scrapys_class_opens(
    queue_of: Any, crawler: Crawler, tmp_path: Path
) -> None:
    hosts = [f"h{number}.test" for number in range(9)]
    theirs = DownloaderAwarePriorityQueue.from_crawler(crawler, PickleFifoDiskQueue, str(tmp_path))
    for host in hosts:
        theirs.push(request_to(host))
    ours = queue_of(admissions("host"), str(tmp_path), theirs.close())
    ours.push(request_to("h0.test", 1))
    urls = [ours.pop().url for _ in range(10)]
    assert urls == [f"http://{host}/0" for host in hosts] + ["http://h0.test/1"]
    assert ours.pop() is None
    assert ours.close() == {}


def test_a_request_that_cannot_be_stored_leaves_the_others(queue_of: Any, tmp_path: Path) -> None:
    queue = queue_of(admissions("host"), str(tmp_path))
    queue.push(request_to("a.test"))
    with pytest.raises(ValueError, match="local object"):
        queue.push(Request("http://b.test/", cb_kwargs={"a": lambda: None}))
    got = [queue.pop() for _ in range(3)]
    assert [request.url for request in got if request] == ["http://a.test/0"]
