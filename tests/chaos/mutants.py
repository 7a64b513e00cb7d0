"""Mutants: scripts with one thing wrong, which the chaos suite has to catch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from semaphore_middleware.redis import scripts

Change = tuple[str, str, str]  # in this script, this text, to that text


def _client_clock() -> list[Change]:
    """Each node believes in its own clock, which is off by up to ten seconds."""
    off = os.getpid() * 7919 % 20_000 - 10_000
    time = "local WALL = time[1] * 1000 + math.floor(time[2] / 1000)"
    return [("shared/clock", time, f"{time} + {off}")]


def _notify_without_granting() -> list[Change]:
    return [("shared/promote", "redis.call('ZADD', scope.held, unpack(members))", "")]


def _the_dead_stay() -> list[Change]:
    head = "local function drop_the_dead(scope)\n"
    return [("shared/promote", head, f"{head}  do return end\n")]


def _acquire_not_idempotent() -> list[Change]:
    return [("acquire", "if held[i] then", "if false then")]


def _epoch_not_checked() -> list[Change]:
    """A missing epoch is none of another life either."""
    missing = "if not clock then wall, clock, from, expires = WALL, WALL, 0, 0 end\n  "
    epoch = "local epoch = {{ known = {} }}"
    return [("shared/prelude", epoch.format("life == LIFE"), missing + epoch.format("true"))]


MUTANTS: Mapping[str, Callable[[], list[Change]]] = {
    "client clock instead of TIME": _client_clock,
    "notify without granting": _notify_without_granting,
    "eviction of the dead left out": _the_dead_stay,
    "acquire not idempotent": _acquire_not_idempotent,
    "epoch check left out": _epoch_not_checked,
}


def mutate(name: str, script: str, source: str) -> str:
    """This script as the mutant has it."""
    for where, text, other in MUTANTS[name]():
        if where == script:
            assert text in source, f"the mutant {name!r} no longer fits {script}.lua"
            source = source.replace(text, other)
    return source


def plant(name: str) -> None:
    """Let this process send the mutant from now on. Its place is a node, never a test's process."""
    original = scripts.source_of
    scripts.source_of = lambda file: mutate(name, file, original(file))
