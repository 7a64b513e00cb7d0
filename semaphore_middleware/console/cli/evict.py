"""`scrapy semaphore evict`: give back what a dead node holds, without waiting for its leases."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from semaphore_middleware.console.cli.connect import CommandError, Status, answered, session
from semaphore_middleware.console.cli.formatting import clean, count, time_of
from semaphore_middleware.console.snapshot import NodeSum, by_node
from semaphore_middleware.model.inspection import Inspection
from semaphore_middleware.scrapy.settings import SemaphoreSettings

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Give back now what a node holds that is known to be dead, and its places in line; by "
        "itself that happens when its leases are over. A node that lives after all loses its "
        "permits at its next renewal and ends their requests, to ask anew; until then a site may "
        "see more than its limit."
    )
    parser.add_argument(
        "node", metavar="NODE", help="its name, as 'status --nodes' shows it, or how that begins"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(settings: BaseSettings, options: argparse.Namespace) -> int:
    node = the_one(options.node, by_node(asyncio.run(_survey(settings))))
    print(what_it_has(node, SemaphoreSettings.read(settings).lease))
    if not options.yes and not _confirmed("Give it all back now? [y/N] "):
        print("Nothing was changed.")
        return Status.DECLINED
    permits, places = asyncio.run(_evict(settings, node.node))
    print(f"Gave back {count(permits, 'permit')} and {count(places, 'place')} in line.")
    return Status.DONE


async def _survey(settings: BaseSettings) -> list[Inspection]:
    async with session(settings) as semaphore:
        return await answered(semaphore, semaphore.survey())


async def _evict(settings: BaseSettings, node: str) -> tuple[int, int]:
    async with session(settings) as semaphore:
        return await answered(semaphore, semaphore.evict(node))


def the_one(name: str, nodes: Sequence[NodeSum]) -> NodeSum:
    """The node of this name, or the only one whose name begins so."""
    exact = [one for one in nodes if one.node == name]
    found = exact or [one for one in nodes if name and one.node.startswith(name)]
    if not found:
        raise CommandError(
            f"no node whose name begins with {clean(name)!r} holds or waits for anything",
            Status.UNKNOWN,
        )
    if len(found) > 1:
        names = ", ".join(sorted(clean(one.node) for one in found))
        raise CommandError(f"{clean(name)!r} is how several begin: {names}", Status.WRONG)
    return found[0]


def what_it_has(node: NodeSum, lease: float) -> str:
    """And whether it seems to be alive: the living renew before a third of a lease is over."""
    since = lease - node.lease_left
    life = (
        f"It renewed its leases {time_of(since)} ago, so it may well be alive: then its requests "
        "go on for a while, on top of what others may start."
        if since < lease / 3
        else f"It has renewed no lease for {time_of(since)}: it seems to be dead."
    )
    return (
        f"{clean(node.node)} holds {count(len(node.holders), 'permit')} and has "
        f"{count(len(node.waiters), 'place')} in line, of {count(len(node.scopes), 'site')}. {life}"
    )


def _confirmed(question: str) -> bool:
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False
