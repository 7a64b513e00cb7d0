"""`scrapy semaphore limit`: a site's limit, for all nodes, at once."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING, Any

from semaphore_middleware.console.cli.connect import Status, admin_of
from semaphore_middleware.console.cli.pause import print_rule
from semaphore_middleware.console.urls import refuse_url
from semaphore_middleware.model.limits import ALLOWED_RATE, BURST_MAX, parse_rate
from semaphore_middleware.model.rules import NO_RATE
from semaphore_middleware.model.validation import check_integer, check_number

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

LARGEST = 10**9
NUMBERS = "an integer >= 1, or 'none'"
SECONDS = "a number of seconds >= 0"
RATES = f"{ALLOWED_RATE}; or '{NO_RATE}'"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `limit`."""
    parser.description = (
        "Set a site's limit, for all nodes, at once. It wins over what their settings say, takes "
        "no permit away from a request that has one, and outlives the nodes: 'reset' takes it back."
    )
    parser.add_argument("scope", metavar="SCOPE", help="a site's host, or '*.' and a host")
    parser.add_argument(
        "number", metavar="N", help="most requests at once, of all nodes; 'none' for no limit"
    )
    parser.add_argument(
        "--delay", metavar="S", help="seconds from one start to the next (else as it was)"
    )
    parser.add_argument(
        "--rate",
        metavar="R",
        help="starts per s, m, h or d, like 60/m; 'none' for no rate (else as it was)",
    )
    parser.add_argument(
        "--burst",
        metavar="B",
        help="starts at once after a pause, where there is a rate (else as it was)",
    )


def run(settings: BaseSettings, options: argparse.Namespace) -> int:
    """Set the rule, and print what holds from then on."""
    limit: dict[str, Any] = {"concurrency": None}
    if options.number.lower() != "none":
        limit["concurrency"] = check_integer(
            options.number, "N", least=1, most=LARGEST, allowed=NUMBERS, text=True
        )
    if options.delay is not None:
        limit["delay"] = check_number(options.delay, "--delay", allowed=SECONDS, text=True)
    if options.rate is not None:
        limit["rate"] = _rate(options.rate)
    if options.burst is not None:
        limit["burst"] = check_integer(options.burst, "--burst", least=1, most=BURST_MAX, text=True)
    return asyncio.run(_run(settings, options.scope, limit))


def _rate(text: str) -> str | None:
    if text.lower() == NO_RATE:
        return None
    parse_rate(text, "--rate", allowed=RATES)
    return text


async def _run(settings: BaseSettings, scope: str, limit: dict[str, Any]) -> int:
    async with admin_of(settings) as admin:
        await refuse_url(admin, scope)
        await admin.configure(scope, limit)
        await print_rule(admin, scope)
    return Status.DONE
