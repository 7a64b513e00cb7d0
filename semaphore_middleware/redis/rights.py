"""What a node's user may do on the server: found out at the start, not when it is first needed."""

from __future__ import annotations

import re
from collections.abc import Iterable

from semaphore_middleware.errors import ServerRefusedError
from semaphore_middleware.redis.connection import Connection
from semaphore_middleware.redis.scripts import evaluate


async def try_rights(
    connection: Connection,
    names: tuple[bytes, ...],
    channel: bytes,
    tag: str,
    sources: Iterable[str],
) -> None:
    """Try each command in the sources of scripts, on these keys and this channel, of which all
    names begin with `tag`.

    Raises `ServerRefusedError`, which names what is missing, and `ServerUnreachableError`.
    """
    needed = f"all keys and channels begin with {tag!r}"
    try:
        call = ("try_rights", len(names), *names, channel, *commands_in(sources))
        (denied,) = await evaluate(connection, [call], though_full=True)
    except ServerRefusedError as error:
        raise ServerRefusedError(f"{error}; {needed}") from None
    await connection.execute([("PING",)])  # a subscription asks so whether the server is there
    if denied:
        commands = ", ".join(command.decode() for command in denied)
        raise ServerRefusedError(
            f"{connection.server_name} does not permit this user what is needed: {commands} in "
            f"scripts; {needed}"
        )


def commands_in(sources: Iterable[str]) -> set[str]:
    """The commands that scripts use, from their sources."""
    return {name for source in sources for name in re.findall(r"redis\.call\('([A-Z]+)'", source)}
