"""The rights of a node's user on the server, checked at its start, not when they are first used."""

from __future__ import annotations

import re
from collections.abc import Iterable

from semaphore_middleware.errors import ServerRefusedError
from semaphore_middleware.link.connection import Connection
from semaphore_middleware.link.scripts import TRY_RIGHTS, Call, Script, run_scripts


async def try_rights(
    connection: Connection,
    trial: bytes,
    keys: Iterable[bytes],
    tag: str,
    scripts: Iterable[Script],
) -> None:
    """Try each command of the scripts on `trial`, as a key and as a channel, and the right to these
    keys. All names begin with `tag`.

    Raises `ServerRefusedError`, which names what is missing, and `ServerUnreachableError`.
    """
    needed = f"all keys and channels begin with {tag!r}"
    # The connection has used INFO; scripts that may not use it get its fields as an argument.
    call = Call(TRY_RIGHTS, (trial, *keys), sorted(commands_in(scripts) - {"INFO"}))
    try:
        ((denied, missing),) = await run_scripts(connection, [call])
    except ServerRefusedError as error:
        raise ServerRefusedError(f"{error}; {needed}") from None
    await connection.check_run()
    if missing:
        libraries = " and ".join(library.decode() for library in missing)
        raise ServerRefusedError(
            f"{connection.server_name} lacks what scripts need and Redis and Valkey have: Lua's "
            f"{libraries}"
        )
    if denied:
        commands = ", ".join(command.decode() for command in denied)
        raise ServerRefusedError(f"{connection.what_is_denied}: {commands} in scripts; {needed}")


def commands_in(scripts: Iterable[Script]) -> set[str]:
    """The commands of scripts, from their sources."""
    named = (re.findall(r"redis\.call\('([A-Z]+)'", script.source) for script in scripts)
    return set().union(*named)
