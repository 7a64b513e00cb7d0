"""A crawl of one site by nodes with the real semaphore. Times are in seconds."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from lab.simulation.network import Network, Weather
from lab.simulation.run import KEYS, RenewalThread, Semaphore
from lab.simulation.server import Server
from lab.simulation.sites import Meter
from lab.simulation.world import BEGIN_S, Host, World
from semaphore_middleware.core.protocol import RECORDS
from semaphore_middleware.model.feedback import Backoff
from semaphore_middleware.model.limits import Limit

SITE = "a.com"
LEASE_S = 3.0
ANSWER_S, REFUSAL_S = 0.05, 0.02
RETRIES = 10
RETRIES_OF_FAILURES = 2
SPAN_S = 30.0
LEARNED = RECORDS["learned"]


Site = Callable[[float, int], bool]
"""Whether a site refuses a request, at a time from the crawl's beginning, for a page."""


def metered(*rates: tuple[float, float], burst: float) -> Site:
    """A site that meters starts: so many a second, from each time on, and `burst` at once."""
    meter = Meter(rates, burst)
    return lambda at, _: meter.refuses(at) is not None


def windowed(answers: int, period: float) -> Site:
    """A site that answers so many requests in each period."""
    asked: Counter[int] = Counter()

    def refuses(at: float, _: int) -> bool:
        asked[int(at / period)] += 1
        return asked[int(at / period)] > answers

    return refuses


def refuses_pages(share: float, seed: int = 1) -> Site:
    """A site that always refuses this share of its pages."""
    return lambda _, page: Random(f"{seed} {page}").random() < share


def refuses_by_chance(*shares: tuple[float, float], seed: int = 1) -> Site:
    """A site that refuses a share of all requests, from each time on."""
    random = Random(seed)
    return lambda at, _: random.random() < [share for since, share in shares if since <= at][-1]


def both(one: Site, other: Site) -> Site:
    """A site that refuses what either of two refuses."""
    return lambda at, page: any((one(at, page), other(at, page)))


@dataclass(frozen=True)
class Scenario:
    """A site, and how it is crawled. Without `pages` there is no end of them."""

    name: str
    site: Callable[[], Site]
    nodes: int = 1
    limit: int = 8
    pages: int | None = None
    length: float = 240.0
    closes: bool = False
    """Whether it refuses by closing the connection."""


@dataclass
class Span:
    """What happened in a part of the crawl."""

    starts: int = 0
    refused: int = 0
    interval: float = 0.0
    """The learned interval at its end; 0: none."""
    is_off: bool = False


@dataclass
class Crawl:
    """A crawl of a scenario's site: all fresh pages first, then those that were refused."""

    scenario: Scenario
    seed: int = 1
    spans: list[Span] = field(default_factory=list)
    good: int = 0
    ended_at: float | None = None
    """When the last page was answered, or given up."""

    def __post_init__(self) -> None:
        random = Random(self.seed)
        self._world = World(self.seed + 1)
        network = Network(self._world, random, LEASE_S)
        network.weather = Weather(latency=(0.0002, 0.0004))
        self._server = Server(network.publish, self._on_bug, lambda *_: None, LEASE_S)
        network.server = self._server
        self._site = self.scenario.site()
        self._fresh = iter(range(self.scenario.pages or 10**9))
        self._refused: deque[tuple[int, int]] = deque()
        self._failures: Counter[int] = Counter()  # by page
        self._open = self.scenario.pages or 10**9
        for number in range(self.scenario.nodes):
            host = Host(
                self._world, f"n{number}", random.uniform(0.0, 1e4), has_renewal_thread=True
            )
            host.spawn(self._live(network, host, number))

    def run(self) -> None:
        """Crawl until the end, or for the scenario's length."""
        try:
            self._run()
        finally:
            self._world.end()

    def _run(self) -> None:
        begins = BEGIN_S + LEASE_S  # a new server grants nothing before
        self._world.run(begins)
        while self._open and len(self.spans) * SPAN_S < self.scenario.length:
            self.spans.append(Span())
            self._world.run(begins + len(self.spans) * SPAN_S)
            self.spans[-1].interval = self._learned("learned_interval") / 1000
            self.spans[-1].is_off = self._learned("off_until") > self._clock

    def _on_bug(self, text: str) -> None:
        raise AssertionError(text)

    def _learned(self, name: str) -> float:
        fields = self._server.field(KEYS.of(SITE)[0], b"learned")
        return float(fields[LEARNED.names.index(name)]) if fields else 0.0

    @property
    def _clock(self) -> float:
        return float(self._server.field(KEYS.named("epoch"), b"clock"))

    async def _live(self, network: Network, host: Host, number: int) -> None:
        node = Semaphore(network, host, number, node=host.name, lease=LEASE_S, backoff=Backoff())
        assert host.renewal_thread is not None
        node._renewal_thread = RenewalThread(host.renewal_thread)  # type: ignore[assignment]
        await node.open()
        await asyncio.gather(*(self._work(node) for _ in range(2 * self.scenario.limit)))
        await node.close()

    async def _work(self, node: Semaphore) -> None:
        while self._open:
            if (page := next(self._fresh, None)) is not None:
                await self._request(node, page, 0)
            elif self._refused:
                await self._request(node, *self._refused.popleft())
            else:
                await asyncio.sleep(0.01)

    async def _request(self, node: Semaphore, page: int, refusals: int) -> None:
        permits = await node.acquire_all([(SITE, Limit(self.scenario.limit))], owner=object())
        permits.begin()
        at = self._world.now - BEGIN_S - LEASE_S
        self.spans[-1].starts += 1
        is_refused = self._site(at, page)
        self.spans[-1].refused += is_refused
        await asyncio.sleep(REFUSAL_S if is_refused else ANSWER_S)
        permit = permits.permits[0]
        is_given_up = refusals >= RETRIES
        if not is_refused:
            permit.answered(ANSWER_S)
            self.good += 1
        elif self.scenario.closes:
            is_of_page = refusals and permit.refuses_pages
            if is_of_page or not permit.closed(str(page)):
                self._failures[page] += 1
                refusals -= 1  # it does not count as one
            is_given_up |= self._failures[page] > RETRIES_OF_FAILURES
        elif refusals and permit.refuses_pages:
            permit.answered(None)
        else:
            permit.refused()
        permits.release()
        if is_refused and not is_given_up:
            self._refused.append((page, refusals + 1))
            return
        self._open -= 1
        if not self._open:
            self.ended_at = self._world.now - BEGIN_S - LEASE_S
