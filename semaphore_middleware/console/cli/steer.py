"""`scrapy semaphore pause`, `resume` and `reset`."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING

from semaphore_middleware.console.cli.connect import Status, answered, session
from semaphore_middleware.console.cli.formatting import clean, held_of, limit_word, set_time
from semaphore_middleware.console.cli.status import look
from semaphore_middleware.core.admin import Admin
from semaphore_middleware.model.hosts import host_within, normal_host, parse_name
from semaphore_middleware.model.inspection import Inspection
from semaphore_middleware.model.rules import Rule

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scope", metavar="SCOPE", help="a site's host, or '*.' and a host")


def run(settings: BaseSettings, options: argparse.Namespace) -> int:
    return asyncio.run(_run(settings, options.verb, options.scope))


async def _run(settings: BaseSettings, verb: str, scope: str) -> int:
    async with session(settings) as semaphore:
        if verb == "pause":
            await answered(semaphore, semaphore.pause(scope))
        else:
            parse_name(scope, f"the limit of {scope!r}")  # a bad name is not an unknown one
            await answered(semaphore, look(semaphore, [scope]))  # there is something to take back
            change = semaphore.resume if verb == "resume" else semaphore.reset
            await answered(semaphore, change(scope))
        await answered(semaphore, say(semaphore, scope))
    return Status.DONE


async def say(semaphore: Admin, scope: str) -> None:
    """Print what is set for a scope or a pattern from now on, and how it is there."""
    is_pattern = scope.startswith("*.")
    name = f"*.{normal_host(scope[2:])}" if is_pattern else await _in_use(semaphore, scope)
    rules = {rule.name: rule for rule in await semaphore.rules()}
    line = f"{clean(name)}: {_words(rules.get(name))}"
    if not is_pattern:
        line += f"; {_state(await semaphore.inspect(name), host_within(name))}"
    print(line)


async def _in_use(semaphore: Admin, scope: str) -> str:
    """A host's name as its requests have it, unless it is no host's and in use as it was written.

    A change has been made for both.
    """
    seen = await semaphore.inspect(scope)
    return scope if seen.holders or seen.waiters else normal_host(scope)


def _words(rule: Rule | None) -> str:
    words: list[str] = []
    if rule is not None:
        if rule.concurrency is not None:
            words.append(f"limit {limit_word(rule.concurrency)}")
        if rule.delay is not None:
            words.append(f"delay {set_time(rule.delay)}")
        if rule.paused is not None:
            words.append("paused" if rule.paused else "not paused")
    return ", ".join(words) or "nothing is set"


def _state(seen: Inspection, host: str | None) -> str:
    if not seen.holders and not seen.waiters:
        hint = f" (a site goes by its host alone: {clean(host)})" if host else ""
        return f"not in use just now{hint}"
    return f"{held_of(seen)} held, {len(seen.waiters):,} waiting"
