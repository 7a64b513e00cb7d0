"""`make crawl`: several nodes on this machine crawl one site together, and are judged.

The exit status is 1 if the limit was exceeded, a page was missed or fetched twice, a permit was not
given back, or a node failed; with --url also if the site refused a request (429, 503), answered one
with another error, or did not respond.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import re
import sys
from collections.abc import Callable
from urllib.parse import urlsplit

from rich.console import Console

from lab.demo.run import Plan, run
from semaphore_middleware import SemaphoreError


def parser() -> argparse.ArgumentParser:
    """Of the options. An empty one means its default: make passes variables that are not set."""
    layout = argparse.RawDescriptionHelpFormatter
    options = argparse.ArgumentParser("python -m lab.demo", None, __doc__, formatter_class=layout)
    latency = round(1000 * Plan.latency)
    for name, read, text in (
        ("--url", _url, "site to crawl (default: the example site, which counts requests)"),
        ("--nodes", _number(1, Plan.nodes), f"number of nodes (default: {Plan.nodes})"),
        ("--limit", _number(1, Plan.limit), f"requests at once (default: {Plan.limit})"),
        ("--latency", _number(0, latency), f"of the example site, ms a page (default: {latency})"),
        ("--pages", _number(1, 0), "of the example site (default: 300); most to fetch from --url"),
    ):
        options.add_argument(name, type=read, default="", help=text)
    options.add_argument(
        *("-s", "--set"),
        type=_setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the nodes",
    )
    return options


def _url(text: str) -> str:
    parts = urlsplit(text)
    if text and not (parts.scheme in ("http", "https") and parts.hostname):
        raise argparse.ArgumentTypeError(f"{text!r} does not begin with http:// or https://")
    return text


def _number(least: int, default: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text:
            return default
        if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text}: a whole number from {least} is allowed")
        return int(text)

    return read


def _setting(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def main() -> int:
    """Run as the command line says, and return the exit status."""
    given = parser().parse_args()
    plan = Plan(
        url=given.url,
        nodes=given.nodes,
        limit=given.limit,
        latency=given.latency / 1000,
        pages=given.pages,
        settings=dict(given.set),
    )
    logging.getLogger().addHandler(logging.NullHandler())  # the nodes' logs have it, too
    try:
        return asyncio.run(run(plan, Console()))
    except SemaphoreError as error:
        sys.exit(f"lab.demo: {error}")
    except KeyboardInterrupt:  # before there are nodes to stop
        return 130


if __name__ == "__main__":
    sys.exit(main())
