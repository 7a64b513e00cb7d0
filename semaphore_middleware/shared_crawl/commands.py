"""The verbs of `scrapy frontier`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from semaphore_middleware.errors import ServerRefusedError
from semaphore_middleware.link.connection import MissingRightError
from semaphore_middleware.link.text import time_of
from semaphore_middleware.model.hosts import clean
from semaphore_middleware.model.inspection import Finding
from semaphore_middleware.operators.formatting import NOTHING, count
from semaphore_middleware.operators.verbs import (
    CommandError,
    Status,
    Verb,
    address_of,
    admin_of,
    check_installed,
    confirmed,
)
from semaphore_middleware.shared_crawl.client import (
    CrawlLostError,
    Ending,
    OtherRunError,
    OtherVersionError,
    Queued,
    RunOverError,
)
from semaphore_middleware.shared_crawl.crawls import Crawls
from semaphore_middleware.shared_crawl.settings import CrawlSettings, values_of
from semaphore_middleware.shared_crawl.starts import FIELDS

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

    from semaphore_middleware.shared_crawl.counts import Counts
    from semaphore_middleware.shared_crawl.nodes import CrawlNode

CRAWL = "the crawl"


def crawls_of(settings: BaseSettings) -> Crawls:
    """The shared crawls on the server of these settings. Raises what `address_of` raises."""
    url, url_from = address_of(settings)
    names = (
        *("CRAWL_PREFIX", "CRAWL_RECRAWL_AFTER", "CRAWL_RUN"),
        *("SEMAPHORE_REDIS_CREDENTIALS", "SEMAPHORE_REDIS_OPTIONS"),
    )
    return Crawls(CrawlSettings(url, url_from=url_from, **values_of(settings, names)))


def _check_name(name: str) -> None:
    if not name:
        raise CommandError("NAME is empty: allowed is the name of a crawl", Status.WRONG)


# Changes -----------------------------------------------------------------------------------------


def _verb(
    name: str, text: str, description: str = "", *, can_hurry: bool = False, asks: bool = False
) -> Verb:
    """A verb that changes one crawl."""

    def add_options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("name", metavar="NAME", help=CRAWL)
        if can_hurry:
            parser.add_argument("--now", action="store_true", help="drop what is queued")
        if asks:
            parser.add_argument("--yes", action="store_true", help="skip the confirmation")

    def run(settings: BaseSettings, options: argparse.Namespace) -> Status:
        _check_name(options.name)
        crawls = crawls_of(settings)
        if asks and not options.yes:
            print(asyncio.run(_size(crawls, options.name)))
            if not confirmed("Forget it? [y/N] "):
                return Status.DECLINED
        try:
            result = asyncio.run(_change(crawls, name, options))
        except OtherVersionError as error:
            raise CommandError(clean(str(error)), Status.WRONG) from None
        print(f"{clean(options.name)}{result}.")
        return Status.DONE

    return Verb(text, run, add_options, description)


async def _size(crawls: Crawls, name: str) -> str:
    async with crawls.open_crawl(name) as crawl:
        size = await crawl.counts()
    if not size.exists:
        raise _no_crawl(name)
    return (
        f"{clean(name)} is {size.state}: {count(size.nodes, 'node')}, "
        f"{count(size.pages, 'page')} fetched, {count(size.unfinished, 'unfinished request')}."
    )


async def _change(crawls: Crawls, verb: str, options: argparse.Namespace) -> str:
    """Change a crawl, and return the result, to be printed behind the crawl's name."""
    async with crawls.open_crawl(options.name) as crawl:
        match verb:
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


END = _verb(
    "end",
    "end a crawl for all its nodes",
    "End a crawl for all its nodes when all queued requests are done, even if it waits for more "
    "because of CRAWL_WAIT. Nothing more is taken from CRAWL_START_KEY. Like any end, this one is "
    "stored for 30 days.",
    can_hurry=True,
)
DROP = _verb("drop", "end a crawl for all its nodes at once, and forget it", asks=True)
RETRY = _verb(
    "retry",
    "put dead letters and failed requests back into the queues",
    "Put back into the queues the dead letters, which no node could fetch or read; the requests "
    "that have brought no page; and the entries of CRAWL_START_KEY that were not start requests. "
    "If the crawl has ended, the next node goes on with them.",
)

# `status` ----------------------------------------------------------------------------------------


def _add_status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names", metavar="NAME", nargs="*", default=[], help="a crawl (default: all)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _status(settings: BaseSettings, options: argparse.Namespace) -> None:
    for name in options.names:
        _check_name(name)
    crawls = crawls_of(settings)
    if not options.json:
        check_installed("rich")
    found, details = asyncio.run(_read(crawls, options))
    if options.json:
        rows = [
            {"name": name, "state": counts.state, **asdict(counts), **asdict(details[name])}
            for name, counts in found.items()
        ]
        print(json.dumps(rows, indent=2))
        return
    if found:
        _print_table(found)
    else:
        print(f"There is no shared crawl at {clean(f'{crawls.server}, prefix {crawls.prefix!r}')}.")
    for name, details_of_crawl in details.items():
        _print_details(name, details_of_crawl)
    for scope, finding in asyncio.run(_shut_sites(settings)) if found else ():
        text = f"{clean(scope)} is {finding.shut}. {finding.why}"
        print(f"\n{text}; its requests fail until it answers one.")


def _print_table(found: Mapping[str, Counts]) -> None:
    from semaphore_middleware.operators.tables import Column, Output, name, table

    def size(title: str) -> Column[tuple[str, Counts]]:
        return Column(title, lambda row: str(getattr(row[1], title.replace(" ", "_"))))

    columns: list[Column[tuple[str, Counts]]] = [
        name("crawl", lambda row: row[0]),
        Column("state", lambda row: row[1].state, right=False),
        *map(
            size,
            ("nodes", "sites", "queued", "in flight", "pages", "failed", "seen", "dead letters"),
        ),
    ]
    Output().print(table(columns, found.items()))


def _print_details(crawl: str, details: _Details) -> None:
    from semaphore_middleware.operators.tables import Column, Output, name, table

    if details.in_flight_by:
        print()
        columns: list[Column[CrawlNode]] = [
            name("node", lambda row: row.node),
            Column("state", lambda row: row.state, right=False),
            Column("in flight", lambda row: str(row.in_flight)),
            Column(
                "oldest", lambda row: NOTHING if row.oldest_for is None else time_of(row.oldest_for)
            ),
            name("its URL", lambda row: row.oldest),
        ]
        Output().print(table(columns, details.in_flight_by))
    if details.stats:
        print(f"\n{clean(crawl)}, all nodes together:")
        stats = {clean(stat): number for stat, number in details.stats.items()}
        width = max(map(len, stats))
        for stat, number in stats.items():
            print(f"  {stat:{width}}  {number:>12,}")


@dataclass(frozen=True)
class _Details:
    """What `status` shows of a named crawl, and with `--json` of each."""

    in_flight_by: list[CrawlNode]
    stats: dict[str, int]
    """Sums of the nodes' numbers."""


async def _read(
    crawls: Crawls, options: argparse.Namespace
) -> tuple[dict[str, Counts], dict[str, _Details]]:
    """The sizes of crawls, and the details of named ones, or with `--json` of all."""
    found = {} if options.names else await crawls.survey()
    details = {}
    for name in options.names or (found if options.json else ()):
        async with crawls.open_crawl(name) as crawl:
            found[name] = await crawl.counts()
            details[name] = _Details(await crawl.nodes(), await crawl.stats())
        if not found[name].exists:
            raise _no_crawl(name)
    return found, details


async def _shut_sites(settings: BaseSettings) -> list[tuple[str, Finding]]:
    async with admin_of(settings) as admin:
        try:
            sites = await admin.survey()
        except ServerRefusedError as error:  # perhaps this user may see shared crawls only
            text = f"Sites that are down or blocked are not shown: {error}"
            if isinstance(error, MissingRightError):
                text += f"; all keys begin with '{{{admin.prefix}}}'"
            print(f"\n{clean(text)}.")
            return []
    return [(site.scope, each) for site in sites for each in site.findings if each.shut]


STATUS = Verb("show the shared crawls of the server", _status, _add_status)

# `add` -------------------------------------------------------------------------------------------


def _add_add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help=CRAWL)
    parser.add_argument(
        "names", metavar="URL", nargs="*", default=[], help="a page, or a JSON object"
    )
    parser.add_argument("-f", "--file", metavar="FILE", help="a file with one on each line")


def _add(settings: BaseSettings, options: argparse.Namespace) -> None:
    _check_name(options.name)
    crawls = crawls_of(settings)
    found: Counter[Queued] = Counter()
    with _lines(options) as lines:
        try:
            begins = asyncio.run(crawls.add_starts(options.name, lines, settings, found))
        except RunOverError as error:
            before = f"; queued before that: {found[Queued.YES]:,}" if found else ""
            text = f"{_end_of(clean(options.name), error)}{before}"
            raise CommandError(text, Status.WRONG) from None
        except (OtherVersionError, OtherRunError) as error:
            raise CommandError(clean(str(error)), Status.WRONG) from None
        except ValueError as error:
            text = f"{clean(str(error))}; the lines before it are queued"
            raise CommandError(text, Status.WRONG) from None
    known = found[Queued.DUPLICATE]
    left_out = f"; queued before: {known:,}" if known else ""
    print(f"{clean(options.name)}: {count(found[Queued.YES], 'request')} queued{left_out}.")
    if begins:
        print(f"There was no crawl '{clean(options.name)}': it begins with this.")


def _end_of(name: str, error: RunOverError) -> str:
    """The reason why nothing can be added to a run, and what to do."""
    if isinstance(error, CrawlLostError):
        return f"the server has lost the crawl '{name}'; add all lines again"
    return (
        f"the crawl '{name}' has ended; begin it anew with -s CRAWL_RUN=new, or drop it: "
        f"scrapy frontier drop {name}"
    )


def _lines(options: argparse.Namespace) -> AbstractContextManager[Iterable[str]]:
    if options.names and options.file is not None:
        raise CommandError("give URLs or -f FILE, not both", Status.WRONG)
    if options.names:
        return nullcontext(options.names)
    if options.file is None:
        if sys.stdin.isatty():
            print("One URL or JSON object a line; Ctrl-D ends them.", file=sys.stderr)
        return nullcontext(_all_lines(sys.stdin, "standard input"))
    path = Path(options.file)
    try:
        file = path.open(encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{options.file}: {error.strerror}", Status.WRONG) from None
    if path.is_file():
        return file
    with file:
        return nullcontext(_all_lines(file, options.file))


def _all_lines(file: TextIO, name: str) -> list[str]:
    """All lines of the standard input, or of a pipe, however slowly they come."""
    try:
        return file.readlines()
    except UnicodeDecodeError as error:
        raise CommandError(f"{name}: {error}; nothing is queued", Status.WRONG) from None


ADD = Verb(
    "queue start requests for a crawl",
    _add,
    _add_add,
    "Queue start requests for a crawl, which may not have begun yet: URLs, or JSON objects "
    f"with {', '.join(FIELDS)}; from the command line, a file or standard input, where '#' begins "
    "a comment line. Requests that were queued before are left out.",
)


def _no_crawl(name: str) -> CommandError:
    return CommandError(f"there is no crawl '{clean(name)}'", Status.UNKNOWN)
