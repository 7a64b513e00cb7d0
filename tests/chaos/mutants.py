"""Mutants: scripts with one thing wrong, which the chaos suite has to catch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from semaphore_middleware.redis import scripts

Change = tuple[str, str, str]  # in this script, this text, to that text


def _client_clock() -> Change:
    """Each node believes in its own clock, which is off by up to ten seconds."""
    off = os.getpid() * 7919 % 20_000 - 10_000
    time = "local WALL = time[1] * 1000 + math.floor(time[2] / 1000)"
    return "shared/clock", time, f"{time} + {off}"


def _notify_without_granting() -> Change:
    return "shared/promote", "account.has_changed = true", ""


def _the_dead_stay() -> Change:
    return "shared/promote", "if NOW >= scope.due then close_ended_accounts(scope) end", ""


def _statement_not_idempotent() -> Change:
    before = (
        "scope.held, scope.waiting = scope.held - held_by(own), scope.waiting - waiting_at(own)"
    )
    return "sync", before, ""


def _epoch_not_checked() -> Change:
    return "sync", "EPOCH ~= ARGV[3] or ", ""


MUTANTS: Mapping[str, Callable[[], Change]] = {
    "client clock instead of TIME": _client_clock,
    "notify without granting": _notify_without_granting,
    "accounts of the dead left open": _the_dead_stay,
    "statement not idempotent": _statement_not_idempotent,
    "epoch check left out": _epoch_not_checked,
}


def mutate(name: str, script: str, source: str) -> str:
    """This script as the mutant has it."""
    where, text, other = MUTANTS[name]()
    if where != script:
        return source
    assert text in source, f"the mutant {name!r} no longer fits {script}.lua"
    return source.replace(text, other)


def plant(name: str) -> None:
    """Let this process send the mutant from now on. Its place is a node, never a test's process."""
    original = scripts.source_of
    scripts.source_of = lambda file: mutate(name, file, original(file))
