"""The Lua scripts: which files make which script, and how the server runs them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from hashlib import sha1
from importlib import resources
from typing import Any

from redis.exceptions import NoScriptError

from semaphore_middleware.redis.connection import Connection

CLOCK = ("shared/clock",)
RULES = (*CLOCK, "shared/site")
GRANTING = (*CLOCK, *(f"shared/{part}" for part in ("prelude", "site", "scope", "line", "promote")))

VERBS = ("acquire", "release", "renew", "report")
SCRIPTS = {  # each with its files, in their order
    "begin_epoch": (*CLOCK, "begin_epoch"),
    "inspect": (*RULES, "inspect"),
    "forgive": (*CLOCK, "forgive"),
    "acquire": (*GRANTING, "acquire"),
    "release": (*GRANTING, "release"),
    "renew": (*GRANTING, "renew"),
    "report": (*GRANTING, "shared/adaptive", "shared/answers", "report"),
}


async def evaluate(
    connection: Connection, calls: Sequence[tuple[Any, ...]], first_apart: bool = False
) -> list[Any]:
    """Run scripts in one round trip. A call is a script's name, how many keys, the keys and the
    arguments. Loads the scripts that the server does not have.

    `first_apart`: see `Connection.call`. Raises `ServerUnreachableError`.
    """
    commands = [("EVALSHA", sha1_of(name), *rest) for name, *rest in calls]
    replies = await connection.call(commands, first_apart)
    missing = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
    if missing:
        names = {calls[i][0] for i in missing}
        if not names.isdisjoint(VERBS):
            names.update(VERBS)  # all at once: a later call's script must not be the only one there
        await connection.call([("SCRIPT", "LOAD", script(name)) for name in names])
        # All from the first one on: their order counts, and each can be sent twice.
        replies[missing[0] :] = await connection.call(commands[missing[0] :])
    return connection.check(replies)


@cache
def sha1_of(name: str) -> str:
    """The hash by which the server knows a script."""
    return sha1(script(name).encode(), usedforsecurity=False).hexdigest()


@cache
def script(name: str) -> str:
    """The source of a script, as it is sent to the server."""
    return "".join(source_of(file) for file in SCRIPTS[name])


def source_of(file: str) -> str:
    """The source of one file below `lua/`, named without its ending."""
    path = resources.files("semaphore_middleware.redis.lua").joinpath(f"{file}.lua")
    return path.read_text("utf-8")
