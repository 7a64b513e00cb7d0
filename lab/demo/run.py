"""Run a crawl with several nodes on this machine, show its progress, and judge it."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

from rich.console import Console
from rich.markup import escape

from lab.demo.process import NodeProcess, NodeResult
from lab.demo.progress import DemoState, ProgressDisplay
from lab.demo.site import ExampleSite
from lab.demo.verdict import CrawlResult, problems, table
from semaphore_middleware import FairSemaphore
from semaphore_middleware.shared_crawl.client import CrawlClient, RunOverError
from semaphore_middleware.shared_crawl.settings import CrawlSettings

REFRESH_INTERVAL_S = 0.2


@dataclass(frozen=True)
class Plan:
    """The options of a run."""

    url: str = ""  # empty for the example site
    nodes: int = 3
    limit: int = 4
    latency: float = 0.1  # of the example site, seconds
    pages: int = 0  # of the example site; of another one, max_pages. 0 for the default
    settings: Mapping[str, str] = field(default_factory=dict)  # of the nodes


async def run(plan: Plan, console: Console) -> int:
    """Crawl as planned, print the result, and return the exit status.

    Raises `SemaphoreError` if the server cannot be used.
    """
    directory = _run_directory()
    where = f"Logs, pages and stats are in {directory}"
    console.print(where, markup=False, highlight=False, soft_wrap=True)
    example = None if plan.url else ExampleSite(plan.pages or 300, plan.latency)
    async with (
        FairSemaphore() as semaphore,
        example.running() if example else nullcontext(),
    ):
        result = await Demo(plan, directory, semaphore, example).run(console)
    if result is None:
        console.print("Interrupted.")
        return 130
    return show_result(result, console)


def show_result(result: CrawlResult, console: Console) -> int:
    """Print the table and the problems, and return the exit status."""
    console.print(table(result))
    found = problems(result)
    for problem in found:
        console.print(f"[red]✗[/red] {escape(problem)}", highlight=False, soft_wrap=True)
    return 1 if found else 0


def _run_directory() -> Path:
    directory = Path("runs", f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid4().hex[:4]}").absolute()
    directory.mkdir(parents=True)
    return directory


class Demo:
    """The nodes of one run, their shared crawl, and the site if it is the example site."""

    def __init__(
        self, plan: Plan, directory: Path, semaphore: FairSemaphore, site: ExampleSite | None
    ) -> None:
        assert semaphore.url  # it is open
        self.plan = plan
        self.semaphore = semaphore
        self.server = semaphore.url
        self.site = site
        self.url = site.url if site else plan.url
        self.host = urlsplit(self.url).hostname or ""
        self.crawl = CrawlClient(CrawlSettings(self.server, directory.name, "demo"))
        self.nodes = [
            NodeProcess(f"node-{number}", directory) for number in range(1, plan.nodes + 1)
        ]
        self.signals = 0

    async def run(self, console: Console) -> CrawlResult | None:
        """The result, or None if the user has interrupted the run."""
        with self._forwarded_signals(console):
            try:
                await self.crawl.join()
                await self.crawl.sync(working=True)
                for node in self.nodes:
                    await self._start(node)
                await self._watch(ProgressDisplay(console))
            finally:
                for node in self.nodes:
                    node.kill()  # in case of an error here; otherwise it has ended
                await self.crawl.drop()
                await self.crawl.link.close()
        return None if self.signals else await self._result()

    async def _start(self, node: NodeProcess) -> None:
        arguments = {"url": self.url}
        if self.plan.url and self.plan.pages:
            arguments["max_pages"] = str(self.plan.pages)
        settings = {
            "CONCURRENT_REQUESTS_PER_DOMAIN": str(self.plan.limit),
            "SEMAPHORE_LIMITS": "{}",  # those of the project would come first
            **self.plan.settings,
            "CRAWL": self.crawl.settings.name,
        }
        await node.start(arguments, settings, environment={"REDIS_URL": self.server})

    async def _watch(self, display: ProgressDisplay) -> None:
        ended = asyncio.gather(*(node.wait() for node in self.nodes))
        held_open = True
        with display:
            while not ended.done():
                held_open = held_open and await self._hold_open()
                display.show(await self._state())
                await asyncio.wait([ended], timeout=REFRESH_INTERVAL_S)

    async def _hold_open(self) -> bool:
        """Keep the crawl from ending until all nodes have joined and one has begun; then False.

        Without this a small site might be finished before the last node has started.
        """
        running = sum(node.running for node in self.nodes)
        counts = await self.crawl.counts()
        with suppress(RunOverError):  # if this machine was suspended for longer than the lease
            if counts.nodes - 1 < running or not counts.seen:
                await self.crawl.sync(working=True)
                return True
            await self.crawl.idle()
        return False

    async def _state(self) -> DemoState:
        scope = await self.semaphore.admin.inspect(self.host)
        counts = await self.crawl.counts()
        if self.site:
            fetched = len(self.site.record(self.host).pages)
            found = len(self.site.numbers)
        else:
            fetched = max(0, counts.seen - counts.unfinished)
            found = counts.seen
        running = sum(node.running for node in self.nodes)
        return DemoState(running, fetched, found, scope.held, self.plan.limit, scope.waiting)

    async def _result(self) -> CrawlResult:
        nodes = [node.result() for node in self.nodes]
        return CrawlResult(
            url=self.url,
            limit=self.plan.limit,
            latency=self.plan.latency,
            nodes=nodes,
            permits_left=await self._permits_left(nodes),
            site=self.site.record(self.host) if self.site else None,
        )

    async def _permits_left(self, nodes: list[NodeResult]) -> int:
        scopes = {scope for node in nodes for scope in node.scopes} | {self.host}
        found = [await self.semaphore.admin.inspect(scope) for scope in scopes]
        return sum(scope.held + scope.waiting for scope in found)

    @contextmanager
    def _forwarded_signals(self, console: Console) -> Iterator[None]:
        """Stop the nodes at the first Ctrl-C, and kill them at the second; either way we wait for
        them. A closed terminal stops them as well, except under `nohup`.
        """

        def forward() -> None:
            self.signals += 1
            if self.signals == 1:
                console.print("Stopping the nodes; press Ctrl-C again to kill them.")
            stop = NodeProcess.interrupt if self.signals == 1 else NodeProcess.kill
            for node in self.nodes:
                stop(node)

        def hang_up() -> None:
            console.quiet = True  # there is no terminal to write to
            forward()

        loop = asyncio.get_running_loop()
        handlers = {signal.SIGINT: forward, signal.SIGTERM: forward}
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            handlers[signal.SIGHUP] = hang_up
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)
