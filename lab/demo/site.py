"""An example site with a count of requests: `python -m lab.demo.site --port 8000`.

It answers to any host name, with the same pages, and keeps a record for each host. `/_judge`
returns the records as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from lab.demo.judging import JudgingSite, Visit, Work, response

BRANCHES = 8  # first links of each page: their tree reaches every page
FORBIDDEN = "/private/diary"
ROBOTS = f"User-agent: *\nDisallow: {FORBIDDEN}\n"
JUDGE = "/_judge"


@dataclass(frozen=True)
class Record:
    """The requests to one host so far, compared with the existing pages."""

    now: int  # open requests, those for robots.txt included
    most: int  # open at once
    pages: Counter[str]  # path -> requests
    robots: int  # requests for robots.txt
    forbidden: int  # requests that robots.txt forbids
    seconds: float  # from the beginning of the first request to the end of the last
    missed: list[str]  # pages never requested
    twice: list[str]  # pages requested more than once

    @property
    def requests(self) -> int:
        """All of them."""
        return self.pages.total() + self.robots + self.forbidden


class ExampleSite(JudgingSite):
    """Linked pages, served by a web server of its own.

    async with ExampleSite(pages=300, latency=0.1).running() as site:
        ... crawl site.url ...
        assert site.record("127.0.0.1").missed == []
    """

    def __init__(
        self, pages: int = 300, latency: float = 0.1, port: int = 0, host: str = "127.0.0.1"
    ) -> None:
        super().__init__()
        self.latency = latency  # seconds; may be changed at any time
        self.port = port
        self.host = host  # to listen at
        self.numbers = {names_in(number): number for number in range(pages)}
        """Of the pages, by path."""

    @property
    def url(self) -> str:
        """The address of the first page."""
        return f"http://{self.host}:{self.port}/"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ExampleSite]:
        """Serve the site in this context; sets `port` if it was 0."""
        self.port = await self.listen(self.host, self.port)
        try:
            yield self
        finally:
            await self.stop()

    def record(self, host: str) -> Record:
        visits = [one for one in self.visits if one.host == host and one.path != JUDGE]
        paths = Counter(visit.path for visit in visits)
        robots, forbidden = paths.pop("/robots.txt", 0), paths.pop(FORBIDDEN, 0)
        ends = [visit.end for visit in visits if not visit.is_open]
        return Record(
            self.hosts[host].now,
            self.hosts[host].most,
            paths,
            robots,
            forbidden,
            max(ends) - visits[0].begin if ends else 0.0,
            missed=[path for path in self.numbers if path not in paths],
            twice=[path for path, requests in paths.items() if requests > 1],
        )

    def forget(self) -> None:
        """Begin the records anew."""
        self.visits.clear()
        self.hosts.clear()

    def begin(self, visit: Visit) -> Work:
        return asyncio.ensure_future(self._respond(visit))

    async def _respond(self, visit: Visit) -> None:
        if visit.path == JUDGE:
            records = {host: vars(self.record(host)) for host in [*self.hosts]}
            visit.answer(response(json.dumps(records), kind="application/json"))
            return
        await asyncio.sleep(self.latency)
        if visit.path == "/robots.txt":
            visit.answer(response(ROBOTS, kind="text/plain"))
        else:
            visit.answer(await self._page(visit))

    async def _page(self, visit: Visit) -> bytes:
        if visit.path not in self.numbers:
            return response("No such page.", 404, "text/plain")
        return response(page(self.numbers[visit.path], len(self.numbers)))


def names_in(number: int) -> str:
    """The path of a page."""
    return f"/page/{number}" if number else "/"


def page(number: int, pages: int) -> str:
    """The HTML of a page: links down the tree, across it, and back."""
    down = range(BRANCHES * number + 1, BRANCHES * number + BRANCHES + 1)
    across = [(7 * number + 3) % pages, max(number - 1, 0), 0]
    paths = [names_in(target) for target in (*down, *across) if target < pages]
    if number == 0:
        paths.append(FORBIDDEN)
    links = "\n".join(f'<li><a href="{path}">{path}</a></li>' for path in paths)
    return f"<!doctype html>\n<title>Page {number}</title>\n<ul>\n{links}\n</ul>\n"


async def serve(site: ExampleSite) -> None:
    """Serve a site until cancelled."""
    async with site.running():
        line = f"{len(site.numbers)} pages at {site.url}, the records at {site.url}_judge"
        print(line, flush=True)  # noqa: T201  (a program of its own)
        await asyncio.Event().wait()


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description="Serve the example site until Ctrl-C.")
    parser.add_argument("--pages", type=int, default=300, help="number of pages (%(default)s)")
    parser.add_argument(
        "--latency", type=float, default=0.1, help="response time in seconds (%(default)s)"
    )
    parser.add_argument("--port", type=int, default=0, help="0 for any free port (%(default)s)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    options = parser.parse_args()
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(ExampleSite(**vars(options))))


if __name__ == "__main__":
    main()
