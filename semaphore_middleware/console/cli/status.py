"""`scrapy semaphore status`: who holds permits, who waits, and which limits hold, just now."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from semaphore_middleware.console.cli.connect import (
    CommandError,
    Status,
    answered,
    check_rich,
    session,
)
from semaphore_middleware.console.cli.formatting import clean
from semaphore_middleware.console.snapshot import as_json, is_known
from semaphore_middleware.core.admin import Admin
from semaphore_middleware.model.hosts import normal_host
from semaphore_middleware.model.inspection import Inspection
from semaphore_middleware.model.rules import Rule

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "scopes",
        metavar="SCOPE",
        nargs="*",
        help="a site's host, or '*.' and a host for all below it; shows each permit, too",
    )
    parser.add_argument("--json", action="store_true", help="for machines; see docs/commands.md")
    parser.add_argument("--nodes", action="store_true", help="sum up by node")


def run(settings: BaseSettings, options: argparse.Namespace) -> int:
    if not options.json:
        check_rich()
    seen, rules = asyncio.run(_look(settings, options.scopes))
    if options.json:
        print(json.dumps(as_json(seen, rules), indent=2))
    else:
        from semaphore_middleware.console.cli.tables import show

        show(seen, rules, members=bool(options.scopes), nodes=options.nodes)
    return Status.DONE


async def _look(
    settings: BaseSettings, names: Sequence[str]
) -> tuple[list[Inspection], list[Rule]]:
    async with session(settings) as semaphore:
        return await answered(semaphore, look(semaphore, names))


async def look(semaphore: Admin, names: Sequence[str] = ()) -> tuple[list[Inspection], list[Rule]]:
    """The scopes of these names, or all, and the rules that operators have set for them.

    Raises `CommandError` for a name of which nothing is known.
    """
    rules = await semaphore.rules()
    if not names:
        return await semaphore.survey(), rules
    seen: dict[str, Inspection] = {}
    for name in names:
        pattern = Rule(f"*.{normal_host(name[2:])}", by="")
        found = await (_below(semaphore, pattern) if name[:2] == "*." else _of(semaphore, name))
        if not found and pattern.name not in [rule.name for rule in rules]:
            raise CommandError(f"nothing is known of {clean(name)!r}", Status.UNKNOWN)
        seen.update((one.scope, one) for one in found)
    asked = {*names, *seen}
    fitting = [rule for rule in rules if any(rule.fits(name) for name in asked)]
    return list(seen.values()), fitting


async def _below(semaphore: Admin, pattern: Rule) -> list[Inspection]:
    return [one for one in await semaphore.survey() if pattern.fits(one.scope)]


async def _of(semaphore: Admin, name: str) -> list[Inspection]:
    """As it was written; and, should it be a host, as the URLs of its requests have it."""
    spellings = dict.fromkeys((name, normal_host(name)))
    return [one for s in spellings if is_known(one := await semaphore.inspect(s))]
