"""The Lua scripts: which files make which script."""

from __future__ import annotations

from importlib import resources

CLOCK = ("shared/clock",)
RULES = (*CLOCK, "shared/site")
GRANTING = (*CLOCK, *(f"shared/{part}" for part in ("prelude", "site", "scope", "line", "promote")))

VERBS = ("acquire", "release", "renew", "report")
SCRIPTS = {  # each with its files, in their order
    "hello": (*CLOCK, "hello"),
    "inspect": (*RULES, "inspect"),
    "forgive": (*CLOCK, "forgive"),
    "acquire": (*GRANTING, "acquire"),
    "release": (*GRANTING, "release"),
    "renew": (*GRANTING, "renew"),
    "report": (*GRANTING, "shared/adaptive", "shared/answers", "report"),
}


def script(name: str) -> str:
    """The source of a script, as the server is sent it."""
    return "".join(source_of(file) for file in SCRIPTS[name])


def source_of(file: str) -> str:
    """The source of one file below `lua/`, named without its ending."""
    path = resources.files("semaphore_middleware.redis.lua").joinpath(f"{file}.lua")
    return path.read_text("utf-8")
