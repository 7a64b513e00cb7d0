"""`scrapy semaphore status`: who holds permits, who waits, and which limits hold, just now."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from semaphore_middleware.console.cli.commands import CommandError, Status, check_installed
from semaphore_middleware.console.cli.connect import admin_of
from semaphore_middleware.console.names import check_name
from semaphore_middleware.console.snapshot import ORDERS, Choice, Snapshot
from semaphore_middleware.core.admin import Admin
from semaphore_middleware.model.hosts import clean, normal_name
from semaphore_middleware.model.inspection import Inspection
from semaphore_middleware.model.rules import Rule
from semaphore_middleware.model.validation import check_choice, check_integer

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings


def add_options(parser: argparse.ArgumentParser, _verb: str) -> None:
    """Declare the options of `status`."""
    parser.add_argument(
        "names",
        metavar="SCOPE",
        nargs="*",
        help="a site's host, or '*.' and a host for all below it; shows its nodes, too",
    )
    parser.add_argument("--json", action="store_true", help="for machines; see docs/commands.md")
    parser.add_argument(
        "--nodes", action="store_true", help="sum up by node, over all scopes shown"
    )
    add_choice(parser)
    parser.add_argument("--top", metavar="N", help="the first N of each table")


def add_choice(parser: argparse.ArgumentParser) -> None:
    """Declare the options that choose scopes and nodes, and their order."""
    text = "only scopes and nodes with this in their names, and who is with them"
    parser.add_argument("--filter", metavar="TEXT", default="", help=text)
    text = "only where requests wait"
    parser.add_argument("--waiting", action="store_true", help=text)
    text = f"{', '.join(ORDERS)}: most of that first (default: waiting); host: by name"
    parser.add_argument("--sort", metavar="ORDER", default="waiting", help=text)


def choice_of(options: argparse.Namespace, top: str | None = None) -> Choice:
    """What was chosen by these options. Raises `SettingsError`."""
    order = check_choice(options.sort, "--sort", ORDERS, allowed="waiting, held, wait or host")
    most = None if top is None else check_integer(top, "--top", least=1, text=True)
    return Choice(options.filter, order, options.waiting, most)


def run(settings: BaseSettings, options: argparse.Namespace) -> None:
    """Print the server's state, as tables or as JSON."""
    if not options.json:
        check_installed("rich", " (status --json does not)")
    choice = choice_of(options, options.top)
    admin = admin_of(settings)
    snapshot = asyncio.run(_run(admin, options.names)).chosen(choice)
    if options.json:
        print(json.dumps(snapshot.as_json(), indent=2))
    else:
        from semaphore_middleware.console.cli.tables import show

        where = f"{admin.server}, prefix {admin.prefix!r}"
        show(snapshot, where, members=bool(options.names), nodes=options.nodes)


async def _run(admin: Admin, names: Sequence[str]) -> Snapshot:
    async with admin:
        if names:
            return await look_at(admin, names)
        seen, rules = await admin.survey(), await admin.rules()
        return Snapshot.of(seen, rules, server=await admin.server_state())


async def look_at(admin: Admin, names: Sequence[str]) -> Snapshot:
    """The scopes of these names, and the operators' rules for them.

    Raises `CommandError` for an unknown name, and `SettingsError` for an unknown URL.
    """
    rules = await admin.rules()
    seen: dict[str, Inspection] = {}
    for name in names:
        pattern = Rule(normal_name(name), by="")
        if pattern.is_pattern:
            found = [one for one in await admin.survey() if pattern.fits(one.scope)]
        else:
            found = await _of(admin, name)
        if not found and pattern.name not in [rule.name for rule in rules]:
            await check_name(admin, "status", name)
            raise CommandError(f"nothing is known of {clean(name)!r}", Status.UNKNOWN)
        seen.update((one.scope, one) for one in found)
    asked = {*names, *seen}
    fitting = [rule for rule in rules if any(rule.fits(name) for name in asked)]
    return Snapshot.of(seen.values(), fitting, server=await admin.server_state())


async def _of(admin: Admin, name: str) -> list[Inspection]:
    """The known scopes of this name: as it was written, and as the URLs of a host's requests
    spell it.
    """
    spellings = dict.fromkeys((name, normal_name(name)))
    return [one for s in spellings if _is_known(one := await admin.inspect(s))]


def _is_known(seen: Inspection) -> bool:
    """True if the scope is in use, is remembered, or has a rule."""
    numbers = (seen.limit, seen.next_start, seen.backoff_left, seen.backoff_last)
    return any((*numbers, seen.down_for, seen.paused, seen.set_by, seen.members))
