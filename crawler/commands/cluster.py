"""The command `scrapy cluster`: several nodes on this machine crawl one site together."""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from collections.abc import Callable
from typing import ClassVar

from scrapy.commands import ScrapyCommand
from scrapy.exceptions import UsageError
from scrapy.utils.conf import arglist_to_dict


class Command(ScrapyCommand):
    """`scrapy cluster`, as Scrapy runs it."""

    requires_project = True
    requires_crawler_process = False
    default_settings: ClassVar[dict[str, object]] = {"LOG_ENABLED": False}

    def syntax(self) -> str:
        return "[options]"

    def short_desc(self) -> str:
        return "Crawl one site with several nodes and check that they kept its limit"

    def long_desc(self) -> str:
        return (
            "Crawl the bundled example site, or another one, with several nodes on this machine, "
            "and report whether they kept to the site's limit. The exit status is 1 if the limit "
            "was exceeded, a page was missed or fetched twice, a permit was not given back, or a "
            "node failed; with --url also if the site refused a request (429, 503), answered one "
            "with another error, or did not respond. Settings given with -s apply to the nodes."
        )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        # All are text, and an empty one means the default: `make crawl` passes unset variables.
        # No text has a colon: where a line ends with one, Scrapy takes it for a heading.
        options = {
            "--url": "start URLs (default the bundled example site, which counts requests)",
            "--nodes": "number of nodes (default 3)",
            "--limit": "requests at once, all nodes together (default 4)",
            "--latency": "of the example site, milliseconds per page (default 100)",
            "--pages": "of the example site (default 300), or to fetch at most from --url",
            "--server": "URL of a Redis server (default REDIS_URL, else an embedded one)",
        }
        for name, text in options.items():
            parser.add_argument(name, default="", help=text)

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        # Imported here, because Scrapy imports this module for every command.
        from rich.console import Console

        from crawler.arguments import SiteArguments
        from crawler.cluster.run import Plan, run
        from semaphore_middleware import SemaphoreError
        from shared_crawl import CrawlClient, CrawlSettings

        if args:
            raise UsageError(f"unexpected argument {args[0]!r}", print_help=False)
        if opts.url:
            _check("--url", lambda: SiteArguments.parse({"url": opts.url}))
        if opts.server:
            _check("--server", lambda: CrawlClient(CrawlSettings(opts.server)))
        plan = Plan(
            url=opts.url,
            nodes=_number("--nodes", opts.nodes, Plan.nodes, least=1),
            limit=_number("--limit", opts.limit, Plan.limit, least=1),
            latency=_number("--latency", opts.latency, round(1000 * Plan.latency), least=0) / 1000,
            pages=_number("--pages", opts.pages, Plan.pages, least=1),
            server=opts.server,
            settings=arglist_to_dict(opts.set),
        )
        try:
            self.exitcode = asyncio.run(run(plan, Console()))
        except SemaphoreError as error:
            print(f"scrapy cluster: {error}", file=sys.stderr)
            self.exitcode = 1
        except KeyboardInterrupt:  # before there are nodes to stop
            self.exitcode = 130


def _check(option: str, check: Callable[[], object]) -> None:
    try:
        check()
    except ValueError as error:
        raise UsageError(f"{option}: {error}", print_help=False) from None


def _number(option: str, value: str, default: int, least: int) -> int:
    value = value.strip()
    if not value:
        return default
    if not re.fullmatch(r"[0-9]{1,9}", value) or int(value) < least:
        raise UsageError(
            f"{option} {value}: a whole number from {least} is allowed", print_help=False
        )
    return int(value)
