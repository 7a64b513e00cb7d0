"""`scrapy semaphore pause`, `resume` and `reset`."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING

from semaphore_middleware.console.cli.connect import Status, admin_of
from semaphore_middleware.console.cli.formatting import held_of, limit_word, set_time
from semaphore_middleware.console.cli.status import look_at
from semaphore_middleware.console.snapshot import RuleRow, ScopeRow
from semaphore_middleware.console.urls import refuse_url
from semaphore_middleware.core.admin import Admin
from semaphore_middleware.model.hosts import clean, host_within, is_pattern, normal_name, parse_name
from semaphore_middleware.model.inspection import Inspection

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of each of the three."""
    parser.add_argument("scope", metavar="SCOPE", help="a site's host, or '*.' and a host")


def run(settings: BaseSettings, options: argparse.Namespace) -> int:
    """Change the rule, and print what holds from then on."""
    return asyncio.run(_run(settings, options.verb, options.scope))


async def _run(settings: BaseSettings, verb: str, scope: str) -> int:
    async with admin_of(settings) as admin:
        if verb == "pause":
            await refuse_url(admin, scope)
            await admin.pause(scope)
        else:
            parse_name(scope, f"the limit of {scope!r}")  # a bad name is not an unknown one
            await look_at(admin, [scope])  # raises an error if there is nothing to take back
            await (admin.resume(scope) if verb == "resume" else admin.reset(scope))
        await print_rule(admin, scope)
    return Status.DONE


async def print_rule(admin: Admin, scope: str) -> None:
    """Print what is set for a scope or a pattern from now on, and how many permits are held."""
    if is_pattern(scope):
        name = normal_name(scope)
        print(f"{clean(name)}: {await _rule(admin, name)}")
        return
    seen = await _in_use(admin, scope)
    print(f"{clean(seen.scope)}: {await _rule(admin, seen.scope)}; {_usage(seen)}")


async def _in_use(admin: Admin, scope: str) -> Inspection:
    """The scope in the spelling that is in use: as it was written, else as a host's URLs have it.

    A change is made for both.
    """
    seen = await admin.inspect(scope)
    name = normal_name(scope)
    return seen if seen.members or name == scope else await admin.inspect(name)


async def _rule(admin: Admin, name: str) -> str:
    rule = await admin.rule(name)
    words: list[str] = []
    if rule is not None:
        row = RuleRow.of(rule)
        if rule.concurrency is not None:
            words.append(f"limit {limit_word(row.limit, row.unlimited)}")
        if row.delay is not None:
            words.append(f"delay {set_time(row.delay)}")
        if row.rate is not None:
            words.append(f"rate {row.rate}")
        if row.burst is not None:
            words.append(f"burst {row.burst}")
        if row.paused is not None:
            words.append("paused" if row.paused else "not paused")
    return ", ".join(words) or "nothing is set"


def _usage(seen: Inspection) -> str:
    if not seen.members:
        host = host_within(seen.scope)
        hint = f" (a site goes by its host alone: {clean(host)})" if host else ""
        return f"not in use just now{hint}"
    return f"{held_of(ScopeRow.of(seen))} held, {seen.waiting:,} waiting"
