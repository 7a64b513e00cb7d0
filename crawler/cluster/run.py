"""A crawl by several nodes on this machine, watched from start to report."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from redis.asyncio import Redis
from rich.console import Console

from crawler.arguments import SiteArguments
from crawler.cluster.process import Node, NodeReport
from crawler.cluster.progress import Display, State
from crawler.cluster.verdict import Report, SiteReport, problems, table
from crawler.example_site import ExampleSite
from semaphore_middleware import FairSemaphore
from semaphore_middleware.frontier.client import RunOverError, SharedCrawl

TICK = 0.2  # seconds


@dataclass(frozen=True)
class Plan:
    """What to crawl, and how."""

    url: str = ""  # start URLs as the spider takes them; empty for the example site
    nodes: int = 3
    limit: int = 4
    latency: float = 0.1  # of the example site, seconds
    pages: int = 0  # of the example site; of another one, the most to ask for. 0 for the default
    server: str = ""  # empty for REDIS_URL, else an embedded one
    settings: Mapping[str, str] = field(default_factory=dict)  # of the nodes

    def example_site(self) -> ExampleSite | None:
        return None if self.url else ExampleSite(self.pages or 300, self.latency)


async def run(plan: Plan, console: Console) -> int:
    """Crawl as planned, print the report, and return the exit status."""
    directory = _run_directory()
    console.print(f"Logs, pages and stats: {directory}", highlight=False, soft_wrap=True)
    example = plan.example_site()
    async with (
        FairSemaphore(plan.server or None) as semaphore,
        example.running() if example else nullcontext(),
    ):
        report = await Cluster(plan, directory, semaphore, example).run(console)
    if report is None:
        console.print("Interrupted.")
        return 130
    console.print(table(report))
    found = problems(report)
    for problem in found:
        console.print(f"[red]✗[/red] {problem}", highlight=False, soft_wrap=True)
    return 1 if found else 0


def _run_directory() -> Path:
    directory = Path("runs", f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid4().hex[:4]}").absolute()
    directory.mkdir(parents=True)
    return directory


class Cluster:
    """The nodes of one run, and what they share."""

    def __init__(
        self, plan: Plan, directory: Path, semaphore: FairSemaphore, site: ExampleSite | None
    ) -> None:
        assert semaphore.url  # it is open
        self.plan = plan
        self.semaphore = semaphore
        self.server = semaphore.url
        self.site = site
        self.url = site.url if site else plan.url
        self.hosts = SiteArguments.parse({"url": self.url}).hosts
        self.crawl = SharedCrawl(Redis.from_url(self.server), directory.name, node="cluster")
        self.nodes = [Node(f"node-{number}", directory) for number in range(1, plan.nodes + 1)]
        self.signals = 0

    async def run(self, console: Console) -> Report | None:
        """None if the user has ended the run."""
        with self._signals_passed_on(console):
            try:
                await self.crawl.join()
                await self.crawl.work()
                for node in self.nodes:
                    await self._start(node)
                await self._watch(Display(console))
            finally:
                for node in self.nodes:
                    node.kill()  # if we have failed: else it has ended
                await self.crawl.end()
                await self.crawl.server.aclose()
        return None if self.signals else await self._report()

    async def _start(self, node: Node) -> None:
        arguments = {"url": self.url}
        if self.plan.url and self.plan.pages:
            arguments["max_pages"] = str(self.plan.pages)
        settings = {
            "CONCURRENT_REQUESTS_PER_DOMAIN": str(self.plan.limit),
            **self.plan.settings,
            "CRAWL": self.crawl.name,
        }
        await node.start(arguments, settings, environment={"REDIS_URL": self.server})

    async def _watch(self, display: Display) -> None:
        ended = asyncio.gather(*(node.wait() for node in self.nodes))
        held_open = True
        with display:
            while not ended.done():
                held_open = held_open and await self._hold_open()
                display.show(await self._state())
                await asyncio.wait([ended], timeout=TICK)

    async def _hold_open(self) -> bool:
        """Keep the crawl from ending before all nodes take part and one has begun; then False.

        A small site could else be done, and its crawl forgotten, before the last node has
        started, which would then crawl it all over again.
        """
        running = sum(node.running for node in self.nodes)
        counts = await self.crawl.counts()
        with suppress(RunOverError):  # this machine was suspended for longer than the lease
            if counts.nodes - 1 < running or not counts.seen:
                await self.crawl.work()
                return True
            await self.crawl.rest()
        return False

    async def _state(self) -> State:
        scopes = [await self.semaphore.admin.inspect(host) for host in self.hosts]
        held = sum(len(scope.holders) for scope in scopes)
        waiting = sum(len(scope.waiters) for scope in scopes)
        counts = await self.crawl.counts()
        if self.site:
            fetched = len(self.site.judge.record(self.hosts[0]).pages)
            found = len(self.site.judge.paths)
        else:
            fetched = max(0, counts.seen - counts.unfinished)
            found = counts.seen
        running = sum(node.running for node in self.nodes)
        return State(running, fetched, found, held, self.plan.limit, waiting)

    async def _report(self) -> Report:
        nodes = [node.report() for node in self.nodes]
        return Report(
            url=self.url,
            limit=self.plan.limit,
            latency=self.plan.latency,
            nodes=nodes,
            permits_left=await self._permits_left(nodes),
            site=SiteReport.of(self.site.judge, self.hosts[0]) if self.site else None,
        )

    async def _permits_left(self, nodes: list[NodeReport]) -> int:
        scopes = {scope for node in nodes for scope in node.scopes}.union(self.hosts)
        found = [await self.semaphore.admin.inspect(scope) for scope in scopes]
        return sum(len(scope.holders) + len(scope.waiters) for scope in found)

    @contextmanager
    def _signals_passed_on(self, console: Console) -> Iterator[None]:
        """Ctrl-C ends the nodes, a second one kills them; either way they are waited for."""

        def pass_on() -> None:
            self.signals += 1
            if self.signals == 1:
                console.print("Ending the nodes; once more to kill them.")
            end = Node.interrupt if self.signals == 1 else Node.kill
            for node in self.nodes:
                end(node)

        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, pass_on)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
