"""The frontier's Lua scripts: which files make which script."""

from __future__ import annotations

from functools import cache
from importlib import resources

from semaphore_middleware.redis import scripts

CALL = ("shared/common", "shared/joined")
NODES_SCRIPTS = ("join", "sync", "idle", "leave")
SCRIPTS = {  # each with its files, in their order
    "join": ("shared/common", "join"),
    "sync": (*CALL, "shared/seen", "sync"),
    "idle": (*CALL, "idle"),
    "leave": (*CALL, "leave"),
    "drop": ("shared/common", "drop"),
    "retry": ("shared/common", "retry"),
}


@cache
def script(name: str) -> str:
    """The source of a script, as it is sent to the server."""
    if name == "try_rights":
        return source_of("try_rights") + scripts.source_of("shared/try_rights")
    return "".join(source_of(file) for file in SCRIPTS[name])


def source_of(file: str) -> str:
    """The source of one file below `frontier/lua/`, named without its ending."""
    return (resources.files("semaphore_middleware.frontier") / "lua" / f"{file}.lua").read_text(
        "utf-8"
    )
