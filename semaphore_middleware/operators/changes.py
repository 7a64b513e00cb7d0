"""The verbs of `scrapy semaphore` for changes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from semaphore_middleware.errors import SemaphoreError, SettingsError
from semaphore_middleware.link.text import time_of
from semaphore_middleware.model.hosts import EVERY, clean, domain_hint, is_pattern, parse_name
from semaphore_middleware.model.inspection import Inspection, ServerState
from semaphore_middleware.model.limits import NONE, PARTS
from semaphore_middleware.model.settings import value_of
from semaphore_middleware.model.validation import check_integer
from semaphore_middleware.operators.admin import Admin
from semaphore_middleware.operators.formatting import (
    count,
    held_of,
    names_of,
    rule_words,
)
from semaphore_middleware.operators.snapshot import NodeRow, Snapshot, check_name, look_at
from semaphore_middleware.operators.verbs import (
    CommandError,
    Status,
    Verb,
    admin_of,
    confirmed,
    do_with_admin,
)

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

SCOPE = "a site's host, or '*.' and a host"
TRUST_QUESTIONS = (
    "Has every crawl that used this server, or the one before it, ended? [y/N] ",
    "Grant permits at once? [y/N] ",
)

# `limit` -----------------------------------------------------------------------------------------


def _concurrency(text: str, where: str) -> int | None:
    if text.lower() == NONE:
        return None
    allowed = "an integer from 1 to 1e9, or 'none'"
    return check_integer(text, where, least=1, most=10**9, allowed=allowed, text=True)


OPTIONS = [part for part in PARTS if part.help]
"""The parts of a limit with an option; its number has none."""


def _add_limit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scope", metavar="SCOPE", help=SCOPE)
    text = f"maximum number of requests at once, over all nodes ('{NONE}' for no limit)"
    parser.add_argument("number", metavar="N", nargs="?", help=text)
    for part in OPTIONS:
        how: dict[str, Any] = {"metavar": part.letter}
        if not part.letter:
            how = {"action": argparse.BooleanOptionalAction}
        parser.add_argument(f"--{part.name}", help=part.help, **how)


def _run_limit(settings: BaseSettings, options: argparse.Namespace) -> None:
    parts = _given_parts(options)
    do_with_admin(settings, lambda admin: _change(admin, "limit", options.scope, parts))


def _given_parts(options: argparse.Namespace) -> dict[str, Any]:
    """The given parts of a limit."""
    limit: dict[str, Any] = {}
    if options.number is not None:
        limit["concurrency"] = _concurrency(options.number, "N")
    for part in OPTIONS:
        if (given := getattr(options, part.name)) is not None:
            allowed = part.allowed.replace("None", repr(NONE))
            limit[part.name] = part.check(given, f"--{part.name}", allowed=allowed, text=True)
    if not limit:
        raise CommandError(f"limit {clean(options.scope)}: give N, or an option", Status.WRONG)
    return limit


async def _check_needed_part(admin: Admin, name: str, limit: Mapping[str, Any]) -> None:
    """Raise `SettingsError` for a burst unless a rate is given with it, or is effective."""
    for part in PARTS:
        if not part.needs_it or part.name not in limit:
            continue
        if part.of in limit:
            needed = limit[part.of]
        else:
            rule = await admin.rule(name)
            needed = rule.limit.get(part.of) if rule else None
            needed = needed or getattr((await admin.inspect(name)).effective, part.of)
        if needed in (None, NONE):
            raise SettingsError(
                f"--{part.name} {limit[part.name]}: it needs a {part.of}; give --{part.of} too"
            )


LIMIT = Verb(
    "set a site's limit, for all nodes, at once",
    _run_limit,
    _add_limit,
    "Set a site's limit, for all nodes, at once: N, or some of the options; parts that are not "
    "given stay as they were. It overrides the nodes' settings, takes no permit away from a "
    "request that has one, and outlives the nodes; 'reset' removes it.",
)

# Rules -------------------------------------------------------------------------------------------


def _run_rule(verb: str, settings: BaseSettings, options: argparse.Namespace) -> Status | None:
    """Change the rule of one scope or of all, and print the result."""
    if options.all == (options.scope is not None):
        raise CommandError(f"{verb} takes either SCOPE or --all", Status.WRONG)
    if not options.all:
        return do_with_admin(settings, lambda admin: _change(admin, verb, options.scope, {}))
    if verb == "reset" and (rules := do_with_admin(settings, Admin.rules)):
        names = names_of([rule.name for rule in rules])
        print(f"{count(len(rules), 'rule')} will be removed: {names}.")
        if not options.yes and not confirmed("Go on? [y/N] "):
            return Status.DECLINED
    return do_with_admin(settings, lambda admin: _change_all(admin, verb))


async def _change(admin: Admin, verb: str, name: str, limit: Any) -> None:
    """Change the rule of a scope or a pattern, and print it."""
    await check_name(admin, verb, name, "--all")
    name = parse_name(name, f"the limit of {name!r}")  # an invalid name is not reported as unknown
    if hint := domain_hint(name):
        print(f"scrapy semaphore: {hint}", file=sys.stderr)
    if verb == "limit":
        await _check_needed_part(admin, name, limit)
        await admin.configure(name, limit)
    elif verb == "pause":
        await admin.pause(name)
    else:
        await look_at(admin, [name])  # raises an error if there is nothing to take back
        await (admin.resume(name) if verb == "resume" else admin.reset(name))
    with _after(f"{verb} {clean(name)}", "the result"):
        await _print_rule(admin, name)


async def _change_all(admin: Admin, verb: str) -> None:
    """Change the rule for every scope, or remove all rules, and print the result."""
    await {"pause": admin.pause, "resume": admin.resume, "reset": admin.reset}[verb](EVERY)
    done = f"{verb} --all"
    with _after(done, "the result"):
        rules = await admin.rules()
        line = f"all sites: {rule_words(next((r for r in rules if r.name == EVERY), None))}"
        with _after(done, "the totals"):  # needs rights that the change does not
            totals = Snapshot.of(await admin.survey(), rules).totals
            line += f"; {totals.held:,} held, {totals.waiting:,} waiting"
        print(line)
        paused = [rule.name for rule in rules if rule.paused]
        if paused and verb == "resume":
            print(f"Still paused individually: {names_of(paused)}.")


@contextmanager
def _after(change: str, what: str) -> Iterator[None]:
    """For what is only read after a change: if that fails, the change is done all the same."""
    try:
        yield
    except SemaphoreError as error:
        text = f"{change} is done, but {what} cannot be shown: {error}"
        print(f"scrapy semaphore: {text}", file=sys.stderr)


async def _print_rule(admin: Admin, name: str) -> None:
    """Print the new rule of a scope or a pattern, and a scope's permits and waiting requests."""
    usage = ""
    if not is_pattern(name):
        seen = await admin.inspect(name)
        usage = "; not in use just now"
        if seen.members:
            usage = f"; {held_of(seen)} held, {seen.waiting:,} waiting"
    print(f"{clean(name)}: {rule_words(await admin.rule(name))}{usage}")


def _rule_verb(verb: str, text: str, of_all: str) -> Verb:
    """A verb for the rule of one scope, or of all."""

    def add_options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("scope", metavar="SCOPE", nargs="?", help=SCOPE)
        parser.add_argument("--all", action="store_true", help=of_all)
        if verb == "reset":
            parser.add_argument("--yes", action="store_true", help="skip the confirmation")

    return Verb(text, partial(_run_rule, verb), add_options)


PAUSE = _rule_verb(
    "pause",
    "let no request start at a site, until 'resume'",
    "all sites, even those that were resumed individually",
)
RESUME = _rule_verb(
    "resume",
    "end a pause, or the backoff of a site that refused a request",
    "take back 'pause --all'; sites paused individually stay paused",
)
RESET = _rule_verb(
    "reset",
    "take back what 'limit', 'pause' and 'resume' have set",
    "every rule, after a confirmation; what was learned from sites' answers stays",
)


# A dead node, a new server -----------------------------------------------------------------------


def _add_evict(parser: argparse.ArgumentParser) -> None:
    text = "the node's name as 'status --nodes' shows it, or how it begins"
    parser.add_argument("node", metavar="NODE", help=text)
    parser.add_argument("--yes", action="store_true", help="skip the confirmation")


def _evict(settings: BaseSettings, options: argparse.Namespace) -> Status:
    """Print the node's permits and waiting requests, ask for confirmation, and evict it."""
    seen, server = do_with_admin(settings, _look)
    node = _find(options.node, Snapshot.of(seen, ()).nodes)
    print(_describe(node, value_of("SEMAPHORE_LEASE", settings), server.silent_for))
    if not options.yes and not confirmed("Give it all back now? [y/N] "):
        return Status.DECLINED
    permits, requests = do_with_admin(settings, lambda admin: admin.evict(node.node))
    print(f"Gave back {count(permits, 'permit')} and dropped {count(requests, 'waiting request')}.")
    return Status.DONE


async def _look(admin: Admin) -> tuple[list[Inspection], ServerState]:
    return await admin.survey(), await admin.server_state()


EVICT = Verb(
    "give back what a dead node holds, without waiting for its leases",
    _evict,
    _add_evict,
    "Give back a dead node's permits at once, and drop its waiting requests; without this, that "
    "happens when its leases end. A node that is still alive loses its permits at its next "
    "renewal, ends their requests, and asks again; until then a site may see more requests than "
    "its limit.",
)


def _find(name: str, nodes: Sequence[NodeRow]) -> NodeRow:
    """The node with this name, or the only one whose name begins with it. Raises `CommandError`."""
    exact = [row for row in nodes if row.node == name]
    found = exact or [row for row in nodes if name and row.node.startswith(name)]
    if not found:
        raise CommandError(
            f"no node whose name begins with {clean(name)!r} holds a permit or waits; "
            "'status --nodes' lists the nodes",
            Status.UNKNOWN,
        )
    if len(found) > 1:
        names = ", ".join(sorted(clean(row.node) for row in found))
        raise CommandError(f"{clean(name)!r} matches several nodes: {names}", Status.WRONG)
    return found[0]


def _describe(node: NodeRow, lease: float, silent_for: float) -> str:
    """A node's permits, and whether it seems to be alive: a live node renews within a third of a
    lease. While no node calls, the leases' clock stands still.
    """
    since = max(lease - node.lease_left, silent_for)
    liveness = (
        f"It renewed its leases {time_of(since)} ago, so it may be alive. If it is, its "
        "requests go on for a while, on top of those that other nodes may start."
        if since < lease / 3
        else f"It has renewed no lease for {time_of(since)}: it seems to be dead."
    )
    return (
        f"{clean(node.node)} holds {count(node.held, 'permit')} and has "
        f"{count(node.waiting, 'waiting request')}, at {count(node.scopes, 'site')}. {liveness}"
    )


def _trust(settings: BaseSettings, options: argparse.Namespace) -> Status:
    """Print the risk, ask twice, and end the wait."""
    server = admin_of(settings).server
    if not options.yes and not sys.stdin.isatty():
        raise CommandError(
            "trust asks for confirmation, which needs a terminal; without one, give --yes",
            Status.WRONG,
        )
    lease = time_of(value_of("SEMAPHORE_LEASE", settings))
    print(
        f"{server} will grant permits at once, as if it had granted none before. If a node still "
        f"holds any, a site may see too many requests, for up to one lease ({lease})."
    )
    if not options.yes and not all(map(confirmed, TRUST_QUESTIONS)):
        return Status.DECLINED
    do_with_admin(settings, Admin.trust)
    print("Permits are granted from now on.")
    return Status.DONE


TRUST = Verb(
    "let a server that is new, or has lost its data, grant at once",
    _trust,
    lambda parser: parser.add_argument("--yes", action="store_true", help="skip the confirmation"),
    "Let a server that is new, or has lost its data, grant permits at once. Otherwise it first "
    "waits until every permit that it may have granted earlier has expired. Use it only if none "
    "of them can still be held: otherwise a site may see more requests than its limit.",
)
