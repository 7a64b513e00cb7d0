"""`scrapy cluster`: several nodes on this machine crawl one site together."""

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
    requires_project = True
    requires_crawler_process = False
    default_settings: ClassVar[dict[str, object]] = {"LOG_ENABLED": False}

    def syntax(self) -> str:
        return "[options]"

    def short_desc(self) -> str:
        return "Crawl one site with several nodes, and judge how they did"

    def long_desc(self) -> str:
        return (
            "Crawls the bundled example site, or another one, with several nodes on this machine, "
            "and reports whether they kept to the site's limit. The exit status is 1 if the limit "
            "was passed, a page was missed or fetched twice, a permit is left, or a node failed. "
            "Settings given by -s are the nodes'."
        )

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        # All are text, and empty ones stand for the default: make passes unset variables on.
        options = {
            "--url": "start URLs (default: a bundled example site that counts its visitors)",
            "--nodes": "number of nodes (default: 3)",
            "--limit": "most requests at once, of all nodes together (default: 4)",
            "--latency": "the example site's, milliseconds a page (default: 100)",
            "--pages": "of the example site (default: 300); with --url, the most to ask for",
            "--server": "URL of a Redis server (default: REDIS_URL, else an embedded one)",
        }
        for name, text in options.items():
            parser.add_argument(name, default="", help=text)

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        # Not at the top: Scrapy imports this module for every command.
        from redis import Redis, RedisError
        from rich.console import Console

        from crawler.arguments import SiteArguments
        from crawler.cluster.run import Plan, run
        from semaphore_middleware import SemaphoreError

        if args:
            raise UsageError(f"unexpected {args[0]!r}: all options have names", print_help=False)
        if opts.url:
            _check("--url", lambda: SiteArguments.parse({"url": opts.url}))
        if opts.server:
            _check("--server", lambda: Redis.from_url(opts.server))
        plan = Plan(
            url=opts.url,
            nodes=_number("--nodes", opts.nodes, 3, least=1),
            limit=_number("--limit", opts.limit, 4, least=1),
            latency=_number("--latency", opts.latency, 100, least=0) / 1000,
            pages=_number("--pages", opts.pages, 0, least=1),
            server=opts.server,
            settings=arglist_to_dict(opts.set),
        )
        try:
            self.exitcode = asyncio.run(run(plan, Console()))
        except (SemaphoreError, RedisError) as error:
            print(f"scrapy cluster: {error}", file=sys.stderr)
            self.exitcode = 1
        except KeyboardInterrupt:  # before there are nodes to end
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
        raise UsageError(f"{option} {value}: a whole number from {least}", print_help=False)
    return int(value)
