"""The verbs of `scrapy semaphore` for changes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from semaphore_middleware.console.cli.commands import CommandError, Status
from semaphore_middleware.console.cli.connect import admin_of, do_with_admin
from semaphore_middleware.console.cli.formatting import (
    count,
    held_of,
    names_of,
    rule_words,
    time_of,
)
from semaphore_middleware.console.cli.status import look_at
from semaphore_middleware.console.names import check_name
from semaphore_middleware.console.snapshot import NodeRow, Snapshot
from semaphore_middleware.core.admin import Admin
from semaphore_middleware.errors import SettingsError
from semaphore_middleware.model.hosts import EVERY, clean, is_pattern, normal_name, parse_name
from semaphore_middleware.model.limits import ALLOWED_RATE, BURST_MAX, parse_rate
from semaphore_middleware.model.rules import NO_RATE
from semaphore_middleware.model.validation import check_integer, check_number
from semaphore_middleware.scrapy.settings import value_of

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

NONE = "none"  # in place of a number or a rate
DESCRIPTIONS = {
    "limit": "Set a site's limit, for all nodes, at once: N, or some of the options; what is not "
    "given stays as it was. It wins over what the nodes' settings say, takes no permit away from a "
    "request that has one, and outlives the nodes: 'reset' takes it back.",
    "share": "Set the weight of a job (SEMAPHORE_JOB), or of a group, the part of names before a "
    "slash, for all nodes, at once. It wins over what their settings say, and outlives the nodes. "
    "Without a weight: show the one that is set.",
    "evict": "Give back at once what a dead node holds, and drop its waiting requests; by itself "
    "that happens when its leases are over. If the node is alive after all, it loses its permits "
    "at its next renewal, ends their requests, and asks anew; until then a site may see more "
    "requests than its limit.",
    "trust": "Let a server that is new, or has lost its data, grant permits at once. Otherwise it "
    "first waits until every permit that it may have granted earlier has expired. Use it only if "
    "none of them can still be held: else a site may see more requests than its limit.",
}
SCOPE = "a site's host, or '*.' and a host"
ALL = {
    "pause": "all sites, whatever is set for one of them",
    "resume": "take back 'pause --all'; what is paused by itself stays so",
    "reset": "every rule, after a question; what sites' answers have taught stays",
}
TRUST_QUESTIONS = (
    "Has every crawl that used this server, or the one before it, ended? [y/N] ",
    "Grant permits at once? [y/N] ",
)


def _concurrency(text: str, where: str) -> int | None:
    if text.lower() == NONE:
        return None
    allowed = "an integer >= 1, or 'none'"
    return check_integer(text, where, least=1, most=10**9, allowed=allowed, text=True)


def _rate(text: str, where: str) -> str | None:
    if text.lower() == NONE:
        return None
    parse_rate(text, where, allowed=f"{ALLOWED_RATE}; or '{NONE}'")
    return text


OPTIONS: Mapping[str, tuple[str, str, Callable[[str, str], Any]]] = {
    "delay": (
        "S",
        "seconds from one start to the next",
        partial(check_number, allowed="a number of seconds >= 0", text=True),
    ),
    "jitter": (
        "J",
        "share of the delay by which it varies either way: 0 to 1",
        partial(check_number, most=1, text=True),
    ),
    "rate": ("R", "starts per s, m, h or d, like 60/m; 'none' for no rate", _rate),
    "burst": (
        "B",
        "starts at once after a pause, where there is a rate",
        partial(check_integer, least=1, most=BURST_MAX, text=True),
    ),
}
"""The parts of a limit: each option's letter, help and check."""


def add_options(parser: argparse.ArgumentParser, verb: str) -> None:
    """Declare the options of a verb."""
    parser.description = DESCRIPTIONS.get(verb, parser.description)
    if verb == "limit":
        most = f"{SCOPE}; and the most requests at once, of all nodes ('{NONE}' for no limit)"
        parser.add_argument("names", metavar="SCOPE [N]", nargs="+", help=most)
        for name, (letter, text, _) in OPTIONS.items():
            parser.add_argument(f"--{name}", metavar=letter, help=text)
        text = "let the number follow the site's answers, up to N"
        parser.add_argument("--adaptive", action=argparse.BooleanOptionalAction, help=text)
    elif verb in ALL:
        parser.add_argument("scope", metavar="SCOPE", nargs="?", help=SCOPE)
        parser.add_argument("--all", action="store_true", help=ALL[verb])
    elif verb == "share":
        parser.add_argument("job", metavar="JOB", help="a job's name, or a group's")
        parser.add_argument("weight", metavar="W", nargs="?", help="a number, like 3 or 0.5")
        parser.add_argument("--reset", action="store_true", help="use the nodes' settings again")
    elif verb == "evict":
        text = "its name, as 'status --nodes' shows it, or how that begins"
        parser.add_argument("node", metavar="NODE", help=text)
    if verb in ("reset", "evict", "trust"):
        parser.add_argument("--yes", action="store_true", help="do not ask")


def run(settings: BaseSettings, options: argparse.Namespace) -> Status | None:
    """Make the change, and print the result."""
    verb = options.verb
    if verb in ("evict", "trust"):
        return (_evict if verb == "evict" else _trust)(settings, options)
    if verb == "share":
        return do_with_admin(settings, lambda admin: _share(admin, options))
    name, limit = _limit(options) if verb == "limit" else (options.scope, {})
    if verb in ALL and options.all == (name is not None):
        raise CommandError(f"{verb} takes either SCOPE or --all", Status.WRONG)
    if name is not None:
        return do_with_admin(settings, lambda admin: _change(admin, verb, name, limit))
    if verb == "reset" and (rules := do_with_admin(settings, Admin.rules)):
        names = names_of([rule.name for rule in rules])
        print(f"{count(len(rules), 'rule')} will be removed: {names}.")
        if not options.yes and not _confirmed("Go on? [y/N] "):
            return Status.DECLINED
    return do_with_admin(settings, lambda admin: _change_all(admin, verb))


# Rules -------------------------------------------------------------------------------------------


async def _change(admin: Admin, verb: str, name: str, limit: Mapping[str, Any]) -> None:
    """Change the rule of a scope or a pattern, and print it."""
    await check_name(admin, verb, name, "--all")
    parse_name(name, f"the limit of {name!r}")  # a bad name is not an unknown one
    if verb == "limit":
        if "burst" in limit:
            await _check_burst(admin, name, limit)
        await admin.configure(name, limit)
    elif verb == "pause":
        await admin.pause(name)
    else:
        await look_at(admin, [name])  # raises an error if there is nothing to take back
        await (admin.resume(name) if verb == "resume" else admin.reset(name))
    await _print_rule(admin, name)


def _limit(options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """The scope, and the given parts of its limit."""
    name, *numbers = options.names
    if len(numbers) > 1:
        raise CommandError(f"unexpected {clean(numbers[1])!r}", Status.WRONG)
    limit: dict[str, Any] = {}
    if numbers:
        limit["concurrency"] = _concurrency(numbers[0], "N")
    for part, (_, _, check) in OPTIONS.items():
        if (text := getattr(options, part)) is not None:
            limit[part] = check(text, f"--{part}")
    if options.adaptive is not None:
        limit["adaptive"] = options.adaptive
    if not limit:
        raise CommandError(f"limit {clean(name)}: give N, or an option", Status.WRONG)
    return name, limit


async def _check_burst(admin: Admin, name: str, limit: Mapping[str, Any]) -> None:
    """Raise `SettingsError` for a burst unless a rate is given with it, or is in force."""
    if "rate" in limit:
        rate = limit["rate"]
    else:
        rule = await admin.rule(name)
        rate = rule.rate if rule and rule.rate else (await admin.inspect(name)).rate
    if rate in (None, NO_RATE):
        raise SettingsError(f"--burst {limit['burst']}: it needs a rate; give --rate too")


async def _change_all(admin: Admin, verb: str) -> None:
    """Change the rule for every scope, or remove all rules, and print what holds then."""
    await {"pause": admin.pause, "resume": admin.resume, "reset": admin.reset}[verb](EVERY)
    snapshot = Snapshot.of(await admin.survey(), await admin.rules())
    rule, totals = await admin.rule(EVERY), snapshot.totals
    print(f"all sites: {rule_words(rule)}; {totals.held:,} held, {totals.waiting:,} waiting")
    paused = [rule.name for rule in snapshot.rules if rule.paused]
    if paused and verb == "resume":
        print(f"Paused by themselves, and still so: {names_of(paused)}.")


async def _share(admin: Admin, options: argparse.Namespace) -> None:
    """Set or unset a job's weight, or neither, and print the one that is set."""
    if options.reset and options.weight is not None:
        raise CommandError("share takes a weight or --reset, not both", Status.WRONG)
    if options.reset or options.weight is not None:
        await admin.share(options.job, options.weight)
    weight = (await admin.weights()).get(options.job)
    words = "as its nodes' settings say" if weight is None else f"{weight:g}, for all nodes"
    print(f"{clean(options.job)}: weight {words}")


async def _print_rule(admin: Admin, scope: str) -> None:
    """Print the new rule of a scope or a pattern, and a scope's permits and waiting requests."""
    name, usage = normal_name(scope), ""
    if not is_pattern(scope):
        # A change is made for both spellings: as it was written, and as a host's URLs have it.
        seen = await admin.inspect(scope)
        if not seen.members and name != scope:
            seen = await admin.inspect(name)
        name, usage = seen.scope, "; not in use just now"
        if seen.members:
            usage = f"; {held_of(seen)} held, {seen.waiting:,} waiting"
    print(f"{clean(name)}: {rule_words(await admin.rule(name))}{usage}")


# A dead node, a new server -----------------------------------------------------------------------


def _evict(settings: BaseSettings, options: argparse.Namespace) -> Status:
    """Print the node's permits and waiting requests, ask, and give them all back."""
    node = _find(options.node, Snapshot.of(do_with_admin(settings, Admin.survey), ()).nodes)
    print(_describe(node, value_of("SEMAPHORE_LEASE", settings)))
    if not options.yes and not _confirmed("Give it all back now? [y/N] "):
        return Status.DECLINED
    permits, requests = do_with_admin(settings, lambda admin: admin.evict(node.node))
    print(f"Gave back {count(permits, 'permit')} and dropped {count(requests, 'waiting request')}.")
    return Status.DONE


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


def _trust(settings: BaseSettings, options: argparse.Namespace) -> Status:
    """Print the risk, ask twice, and end the wait."""
    server = admin_of(settings).server
    if not options.yes and not sys.stdin.isatty():
        raise CommandError("trust asks on a terminal; elsewhere give --yes", Status.WRONG)
    lease = time_of(value_of("SEMAPHORE_LEASE", settings))
    print(
        f"{server} is to grant permits at once, as if it had granted none before. If a node still "
        f"holds any, a site may see too many requests, for up to one lease ({lease})."
    )
    if not options.yes and not all(map(_confirmed, TRUST_QUESTIONS)):
        return Status.DECLINED
    do_with_admin(settings, Admin.trust)
    print("Permits are granted from now on.")
    return Status.DONE


def _confirmed(question: str) -> bool:
    """Ask; True if the answer is yes. Else say that nothing was changed."""
    try:
        is_yes = input(question).strip().lower() in ("y", "yes")
    except EOFError:
        print()
        is_yes = False
    if not is_yes:
        print("Nothing was changed.")
    return is_yes
