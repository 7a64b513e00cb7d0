"""Mutants: nodes with one thing wrong, in a script or elsewhere, for the chaos suite to catch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from semaphore_middleware.core.account import Account
from semaphore_middleware.core.permit import Permit
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


SCRIPT_MUTANTS: Mapping[str, Callable[[], Change]] = {
    "client clock instead of TIME": _client_clock,
    "notify without granting": _notify_without_granting,
    "accounts of the dead left open": _the_dead_stay,
    "statement not idempotent": _statement_not_idempotent,
    "epoch check left out": _epoch_not_checked,
}


def _transfers_go_on() -> None:
    """A transfer does not end with its permit."""
    setattr(Permit, "end_with_loss", lambda *_: None)  # noqa: B010


def _ends_not_noted() -> None:
    """An account never hears that the transfers of its lost permits have ended."""
    release = Account.release

    def forgetful(account: Account, permit: Permit) -> None:
        if not permit.lost:
            release(account, permit)

    setattr(Account, "release", forgetful)  # noqa: B010


NODE_MUTANTS: Mapping[str, Callable[[], None]] = {
    "transfers outlive their permits": _transfers_go_on,
    "ends of lost permits not noted": _ends_not_noted,
}


def mutate(name: str, script: str, source: str) -> str:
    """This script as the mutant has it."""
    where, text, other = SCRIPT_MUTANTS[name]()
    if where != script:
        return source
    assert text in source, f"the mutant {name!r} no longer fits {script}.lua"
    return source.replace(text, other)


def plant(name: str) -> None:
    """Let this process be the mutant from now on. Its place is a node, never a test's process."""
    if name in NODE_MUTANTS:
        NODE_MUTANTS[name]()
        return
    original = scripts.source_of
    scripts.source_of = lambda file: mutate(name, file, original(file))
