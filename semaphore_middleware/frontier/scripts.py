"""The frontier's Lua scripts."""

from __future__ import annotations

from functools import cache
from importlib import resources

from semaphore_middleware.redis import scripts

NODES_SCRIPTS = ("join", "sync", "idle", "leave")
SCRIPTS = (*NODES_SCRIPTS, "drop", "retry", "try_rights")


@cache
def script(name: str) -> str:
    """The source of a script, as it is sent to the server."""
    return scripts.assembled(source_of(name), source_of)


def source_of(file: str) -> str:
    """The source of one file below `frontier/lua/`, named without its ending. `try_rights` includes
    one of the semaphore's.
    """
    if file == "shared/try_rights":
        return scripts.source_of(file)
    return (resources.files("semaphore_middleware.frontier") / "lua" / f"{file}.lua").read_text(
        "utf-8"
    )
