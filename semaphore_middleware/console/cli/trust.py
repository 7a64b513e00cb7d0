"""`scrapy semaphore trust`: end the wait of a server that is new, or has lost its data."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING

from semaphore_middleware.console.cli.connect import CommandError, Status, admin_of, confirmed
from semaphore_middleware.console.cli.formatting import time_of
from semaphore_middleware.core.admin import Admin
from semaphore_middleware.scrapy.settings import SemaphoreSettings

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

QUESTIONS = (
    "Has every crawl that used this server, or the one before it, ended? [y/N] ",
    "Grant permits at once? [y/N] ",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `trust`."""
    parser.description = (
        "Let a server that is new, or has lost its data, grant permits at once. Otherwise it "
        "first waits until every permit that it may have granted earlier has expired. Use it only "
        "if none of them can still be held: else a site may see more requests than its limit."
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(settings: BaseSettings, options: argparse.Namespace) -> int:
    """Say what may happen, ask twice, and end the wait."""
    admin = admin_of(settings)
    if not options.yes and not sys.stdin.isatty():
        raise CommandError("trust asks on a terminal; elsewhere give --yes", Status.WRONG)
    lease = time_of(SemaphoreSettings.read(settings).lease)
    print(
        f"{admin.server} is to grant permits at once, as if it had granted none before. If a node "
        f"still holds any, a site may see too many requests, for up to one lease ({lease})."
    )
    if not options.yes and not all(map(confirmed, QUESTIONS)):
        print("Nothing was changed.")
        return Status.DECLINED
    asyncio.run(_trust(admin))
    print("Permits are granted from now on.")
    return Status.DONE


async def _trust(admin: Admin) -> None:
    async with admin:
        await admin.trust()
