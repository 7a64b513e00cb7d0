"""The verbs of `scrapy frontier`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from semaphore_middleware.console.cli.commands import CommandError, Status, check_installed
from semaphore_middleware.console.cli.connect import crawls_of
from semaphore_middleware.console.cli.formatting import count
from semaphore_middleware.frontier.client import CrawlEndedError, Ending, Queued
from semaphore_middleware.frontier.starts import FIELDS
from semaphore_middleware.model.hosts import clean

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

    from semaphore_middleware.frontier.crawls import Crawls
    from semaphore_middleware.frontier.state import Counts


DESCRIPTIONS = {
    "add": "Queue start requests for a crawl, which may not have begun yet: URLs, or JSON objects "
    f"with {', '.join(FIELDS)}; from the command line, a file, or else standard input, where '#' "
    "begins a comment line. Those that were queued before are left out.",
    "end": "End a crawl for all its nodes when what is queued is done: also one that waits for "
    "more because of CRAWL_WAIT. That it has ended is known for 30 days, as at any end.",
    "retry": "Put back into the queues the requests that were set aside, because three nodes have "
    "failed with them, and those that have brought no page. If the crawl has ended, the next node "
    "goes on with it.",
}


def add_options(parser: argparse.ArgumentParser, verb: str) -> None:
    """Declare the options of a verb."""
    if verb == "status":
        parser.add_argument("names", metavar="NAME", nargs="*", help="a crawl (else all)")
        parser.add_argument("--json", action="store_true", help="print JSON")
        return
    parser.description = DESCRIPTIONS.get(verb, parser.description)
    parser.add_argument("name", metavar="NAME", help="the crawl")
    if verb == "add":
        parser.add_argument("names", metavar="URL", nargs="*", help="a page, or a JSON object")
        parser.add_argument("-f", "--file", metavar="FILE", help="a file with one on each line")
    elif verb == "end":
        parser.add_argument("--now", action="store_true", help="drop what is queued")


def run(settings: BaseSettings, options: argparse.Namespace) -> None:
    """Show crawls, or change one."""
    if "" in (options.names if options.verb == "status" else [options.name]):
        raise CommandError("NAME is empty: allowed is the name of a crawl", Status.WRONG)
    crawls = crawls_of(settings)
    if options.verb == "status":
        _status(crawls, options)
    elif options.verb == "add":
        _add(settings, crawls, options)
    else:
        print(f"{clean(options.name)}{asyncio.run(_change(crawls, options))}.")


async def _change(crawls: Crawls, options: argparse.Namespace) -> str:
    """Change a crawl; what has become of it, to be put behind its name."""
    async with crawls.of(options.name) as crawl:
        match options.verb:
            case "end":
                ending = await crawl.end(options.now)
                if ending is Ending.NO_RUN:
                    text = f"no run of '{clean(options.name)}' is under way"
                    raise CommandError(text, Status.UNKNOWN)
                is_over = ending is Ending.NOW
                return " has ended" if is_over else " ends when all that is queued is done"
            case "drop" if await crawl.drop():
                return " is dropped"
            case "retry" if (number := await crawl.retry()) is not None:
                requests = f"{count(number, 'request')} {'is' if number == 1 else 'are'}"
                return f": {requests} queued again"
    raise _no_crawl(options.name)


def _status(crawls: Crawls, options: argparse.Namespace) -> None:
    if not options.json:
        check_installed("rich")
    found, stats = asyncio.run(_look(crawls, options))
    if options.json:
        rows = [
            {"name": name, "state": counts.state, **asdict(counts), "stats": stats[name]}
            for name, counts in found.items()
        ]
        print(json.dumps(rows, indent=2))
        return
    if found:
        from semaphore_middleware.console.cli.tables import show_crawls

        show_crawls(found)
    else:
        print(f"There is no shared crawl at {clean(f'{crawls.server}, prefix {crawls.prefix!r}')}.")
    for name, numbers in stats.items():
        if not numbers:
            continue
        print(f"\n{clean(name)}, all nodes together:")
        width = max(map(len, numbers))
        for stat, number in numbers.items():
            print(f"  {stat:{width}}  {number:>12,}")


async def _look(
    crawls: Crawls, options: argparse.Namespace
) -> tuple[dict[str, Counts], dict[str, dict[str, int]]]:
    """Sizes, and what nodes have counted: that of crawls that are named, and in JSON."""
    found = {} if options.names else await crawls.survey()
    stats = {}
    for name in options.names or (found if options.json else ()):
        async with crawls.of(name) as crawl:
            found[name] = await crawl.counts()
            stats[name] = await crawl.stats()
        if not found[name].exists:
            raise _no_crawl(name)
    return found, stats


def _add(settings: BaseSettings, crawls: Crawls, options: argparse.Namespace) -> None:
    with _lines(options) as lines:
        try:
            found = asyncio.run(crawls.add(options.name, lines, settings))
        except CrawlEndedError:
            name = clean(options.name)
            raise CommandError(
                f"the crawl '{name}' has ended; begin it anew with -s CRAWL_RUN=new, or drop it: "
                f"scrapy frontier drop {name}",
                Status.WRONG,
            ) from None
        except ValueError as error:
            text = f"{clean(str(error))}; what stood before is queued"
            raise CommandError(text, Status.WRONG) from None
    known = found[Queued.DUPLICATE]
    left_out = f"; {known:,} were queued before" if known else ""
    print(f"{clean(options.name)}: {count(found[Queued.YES], 'request')} queued{left_out}.")


def _lines(options: argparse.Namespace) -> AbstractContextManager[Iterable[str]]:
    if options.names and options.file is not None:
        raise CommandError("give URLs or -f FILE, not both", Status.WRONG)
    if options.names:
        return nullcontext(options.names)
    if options.file is None:
        return nullcontext(sys.stdin)
    try:
        return Path(options.file).open(encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{options.file}: {error.strerror}", Status.WRONG) from None


def _no_crawl(name: str) -> CommandError:
    return CommandError(f"there is no crawl '{clean(name)}'", Status.UNKNOWN)
