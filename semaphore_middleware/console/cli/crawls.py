"""The verbs of `scrapy frontier`."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from semaphore_middleware.console.cli.commands import CommandError, Status, check_installed
from semaphore_middleware.console.cli.connect import crawls_of
from semaphore_middleware.console.cli.formatting import count
from semaphore_middleware.model.hosts import clean

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

    from semaphore_middleware.frontier.crawls import Crawls
    from semaphore_middleware.frontier.state import Counts


def add_options(parser: argparse.ArgumentParser, verb: str) -> None:
    """Declare the options of a verb."""
    if verb == "status":
        parser.add_argument("names", metavar="NAME", nargs="*", help="a crawl (else all)")
        return
    parser.add_argument("name", metavar="NAME", help="the crawl")
    if verb == "retry":
        parser.description = (
            "Put the requests that were set aside, because three nodes have failed with them, back "
            "into the queues. If the crawl has ended, the next node goes on with it."
        )


def run(settings: BaseSettings, options: argparse.Namespace) -> int:
    """Show crawls, or change one."""
    crawls = crawls_of(settings)
    if options.verb == "status":
        check_installed("rich")
        _print(crawls, asyncio.run(_counts(crawls, options.names)))
    elif options.verb == "drop":
        if not asyncio.run(crawls.drop(options.name)):
            raise _no_crawl(options.name)
        print(f"{clean(options.name)} is dropped.")
    else:
        if (number := asyncio.run(crawls.retry(options.name))) is None:
            raise _no_crawl(options.name)
        queued = f"{count(number, 'request')} {'is' if number == 1 else 'are'} queued again"
        print(f"{clean(options.name)}: {queued}.")
    return Status.DONE


async def _counts(crawls: Crawls, names: Sequence[str]) -> dict[str, Counts]:
    if not names:
        return await crawls.survey()
    found = {}
    for name in names:
        if (counts := await crawls.counts(name)) is None:
            raise _no_crawl(name)
        found[name] = counts
    return found


def _no_crawl(name: str) -> CommandError:
    return CommandError(f"there is no crawl '{clean(name)}'", Status.UNKNOWN)


def _print(crawls: Crawls, found: dict[str, Counts]) -> None:
    from semaphore_middleware.console.cli.tables import show_crawls

    if found:
        show_crawls(found)
    else:
        where = clean(f"{crawls.server}, prefix {crawls.prefix!r}")
        print(f"There is no shared crawl at {where}.")
