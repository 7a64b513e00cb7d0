"""The Lua scripts: how they are put together from files, and how the server runs them.

A line `@include(file)` stands for the text of another file, also in one that is included.
`records.py` says what else begins with `@`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from hashlib import sha1
from importlib import resources
from typing import Any

from redis.exceptions import NoScriptError

from semaphore_middleware.redis.connection import Connection, is_full
from semaphore_middleware.redis.protocol import RECORDS
from semaphore_middleware.redis.records import STATUSES

# A server at its `maxmemory` refuses the first write of a script if it could use memory. After a
# first write that can only free some, it does all others. So this deletes a field that does not
# exist from the first key, in our scripts a hash. Not where keys are evicted when the server is
# full: what the script writes could be evicted at once.
THOUGH_FULL = """\
if string.find(redis.call('INFO', 'memory'), 'maxmemory_policy:noeviction', 1, true) then
  redis.call('HDEL', KEYS[1], '')
end
"""
SCRIPTS = (
    *("try_rights", "begin_epoch", "sync", "inspect", "evict", "change_rule", "forget"),
    *("ask_robotstxt", "put_robotstxt", "note_history", "read_history"),
)


async def evaluate(
    connection: Connection,
    calls: Sequence[tuple[Any, ...]],
    source_for: Callable[[str], str] | None = None,
    *,
    read_only: bool = False,
    before_loading: Callable[[Connection], Awaitable[object]] | None = None,
    though_full: bool = False,
) -> list[Any]:
    """Run scripts in one round trip, and load those that the server does not have.

    - `calls`: of each the script's name, how many keys, the keys and the arguments.
    - `source_for` gives a script's source by its name; None: the scripts are the semaphore's.
    - `read_only`: needs no right to write, where the server knows scripts that only read.
    - `before_loading` is called if scripts are missing: the server may be another one.
    - `though_full`: a server at its `maxmemory` that evicts nothing runs them all the same. For
      calls that leave no more there than they find, or little, and can be sent twice.

    Raises `ServerUnreachableError`, or `ServerRefusedError` where a right is missing.
    """
    source_for = source_for or script
    command = "EVALSHA_RO" if read_only and connection.has_read_only_scripts else "EVALSHA"
    commands = [(command, sha1_of(source_for(name)), *rest) for name, *rest in calls]
    replies = await connection.call(commands)
    missing = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
    if missing:
        if before_loading is not None:
            await before_loading(connection)
        names = {calls[i][0] for i in missing}
        await connection.execute([("SCRIPT", "LOAD", source_for(name)) for name in names])
        # All from the first one on: their order counts, and each can be sent twice.
        replies[missing[0] :] = await connection.call(commands[missing[0] :])
    if though_full and any(map(is_full, replies)):
        sources = source_for
        return await evaluate(
            connection,
            calls,
            lambda name: THOUGH_FULL + sources(name),
            before_loading=before_loading,
        )
    return connection.check(replies)


@cache
def sha1_of(source: str) -> str:
    """The hash by which the server knows a script."""
    return sha1(source.encode(), usedforsecurity=False).hexdigest()


@cache
def script(name: str) -> str:
    """The source of a script, as it is sent to the server."""
    return assembled(source_of(name), source_of)


def assembled(source: str, source_of: Callable[[str], str]) -> str:
    """A script with the files that it includes, and the names of its records, put in."""

    def text_of(found: re.Match[str]) -> str:
        what, name = found.groups()
        if what == "include":
            return assembled(source_of(name), source_of).rstrip("\n")
        if what == "status":
            return str(STATUSES.index(name))
        return RECORDS[name].written_out(what)

    return re.sub(r"@([\w.]*)\(([\w/]+)\)", text_of, source)


def source_of(file: str) -> str:
    """The source of one file below `lua/`, named without its ending."""
    path = resources.files("semaphore_middleware.redis.lua").joinpath(f"{file}.lua")
    return path.read_text("utf-8")
