"""Requests of a full site stay in the scheduler, and requests of other sites go ahead of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from scrapy import Request
from scrapy.core.scheduler import Scheduler
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future

from semaphore_middleware import FairSemaphore, Limit, Permit
from semaphore_middleware.core.observer import PermitGranted, PermitReleased, PermitWaiting
from semaphore_middleware.model.limits import LimitTable, parse_limits
from semaphore_middleware.scrapy import backpressure, throttler
from semaphore_middleware.scrapy.backpressure import Backpressure
from semaphore_middleware.scrapy.priority_queue import SemaphorePriorityQueue
from semaphore_middleware.scrapy.scopes import ScopeFinder
from tests.support.crawls import Crawl, asyncio_test, holding, until, waiting
from tests.support.servers import RedisServer
from tests.support.site import Site
from tests.support.visits import Visits

FULL, FREE = "127.0.0.1", "localhost"


def pages(site: Site, path: str, host: str, count: int) -> list[Request]:
    return [Request(site.url(f"{path}{host}/{n}", host)) for n in range(count)]


@asyncio_test
async def test_a_full_site_does_not_hold_up_other_sites(server: RedisServer, site: Site) -> None:
    full, free = pages(site, "/slow/", FULL, 30), pages(site, "/page/", FREE, 30)
    crawl = Crawl(server, *full, *free, CONCURRENT_REQUESTS=2)

    await site.until(lambda: sum(FREE in path for path in site.arrivals) == 30)
    assert site.hosts[FULL].now == 1
    site.let_go()
    await crawl.gave_back(60, site)


@asyncio_test
async def test_queue_tells_scheduler_which_sites_are_full(server: RedisServer, site: Site) -> None:
    full = pages(site, "/slow/", FULL, 30)
    crawl = Crawl(server, *full, SEMAPHORE_SCOPES=["domain"])
    await until(lambda: waiting(server) == 1)
    scheduler = crawl.crawler.engine.scheduler
    assert isinstance(scheduler, Scheduler)
    queue = scheduler.mqs
    assert isinstance(queue, SemaphorePriorityQueue)

    site_of = queue.site_of
    domain = f"domain:{FULL}"
    assert site_of(full[0]) == domain
    assert site_of(Request("http://a.example.com/")) == "domain:example.com"
    assert site_of(Request("http://a/", meta={"semaphore_scope": domain})) == domain
    assert queue.is_full(domain)
    assert not queue.is_full("domain:example.com")
    site.let_go()
    await crawl.gave_back(30, site)
    assert not queue.is_full(domain)


@asyncio_test
async def test_waiting_requests_do_not_grow_with_the_queue(server: RedisServer, site: Site) -> None:
    crawl = Crawl(server, *pages(site, "/slow/", FULL, 100), limit=3)
    await site.until(lambda: site.now == 3)
    await until(lambda: waiting(server) == 3)

    assert len(crawl.crawler.engine.downloader.active) == 6
    site.let_go()
    await crawl.gave_back(100, site)


@asyncio_test
async def test_requests_of_a_full_site_stay_on_disk_under_jobdir(
    server: RedisServer, site: Site, tmp_path: Path
) -> None:
    crawl = Crawl(server, *pages(site, "/slow/", FULL, 20), JOBDIR=str(tmp_path))
    await until(lambda: waiting(server) == 1)
    scheduler = crawl.crawler.engine.scheduler
    assert isinstance(scheduler, Scheduler)
    assert scheduler.dqs is not None
    on_disk = scheduler.dqs

    await until(lambda: len(on_disk) == 18)  # one is on the wire, and one waits
    site.let_go()
    await crawl.gave_back(20, site)


@asyncio_test
async def test_requests_that_wait_for_robots_txt_count_as_waiting(
    server: RedisServer, site: Site
) -> None:
    site.robots_is_slow = True
    full = pages(site, "/page/", FULL, 20)
    skipping = {"dont_obey_robotstxt": True}
    free = [Request(site.url(f"/page/free/{n}", FREE), meta=skipping) for n in range(10)]
    crawl = Crawl(server, *full, *free, CONCURRENT_REQUESTS=2, ROBOTSTXT_OBEY=True)

    await site.until(lambda: sum("/page/free/" in path for path in site.arrivals) == 10)
    site.let_go()
    await crawl.gave_back(31, site)


def of_sites(site: Site, path: str, sites: int, each: int) -> list[Request]:
    """Requests to one host, in scopes of their own as if they went to several sites."""
    return [
        Request(site.url(f"{path}{number}/{n}"), meta={"semaphore_scope": f"site{number}"})
        for n in range(each)
        for number in range(sites)
    ]


@asyncio_test
async def test_concurrent_requests_holds_for_requests_that_have_waited(
    server: RedisServer, site: Site
) -> None:
    async with FairSemaphore(server.url) as other:
        held = [await other.acquire(f"site{number}", 1) for number in range(6)]
        crawl = Crawl(server, *of_sites(site, "/slow/", sites=6, each=3), CONCURRENT_REQUESTS=2)
        await until(lambda: waiting(server) == 6)
        for permit in held:
            permit.release()
        await site.until(lambda: site.now == 2)
        await until(lambda: holding(server) == 2)  # permits without a place go to other nodes
        site.let_go()
        await crawl.finished()
    assert site.hosts["127.0.0.1"].most == 2
    assert len(site.arrivals) == 18
    assert server.members() == {}


@asyncio_test
async def test_a_permit_that_finds_no_place_is_used_next(
    server: RedisServer, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a node that always has other work would never use it."""
    monkeypatch.setattr(throttler, "PERMIT_IDLE_TIMEOUT_S", 600.0)
    async with FairSemaphore(server.url) as other:
        held = [await other.acquire(f"site{number}", 1) for number in range(2)]
        crawl = Crawl(server, *of_sites(site, "/slow/", sites=2, each=5), CONCURRENT_REQUESTS=1)
        await until(lambda: waiting(server) == 2)
        held[0].release()
        await site.until(lambda: site.now == 1)
        held[1].release()
        await until(lambda: holding(server) == 2 and waiting(server) == 0)
        site.let_go()
        await crawl.finished()
    assert [path.split("/")[2] for path in site.arrivals[:2]] == ["0", "1"]
    assert site.hosts["127.0.0.1"].most == 1
    assert len(site.arrivals) == 10


@asyncio_test
async def test_a_permit_that_finds_no_place_is_not_handed_on(
    server: RedisServer, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next request here has no place for it, either, but another node may."""
    monkeypatch.setattr(throttler, "PERMIT_IDLE_TIMEOUT_S", 0.01)
    async with FairSemaphore(server.url) as other, FairSemaphore(server.url) as third:
        held = [await other.acquire(FULL, 2) for _ in range(2)]
        requests = pages(site, "/slow/", FULL, 2)
        crawl = Crawl(server, *requests, limit=2, CONCURRENT_REQUESTS=1, SEMAPHORE_TURN=4)
        await until(lambda: server.members().get(FULL) == (2, 2))
        crawl.crawler.engine.crawl(*pages(site, "/slow/", FREE, 1))
        await site.until(lambda: site.now == 1)
        waiter = asyncio.create_task(third.acquire(FULL, 2))
        await until(lambda: server.members()[FULL] == (2, 3))
        held[0].release()
        permit = await waiter
        assert server.members()[FULL] == (2, 1)
        site.let_go()
        permit.release()
        held[1].release()
        await crawl.finished()
    assert len(site.arrivals) == 3


@asyncio_test
async def test_a_woken_request_that_must_wait_again_lets_others_start(
    server: RedisServer, site: Site
) -> None:
    """It was parked, another node has taken its site since, and nothing is on the wire."""
    async with FairSemaphore(server.url) as other:
        held = [await other.acquire(f"site{number}", 1) for number in range(4)]
        crawl = Crawl(server, *of_sites(site, "/slow/", sites=4, each=1), CONCURRENT_REQUESTS=1)
        await until(lambda: waiting(server) == 4)
        for permit in held:
            permit.release()
        await site.until(lambda: site.now == 1)
        await until(lambda: holding(server) == 1)
        (at_work,) = {f"site{path.split('/')[2]}" for path in site.arrivals}
        others = [name for name in ("site0", "site1", "site2", "site3") if name != at_work]
        taken = [await other.acquire(name, 1) for name in others[:2]]
        site.let_go()
        await site.until(lambda: len(site.arrivals) == 2)
        for permit in taken:
            permit.release()
        await crawl.finished()
    assert site.hosts["127.0.0.1"].most == 1
    assert len(site.arrivals) == 4


@asyncio_test
async def test_a_request_counts_as_work_until_it_is_told_to_wait(
    server: RedisServer, site: Site
) -> None:
    """Otherwise all that the site's limit allows would leave the scheduler and start at once."""
    crawl = Crawl(server, *pages(site, "/slow/", FULL, 40), limit=20, CONCURRENT_REQUESTS=4)
    await site.until(lambda: site.now == 4)
    assert len(crawl.crawler.engine.downloader.active) == 4
    site.let_go()
    await crawl.gave_back(40, site)
    assert site.hosts[FULL].most == 4


@asyncio_test
async def test_requests_without_permits_count_as_work(server: RedisServer, site: Site) -> None:
    """Otherwise those that waited for permits would all start beside them."""
    async with FairSemaphore(server.url) as other:
        held = [await other.acquire(FULL, 2) for _ in range(2)]
        full = [page.replace(priority=1) for page in pages(site, "/slow/", FULL, 2)]
        requests, limits = [*full, *pages(site, "/slow/", FREE, 4)], {FREE: None}
        crawl = Crawl(server, *requests, limit=2, CONCURRENT_REQUESTS=2, SEMAPHORE_LIMITS=limits)
        await site.until(lambda: site.hosts[FREE].now == 2)
        places = throttler.throttler_of(crawl.crawler).local_concurrency
        for permit in held:
            permit.release()
        await until(lambda: places.is_short or site.now > 2)
        assert site.now == 2
    site.let_go()
    await crawl.gave_back(2, site)


# Behind other requests ---------------------------------------------------------------------------


async def full_hosts(site: Site, count: int) -> list[str]:
    """The beginnings of the URLs of so many hosts; all lead to the site."""
    hosts = [f"127.0.0.{number + 2}" for number in range(count)]
    return [f"http://{host}:{await site.listen(host)}" for host in hosts]


async def take_all(other: FairSemaphore, urls: list[str]) -> list[Permit]:
    """The only permit of each host."""
    return [await other.acquire(urlsplit(url).hostname or "", 1) for url in urls]


def of_free(site: Site) -> int:
    """How many pages of the free host have been asked for."""
    return sum(visit.host == FREE and visit.path.startswith("/page") for visit in site.visits)


@asyncio_test
async def test_full_sites_take_no_room_with_their_robots_txt(
    server: RedisServer, site: Site
) -> None:
    urls = await full_hosts(site, 20)
    full = [Request(f"{url}/page/{n}") for n in range(3) for url in urls]
    async with FairSemaphore(server.url) as other:
        held = await take_all(other, urls)
        crawl = Crawl(server, *full, *pages(site, "/page/", FREE, 60), ROBOTSTXT_OBEY=True)
        await site.until(lambda: of_free(site) == 60)
        assert {visit.host for visit in site.visits} == {FREE}
        for permit in held:
            permit.release()
        await crawl.gave_back(20 * 4 + 61, site)


@asyncio_test
async def test_pages_of_other_scopes_take_no_room_behind_a_full_sites_robots_txt(
    server: RedisServer, site: Site
) -> None:
    full = [
        Request(site.url(f"/page/{n}"), meta={"semaphore_scope": f"scope {n}"}) for n in range(40)
    ]
    async with FairSemaphore(server.url) as other:
        permit = await other.acquire(FULL, 1)
        free = pages(site, "/page/", FREE, 60)
        crawl = Crawl(server, *full, *free, ROBOTSTXT_OBEY=True, CONCURRENT_REQUESTS=4)
        await site.until(lambda: of_free(site) == 60)
        permit.release()
        await crawl.finished()
    assert len(site.arrivals) == 40 + 60 + 2
    assert site.most <= 4


class NeedsToken:
    """Fetches something from the full site before each request to another, in some way."""

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> NeedsToken:
        return cls(crawler)

    async def process_request(self, request: Request) -> None:
        if url := request.meta.get("token"):
            assert self.crawler.engine is not None
            fetching = self.crawler.engine.download_async(Request(url))
            match request.meta["way"]:
                case "awaited":
                    await fetching
                case "in a task":
                    await asyncio.gather(fetching)
                case "as a Deferred":
                    await maybe_deferred_to_future(deferred_from_coro(fetching))


@pytest.mark.parametrize("way", ["awaited", "in a task", "as a Deferred"])
@asyncio_test
async def test_requests_take_no_room_behind_what_a_middleware_fetches_from_a_full_site(
    server: RedisServer, site: Site, way: str
) -> None:
    token = {"token": site.url("/page/token"), "way": way}
    full = [
        Request(site.url(f"/page/{n}"), meta={**token, "semaphore_scope": f"scope {n}"})
        for n in range(20)
    ]
    free = pages(site, "/page/", FREE, 60)
    async with FairSemaphore(server.url) as other:
        permit = await other.acquire(FULL, 1)
        crawl = Crawl(server, *full, *free, middlewares={NeedsToken: 10}, CONCURRENT_REQUESTS=4)
        await site.until(lambda: of_free(site) == 60)
        permit.release()
        await crawl.finished()
    assert len(site.arrivals) == 20 + 20 + 60
    assert site.most <= 4


@asyncio_test
async def test_a_page_counts_as_work_behind_a_robots_txt_that_is_on_its_way(
    server: RedisServer, site: Site
) -> None:
    site.robots_is_slow = True
    urls = await full_hosts(site, 10)
    requests = [Request(f"{url}/page/") for url in urls]
    crawl = Crawl(server, *requests, ROBOTSTXT_OBEY=True, CONCURRENT_REQUESTS=4)

    await site.until(lambda: site.now == 4)
    assert len(crawl.crawler.engine.downloader.active) == 8  # four pages, and what they need
    site.let_go()
    await crawl.gave_back(20, site)


class Fetches(Visits):
    """Fetches further requests past the scheduler, as media pipelines do."""

    async def parse(self, response: Response) -> None:
        await super().parse(response)
        if not response.meta.get("is_first"):
            return
        assert self.crawler.engine is not None
        fetch = self.crawler.engine.download_async
        await asyncio.gather(*map(fetch, self.settings["FETCHED"]))


@asyncio_test
async def test_what_came_past_the_scheduler_does_not_stop_it(
    server: RedisServer, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backpressure, "MAX_WAITING", 5)
    first = Request(site.url("/page/", FREE), meta={"is_first": True})
    free = pages(site, "/page/", FREE, 30)
    media = pages(site, "/page/", FULL, 20)
    async with FairSemaphore(server.url) as other:
        permit = await other.acquire(FULL, 1)
        crawl = Crawl(server, first, *free, spider=Fetches, FETCHED=media, CONCURRENT_REQUESTS=4)
        await until(lambda: waiting(server) == 20)
        await site.until(lambda: of_free(site) == 31)
        permit.release()
        await crawl.gave_back(51, site)


def told_to_wait(request: Request) -> PermitWaiting:
    permit = Permit.__new__(Permit)
    permit.owner = request
    return PermitWaiting(permit)


def finder(limit: Limit) -> ScopeFinder:
    return ScopeFinder(["host"], LimitTable(limit))


def of_scope(name: str) -> Request:
    return Request("http://example.com/", meta={"semaphore_scope": name})


def test_room_is_given_back_while_what_is_needed_waits() -> None:
    waits = Backpressure(finder(Limit(8)), on_room=lambda: None)
    page, robots, moved, other = map(of_scope, ("page", "robots", "moved", "page"))
    follower = Request("http://example.com/", meta={"semaphore_skip": True})
    for request in (page, other, follower):
        waits.enter(request)
    waits.enter(robots, is_scheduled=False, needed_by=page)
    waits.follow(follower, page)
    assert waits.exempt_from_concurrency == 0

    waits.on_event(told_to_wait(robots))
    assert waits.exempt_from_concurrency == 3  # all but `other`: it may start at once
    waits.acquired(robots)
    assert waits.exempt_from_concurrency == 0
    waits.leave(robots)
    waits.enter(moved, is_scheduled=False, needed_by=page)  # it was redirected
    waits.on_event(told_to_wait(moved))
    assert waits.exempt_from_concurrency == 3
    waits.leave(moved)  # cancelled
    waits.unfollow(follower, page)
    waits.on_event(told_to_wait(page))
    assert waits.exempt_from_concurrency == 2  # the whole scope
    for request in (page, other, follower):
        waits.leave(request)
    assert waits.exempt_from_concurrency == 0
    assert waits.stats(["page", "robots", "moved"]) == [(0, "page"), (0, "robots"), (0, "moved")]


def test_memory_is_bounded_where_no_scope_is_saturated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that need no permit may wait for the robots.txt of a full site."""
    monkeypatch.setattr(backpressure, "MAX_WAITING", 3)
    waits = Backpressure(finder(Limit(1)), on_room=lambda: None)
    skipping = [Request(f"http://example.com/{n}", meta={"semaphore_skip": True}) for n in range(3)]
    robots = Request("http://example.com/robots.txt")
    for request in skipping:
        waits.enter(request)
        waits.follow(request, skipping[0])
    waits.enter(robots, is_scheduled=False, needed_by=skipping[0])
    assert not waits.is_full
    waits.on_event(told_to_wait(robots))
    assert waits.is_full
    waits.acquired(robots)
    assert not waits.is_full


class Rooms:
    """Backpressure, and how often it has found room for more."""

    def __init__(self, limit: int = 1) -> None:
        self.found = 0
        self.waits = Backpressure(finder(Limit(limit)), self._find)

    def _find(self) -> None:
        self.found += 1


# Several scopes ---------------------------------------------------------------------------------

SEVERAL = parse_limits({"domain:*": 2, "all": 3}, {}, Limit(1), "SEMAPHORE_LIMITS")


def granted(request: Request) -> PermitGranted:
    permit = Permit.__new__(Permit)
    permit.owner = request
    return PermitGranted(permit, None, handed_on=False)


def given_back(request: Request) -> PermitReleased:
    return PermitReleased(granted(request).permit)


def test_a_slot_is_passed_over_while_any_of_its_scopes_is_full() -> None:
    waits = Backpressure(ScopeFinder(["host", "domain", "all"], SEVERAL), on_room=lambda: None)
    a, b, c, other = (
        Request(f"http://{host}/") for host in ("a.co.uk", "b.a.co.uk", "c.a.co.uk", "a.com")
    )
    slots = [waits.get_slot_key(request) for request in (a, b, c, other)]
    assert slots[1] == "b.a.co.uk + domain:a.co.uk + all"
    for request in (a, b):
        waits.enter(request)
    assert waits.stats(slots) == [(0, slots[2]), (0, slots[3])]
    for request in (a, b):
        waits.on_event(granted(request))  # its host's
        waits.on_event(told_to_wait(request))
    assert waits.stats(slots) == [(0, slots[3])], "two wait for the domain"
    assert waits.exempt_from_concurrency == 2
    waits.on_event(granted(a))  # its domain's
    assert waits.stats(slots) == [(2, slots[0]), (2, slots[1]), (2, slots[2]), (1, slots[3])]
    waits.acquired(a)
    waits.released(a)
    waits.on_event(given_back(b))  # it has found no place, and begins anew
    assert waits.stats(slots) == [(0, slots[0]), (0, slots[2]), (0, slots[3])]
    for request in (a, b):
        waits.leave(request)
    assert waits.stats(slots) == [(0, slot) for slot in slots]
    assert not waits._loads
    assert waits.exempt_from_concurrency == 0


def test_a_request_s_scopes_may_change_while_it_is_on_its_way() -> None:
    finder = ScopeFinder(["host", "proxy"], parse_limits({"proxy:*": 1}, {}, Limit(1), "LIMITS"))
    waits = Backpressure(finder, on_room=lambda: None)
    request, other = Request("http://a/"), Request("http://b/", meta={"proxy": "http://p:1"})
    waits.enter(request)
    request.meta["proxy"] = "http://p:1"  # by a middleware
    waits.update(request, finder.find(request))
    waits.on_event(granted(request))
    assert waits.stats([waits.get_slot_key(other)]) == []
    waits.leave(request)
    assert not waits._loads


def test_names_of_slots_are_no_longer_than_those_of_files() -> None:
    finder = ScopeFinder(["host"], LimitTable(Limit(1)))
    names = [f"{'é' * 40}{n}" for n in range(10)]  # of two bytes each
    slot = Backpressure(finder, lambda: None).get_slot_key(
        Request("http://a/", meta={"semaphore_scope": names})
    )
    assert slot == " + ".join(names[:2])


def test_a_scope_with_a_limit_s_worth_of_waiting_requests_is_passed_over() -> None:
    rooms, first, second = Rooms(limit=2), of_scope("a"), of_scope("a")
    rooms.waits.enter(first)
    rooms.waits.enter(first)  # of which it knows already
    assert rooms.waits.stats(["a", "b"]) == [(1, "a"), (0, "b")]
    rooms.waits.enter(second)
    assert rooms.waits.stats(["a", "b"]) == [(0, "b")]
    rooms.waits.acquired(first)
    assert rooms.found == 1
    assert rooms.waits.stats(["a", "b"]) == [(1, "a"), (0, "b")]
    rooms.waits.leave(second)
    assert rooms.waits.stats(["a", "b"]) == [(0, "a"), (0, "b")]


def test_requests_of_a_full_site_take_no_room() -> None:
    rooms, first, second = Rooms(), of_scope("a"), of_scope("a")
    rooms.waits.enter(first)
    assert rooms.waits.exempt_from_concurrency == 0, "it may start at once"
    rooms.waits.on_event(told_to_wait(first))
    assert (rooms.waits.exempt_from_concurrency, rooms.found) == (1, 1)
    rooms.waits.acquired(first)
    assert rooms.waits.exempt_from_concurrency == 0
    rooms.waits.enter(second)
    assert rooms.waits.exempt_from_concurrency == 1, "the first one has the only permit"
    rooms.waits.released(first)
    assert rooms.waits.exempt_from_concurrency == 0
    rooms.waits.on_event(told_to_wait(second))
    rooms.waits.leave(second)
    assert rooms.waits.exempt_from_concurrency == 0


def test_who_needs_what_waits_already_takes_no_room_until_it_no_longer_does() -> None:
    rooms, robots, needing = Rooms(limit=8), of_scope("robots"), of_scope("page")
    rooms.waits.enter(robots, is_scheduled=False)
    rooms.waits.on_event(told_to_wait(robots))
    rooms.waits.enter(needing)
    assert rooms.waits.exempt_from_concurrency == 1
    rooms.waits.follow(needing, robots)
    assert rooms.waits.exempt_from_concurrency == 2
    rooms.waits.unfollow(needing, robots)
    assert rooms.waits.exempt_from_concurrency == 1


def test_slots_have_names_for_files() -> None:
    key = Rooms().waits.get_slot_key
    assert key(of_scope("a.example")) == "a.example"
    odd = [key(of_scope(name)) for name in ("x" * 500, "x" * 499 + "y", "é" * 51, "a\n", "\ud800")]
    assert len(set(odd)) == 5
    assert all(len(name.encode()) <= 100 and name.isprintable() for name in odd)
