"""`scrapy semaphore evict`: give back what a dead node holds, without waiting for its leases."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from semaphore_middleware.console.cli.connect import CommandError, Status, admin_of, confirmed
from semaphore_middleware.console.cli.formatting import count, time_of
from semaphore_middleware.console.snapshot import NodeRow, Snapshot
from semaphore_middleware.model.hosts import clean
from semaphore_middleware.scrapy.settings import SemaphoreSettings

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `evict`."""
    parser.description = (
        "Give back at once what a dead node holds, and drop its waiting requests; by itself that "
        "happens when its leases are over. If the node is alive after all, it "
        "loses its permits at its next renewal, ends their requests, and asks anew; until then a "
        "site may see more requests than its limit."
    )
    parser.add_argument(
        "node", metavar="NODE", help="its name, as 'status --nodes' shows it, or how that begins"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(settings: BaseSettings, options: argparse.Namespace) -> int:
    """Say what the node holds, ask, and give it all back."""
    node = _find(options.node, asyncio.run(_look(settings)).nodes)
    print(_describe(node, SemaphoreSettings.read(settings).lease))
    if not options.yes and not confirmed("Give it all back now? [y/N] "):
        print("Nothing was changed.")
        return Status.DECLINED
    permits, requests = asyncio.run(_evict(settings, node.node))
    print(f"Gave back {count(permits, 'permit')} and dropped {count(requests, 'waiting request')}.")
    return Status.DONE


async def _look(settings: BaseSettings) -> Snapshot:
    async with admin_of(settings) as admin:
        return Snapshot.of(await admin.survey(), ())


async def _evict(settings: BaseSettings, node: str) -> tuple[int, int]:
    async with admin_of(settings) as admin:
        return await admin.evict(node)


def _find(name: str, nodes: Sequence[NodeRow]) -> NodeRow:
    """The node of this name, or the only one whose name begins so. Raises `CommandError`."""
    exact = [row for row in nodes if row.node == name]
    found = exact or [row for row in nodes if name and row.node.startswith(name)]
    if not found:
        raise CommandError(
            f"no node whose name begins with {clean(name)!r} holds or waits for anything; "
            "'status --nodes' shows those that do",
            Status.UNKNOWN,
        )
    if len(found) > 1:
        names = ", ".join(sorted(clean(row.node) for row in found))
        raise CommandError(f"{clean(name)!r} matches several nodes: {names}", Status.WRONG)
    return found[0]


def _describe(node: NodeRow, lease: float) -> str:
    """What it holds, and whether it seems alive: a living node renews within a third of a lease."""
    since = lease - node.lease_left
    life = (
        f"It renewed its leases {time_of(since)} ago, so it may well be alive: then its requests "
        "go on for a while, on top of what others may start."
        if since < lease / 3
        else f"It has renewed no lease for {time_of(since)}: it seems to be dead."
    )
    return (
        f"{clean(node.node)} holds {count(node.held, 'permit')} and has "
        f"{count(node.waiting, 'waiting request')}, at {count(node.scopes, 'site')}. {life}"
    )
