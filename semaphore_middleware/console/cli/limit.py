"""`scrapy semaphore limit`: a site's limit, for all nodes, at once."""

from __future__ import annotations

import argparse
import asyncio
import math
from typing import TYPE_CHECKING, Any

from semaphore_middleware.console.cli.connect import CommandError, Status, answered, session
from semaphore_middleware.console.cli.steer import say

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Set a site's limit, for all nodes, at once. It wins over what their settings say, takes "
        "nothing from who holds a permit, and outlives the nodes: 'reset' takes it back."
    )
    parser.add_argument("scope", metavar="SCOPE", help="a site's host, or '*.' and a host")
    parser.add_argument(
        "number", metavar="N", help="most requests at once, of all nodes; 'none' for no limit"
    )
    parser.add_argument(
        "--delay", metavar="S", help="seconds from one start to the next (else as it was)"
    )


def run(settings: BaseSettings, options: argparse.Namespace) -> int:
    limit: dict[str, Any] = {"concurrency": _number(options.number)}
    if options.delay is not None:
        limit["delay"] = _seconds(options.delay)
    return asyncio.run(_run(settings, options.scope, limit))


async def _run(settings: BaseSettings, scope: str, limit: dict[str, Any]) -> int:
    async with session(settings) as semaphore:
        await answered(semaphore, semaphore.configure(scope, limit))
        await answered(semaphore, say(semaphore, scope))
    return Status.DONE


def _number(text: str) -> int | None:
    if text.lower() == "none":
        return None
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= 10**9:
        raise CommandError(f"N = {text!r}: allowed is an integer >= 1, or 'none'", Status.WRONG)
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
        if not 0 <= seconds < math.inf:
            raise ValueError
    except ValueError:
        raise CommandError(
            f"--delay {text}: allowed is a number of seconds >= 0", Status.WRONG
        ) from None
    return seconds
