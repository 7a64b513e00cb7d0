"""`scrapy frontier`: shows the shared crawls of a server, drops them, puts requests back."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING, ClassVar

from scrapy.commands import ScrapyCommand

from semaphore_middleware.model.hosts import clean

if TYPE_CHECKING:
    from semaphore_middleware.frontier.counts import Counts
    from semaphore_middleware.frontier.crawls import Crawls

# Scrapy imports this module for each of its own commands, so what takes long is imported later.

EXIT_STATUSES = (
    "Exit status: 0 done; 2 a value is not allowed; 3 the server cannot be reached, refuses, or "
    "has no address; 4 there is no such crawl."
)
VERBS = ("status", "drop", "retry")
COLUMNS = ("crawl", "state", "nodes", "sites", "queued", "taken", "pages", "seen", "set aside")


class Command(ScrapyCommand):
    """The command that Scrapy finds by its entry point."""

    requires_project = False
    requires_crawler_process = False
    default_settings: ClassVar[dict[str, object]] = {"LOG_ENABLED": False}

    def syntax(self) -> str:
        return "status [NAME ...] | drop NAME | retry NAME"

    def short_desc(self) -> str:
        return "See the crawls that many nodes share, drop one, put requests back"

    def long_desc(self) -> str:
        return (
            "status shows the crawls of the server REDIS_URL, without it of the semaphore's: how "
            "many nodes take part, how many sites have queued requests, and how many requests are "
            "queued, taken by nodes, and set aside because three nodes have failed with them. drop "
            "ends a crawl for all its nodes and forgets it. retry puts the requests that were set "
            "aside back into the queues; if the crawl has ended, the next node goes on with it. "
            f"{EXIT_STATUSES}"
        )

    def run(self, args: list[str], _opts: argparse.Namespace) -> None:
        from semaphore_middleware.errors import SemaphoreError, SettingsError

        verb, names = (args or ["status"])[0], args[1:]
        if mistake := _mistake(verb, names):
            self._fail(f"{mistake}; see scrapy frontier -h", 2)
            return
        try:
            self.exitcode = asyncio.run(self._run(verb, names))
        except SettingsError as error:
            self._fail(str(error), 2)
        except SemaphoreError as error:
            self._fail(str(error), 3)

    async def _run(self, verb: str, names: list[str]) -> int:
        from semaphore_middleware.frontier.client import DEFAULT_PREFIX, server_of
        from semaphore_middleware.frontier.crawls import Crawls
        from semaphore_middleware.redis import embedded

        assert self.settings is not None  # Scrapy has set it
        url, url_from = server_of(self.settings)
        if (url := url or embedded.find()) is None:
            return self._fail(
                "no server's address is given (REDIS_URL or SEMAPHORE_REDIS_URL, in the settings, "
                "by -s, or in the environment), and no embedded server runs",
                3,
            )
        crawls = Crawls(url, self.settings.get("CRAWL_PREFIX", DEFAULT_PREFIX), url_from)
        if verb == "status":
            return await self._status(crawls, names)
        return await self._change(crawls, verb, names[0])

    async def _status(self, crawls: Crawls, names: list[str]) -> int:
        found = {} if names else await crawls.survey()
        for name in names:
            if (counts := await crawls.counts(name)) is None:
                return self._no_crawl(name)
            found[name] = counts
        if not found:
            where = f"{crawls.server}, prefix {crawls.prefix!r}"
            print(f"There is no shared crawl at {clean(where)}.")
            return 0
        _print_table([COLUMNS, *(_row(name, counts) for name, counts in found.items())])
        return 0

    async def _change(self, crawls: Crawls, verb: str, name: str) -> int:
        if verb == "drop":
            if not await crawls.drop(name):
                return self._no_crawl(name)
            print(f"{clean(name)} is dropped.")
        else:
            if (count := await crawls.retry(name)) is None:
                return self._no_crawl(name)
            queued = "1 request is" if count == 1 else f"{count} requests are"
            print(f"{clean(name)}: {queued} queued again.")
        return 0

    def _no_crawl(self, name: str) -> int:
        return self._fail(f"there is no crawl {name!r}", 4)

    def _fail(self, text: str, status: int) -> int:
        print(f"scrapy frontier: {text}", file=sys.stderr)
        self.exitcode = status
        return status


def _mistake(verb: str, names: list[str]) -> str | None:
    """What is wrong with the arguments, as argparse says it."""
    if verb not in VERBS:
        choices = ", ".join(map(repr, VERBS))
        return f"argument <verb>: invalid choice: {verb!r} (choose from {choices})"
    if verb == "status" or len(names) == 1:
        return None
    if not names:
        return "the following arguments are required: NAME"
    return f"unrecognized arguments: {clean(' '.join(names[1:]))}"


def _row(name: str, counts: Counts) -> tuple[str, ...]:
    numbers = (
        *(counts.nodes, counts.sites, counts.queued, counts.taken),
        *(counts.pages, counts.seen, counts.set_aside),
    )
    return (clean(name), counts.state, *map(str, numbers))


def _print_table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *others = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join((first, *others)).rstrip())
