"""The verbs of `scrapy semaphore` for changes."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from semaphore_middleware.console.cli.commands import CommandError, Status
from semaphore_middleware.console.cli.connect import admin_of
from semaphore_middleware.console.cli.formatting import count, held_of, rule_words, time_of
from semaphore_middleware.console.cli.status import look_at
from semaphore_middleware.console.snapshot import NodeRow, RuleRow, ScopeRow, Snapshot
from semaphore_middleware.console.urls import refuse_url
from semaphore_middleware.core.admin import Admin
from semaphore_middleware.model.hosts import clean, host_within, is_pattern, normal_name, parse_name
from semaphore_middleware.model.inspection import Inspection
from semaphore_middleware.model.limits import ALLOWED_RATE, BURST_MAX, parse_rate
from semaphore_middleware.model.rules import NO_RATE
from semaphore_middleware.model.validation import check_integer, check_number
from semaphore_middleware.scrapy.settings import value_of

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

LARGEST = 10**9
DESCRIPTIONS = {
    "limit": "Set a site's limit, for all nodes, at once. It wins over what their settings say, "
    "takes no permit away from a request that has one, and outlives the nodes: 'reset' takes it "
    "back.",
    "evict": "Give back at once what a dead node holds, and drop its waiting requests; by itself "
    "that happens when its leases are over. If the node is alive after all, it loses its permits "
    "at its next renewal, ends their requests, and asks anew; until then a site may see more "
    "requests than its limit.",
    "trust": "Let a server that is new, or has lost its data, grant permits at once. Otherwise it "
    "first waits until every permit that it may have granted earlier has expired. Use it only if "
    "none of them can still be held: else a site may see more requests than its limit.",
}
OPTIONS = (
    ("--delay", "S", "seconds from one start to the next (else as it was)"),
    ("--rate", "R", "starts per s, m, h or d, like 60/m; 'none' for no rate (else as it was)"),
    ("--burst", "B", "starts at once after a pause, where there is a rate (else as it was)"),
)
"""Of `limit`."""
TRUST_QUESTIONS = (
    "Has every crawl that used this server, or the one before it, ended? [y/N] ",
    "Grant permits at once? [y/N] ",
)


def add_options(parser: argparse.ArgumentParser, verb: str) -> None:
    """Declare the options of a verb."""
    parser.description = DESCRIPTIONS.get(verb, parser.description)
    if verb in ("evict", "trust"):
        if verb == "evict":
            name = "its name, as 'status --nodes' shows it, or how that begins"
            parser.add_argument("node", metavar="NODE", help=name)
        parser.add_argument("--yes", action="store_true", help="do not ask")
        return
    parser.add_argument("scope", metavar="SCOPE", help="a site's host, or '*.' and a host")
    if verb == "limit":
        most = "most requests at once, of all nodes; 'none' for no limit"
        parser.add_argument("number", metavar="N", help=most)
        for name, letter, text in OPTIONS:
            parser.add_argument(name, metavar=letter, help=text)


def run(settings: BaseSettings, options: argparse.Namespace) -> int:
    """Make the change, and print the result."""
    if options.verb == "evict":
        return _evict(settings, options)
    if options.verb == "trust":
        return _trust(settings, options)
    limit = _limit(options) if options.verb == "limit" else {}
    asyncio.run(_change(settings, options.verb, options.scope, limit))
    return Status.DONE


# A site's rule -----------------------------------------------------------------------------------


def _limit(options: argparse.Namespace) -> dict[str, Any]:
    """The parts of the limit given in the options."""
    limit: dict[str, Any] = {"concurrency": None}
    if options.number.lower() != "none":
        allowed = "an integer >= 1, or 'none'"
        limit["concurrency"] = check_integer(
            options.number, "N", least=1, most=LARGEST, allowed=allowed, text=True
        )
    if options.delay is not None:
        allowed = "a number of seconds >= 0"
        limit["delay"] = check_number(options.delay, "--delay", allowed=allowed, text=True)
    if options.rate is not None:
        limit["rate"] = None if options.rate.lower() == NO_RATE else options.rate
        if limit["rate"] is not None:
            parse_rate(options.rate, "--rate", allowed=f"{ALLOWED_RATE}; or '{NO_RATE}'")
    if options.burst is not None:
        limit["burst"] = check_integer(options.burst, "--burst", least=1, most=BURST_MAX, text=True)
    return limit


async def _change(settings: BaseSettings, verb: str, scope: str, limit: dict[str, Any]) -> None:
    async with admin_of(settings) as admin:
        if verb in ("limit", "pause"):
            await refuse_url(admin, scope)
            await (admin.configure(scope, limit) if limit else admin.pause(scope))
        else:
            parse_name(scope, f"the limit of {scope!r}")  # a bad name is not an unknown one
            await look_at(admin, [scope])  # raises an error if there is nothing to take back
            await (admin.resume(scope) if verb == "resume" else admin.reset(scope))
        await _print_rule(admin, scope)


async def _print_rule(admin: Admin, scope: str) -> None:
    """Print the new rule of a scope or a pattern, and a scope's permits and waiting requests."""
    name, usage = normal_name(scope), ""
    if not is_pattern(scope):
        # A change is made for both spellings: as it was written, and as a host's URLs have it.
        seen = await admin.inspect(scope)
        if not seen.members and name != scope:
            seen = await admin.inspect(name)
        name, usage = seen.scope, f"; {_usage(seen)}"
    rule = await admin.rule(name)
    print(f"{clean(name)}: {rule_words(RuleRow.of(rule) if rule else None)}{usage}")


def _usage(seen: Inspection) -> str:
    if not seen.members:
        host = host_within(seen.scope)
        hint = f" (a site goes by its host alone: {clean(host)})" if host else ""
        return f"not in use just now{hint}"
    return f"{held_of(ScopeRow.of(seen))} held, {seen.waiting:,} waiting"


# A dead node, a new server -----------------------------------------------------------------------


def _evict(settings: BaseSettings, options: argparse.Namespace) -> int:
    """Print the node's permits and waiting requests, ask, and give them all back."""
    node = _find(options.node, asyncio.run(_look(settings)).nodes)
    print(_describe(node, value_of("SEMAPHORE_LEASE", settings)))
    if not options.yes and not _confirmed("Give it all back now? [y/N] "):
        print("Nothing was changed.")
        return Status.DECLINED
    permits, requests = asyncio.run(_give_back(settings, node.node))
    print(f"Gave back {count(permits, 'permit')} and dropped {count(requests, 'waiting request')}.")
    return Status.DONE


async def _look(settings: BaseSettings) -> Snapshot:
    async with admin_of(settings) as admin:
        return Snapshot.of(await admin.survey(), ())


async def _give_back(settings: BaseSettings, node: str) -> tuple[int, int]:
    async with admin_of(settings) as admin:
        return await admin.evict(node)


def _find(name: str, nodes: Sequence[NodeRow]) -> NodeRow:
    """The node of this name, or the only one whose name begins with it. Raises `CommandError`."""
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
    """A node's permits and signs of life: a living node renews within a third of a lease."""
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


def _trust(settings: BaseSettings, options: argparse.Namespace) -> int:
    """Print the risk, ask twice, and end the wait."""
    admin = admin_of(settings)
    if not options.yes and not sys.stdin.isatty():
        raise CommandError("trust asks on a terminal; elsewhere give --yes", Status.WRONG)
    lease = time_of(value_of("SEMAPHORE_LEASE", settings))
    print(
        f"{admin.server} is to grant permits at once, as if it had granted none before. If a node "
        f"still holds any, a site may see too many requests, for up to one lease ({lease})."
    )
    if not options.yes and not all(map(_confirmed, TRUST_QUESTIONS)):
        print("Nothing was changed.")
        return Status.DECLINED
    asyncio.run(_grant_at_once(admin))
    print("Permits are granted from now on.")
    return Status.DONE


async def _grant_at_once(admin: Admin) -> None:
    async with admin:
        await admin.trust()


def _confirmed(question: str) -> bool:
    """Ask; True if the answer is yes."""
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False
