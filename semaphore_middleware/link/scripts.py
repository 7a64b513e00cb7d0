"""Lua scripts: how they are put together from files, and how the server runs them.

A script is a file in the folder `lua` of a package. `@include(file)` stands for the text of another
file there, `@include(package:file)` for one of another package. Any other `@what(name)` stands for
a name or a number of Python's, which the script's `words` return. If they return several texts, the
line is repeated for each. Comments are left alone, and `make lua` writes the assembled scripts to
build/lua.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib import resources
from typing import Any, TypeAlias, TypeVar

from redis.exceptions import NoScriptError

from semaphore_middleware.link.connection import Connection, is_denial, is_full

Words: TypeAlias = "Callable[[str, str], str | Sequence[str]]"
T = TypeVar("T")
COMMENT_OR_WORD = re.compile(r"--.*|@([\w.]*)\(([\w./:]+)\)")

# A server at its `maxmemory` refuses a script whose first write could use memory. After a first
# write that can only free some, it allows all others. So this deletes a field that does not exist
# from the first key, in our scripts a hash. Not used if a full server evicts keys: what the script
# writes could be evicted at once.
THOUGH_FULL = "redis.call('HDEL', KEYS[1], '')\n"


def no_words(what: str, name: str) -> str:
    """The `words` of a script that has none."""
    raise LookupError(f"@{what}({name})")


@dataclass(frozen=True, eq=False)
class Script:
    """A Lua script: the file `lua/<name>.lua` of a package, with its includes."""

    name: str
    package: str = "semaphore_middleware.link"
    words: Words = no_words
    """From `what` and `name` of an `@what(name)` to the text, or the texts, in its place."""
    read_only: bool = False
    """True if it only reads: since Redis 7 the user then needs no right to write."""

    @property
    def source(self) -> str:
        """The text for the server."""
        return source_of(self)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a script."""

    script: Script
    keys: Sequence[bytes]
    arguments: Sequence[Any]
    though_full: bool = False
    """True to run it even on a server at its `maxmemory` that evicts nothing. For calls that add
    hardly any data, and can be sent twice.
    """


TRY_RIGHTS = Script("try_rights")
TRY_READING = Script("try_reading", read_only=True)
ECHO = Script("echo")


async def run_scripts(
    connection: Connection,
    calls: Sequence[Call],
    before_loading: Callable[[Connection], Awaitable[object]] | None = None,
) -> list[Any]:
    """Run scripts in one round trip, and load the missing ones.

    `before_loading` is called if scripts are missing: the server may be another one.

    Raises `ServerUnreachableError`, or `ServerRefusedError` where a right is missing.
    """
    sources = [call.script.source for call in calls]
    replies = await _evaluate(connection, calls, sources, before_loading)
    is_refused = any(map(is_full, replies)) and not connection.may_evict
    if is_refused and all(call.though_full for call in calls):
        sources = [THOUGH_FULL + source for source in sources]
        replies = await _evaluate(connection, calls, sources, before_loading)
    return connection.check(replies)


async def _evaluate(
    connection: Connection,
    calls: Sequence[Call],
    sources: Sequence[str],
    before_loading: Callable[[Connection], Awaitable[object]] | None,
) -> list[Any]:
    """The replies to calls of scripts with these sources. An error of a script is its reply."""
    commands: list[tuple[Any, ...]] = []
    for call, source in zip(calls, sources, strict=True):
        is_reading = call.script.read_only and connection.has_read_only_scripts
        command = "EVALSHA_RO" if is_reading else "EVALSHA"
        commands.append((command, sha1_of(source), len(call.keys), *call.keys, *call.arguments))
    replies = await connection.call(commands)
    missing = _missing(replies)
    if missing:
        if before_loading is not None:
            await before_loading(connection)
        texts = {sources[i] for i in missing}
        await connection.execute([("SCRIPT", "LOAD", text) for text in texts])
        # All calls from there on: their order matters, and each can be sent twice.
        replies[missing[0] :] = await connection.call(commands[missing[0] :])
    if missing := _missing(replies):  # a load balancer leads to servers with scripts of their own
        first = missing[0]
        with_text = [
            (name.replace("SHA", ""), source, *rest)
            for (name, _, *rest), source in zip(commands[first:], sources[first:], strict=True)
        ]
        answered = await connection.call(with_text)
        if not any(is_denial(reply) for reply in answered if isinstance(reply, Exception)):
            replies[first:] = answered  # without the right to EVAL, calls are retried later
    return replies


def _missing(replies: Sequence[Any]) -> list[int]:
    """The indexes of calls whose scripts the server does not have."""
    return [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]


@cache
def sha1_of(source: str) -> str:
    """The server's name for a script."""
    return sha1(source.encode(), usedforsecurity=False).hexdigest()


@cache
def source_of(script: Script) -> str:
    """The text of a script, assembled from its files."""
    return assembled_file(script.package, script.name, script.words)


def assembled_file(package: str, file: str, words: Words = no_words) -> str:
    """The text of a file in the folder `lua` of a package, with its includes and words put in.

    Raises `ValueError`, which names file and line, where one of them is unknown.
    """

    def include(other: str) -> str:
        named, _, name = other.rpartition(":")
        return assembled_file(named or package, name, words)

    return assembled(read_file(package, file), words, include, f"{package}:lua/{file}.lua")


def assembled(text: str, words: Words, include: Callable[[str], str], place: str) -> str:
    """The text of the file at this place, with its includes and words put in."""

    def texts_of(found: re.Match[str], line: int) -> Sequence[str]:
        what, name = found.groups()
        if name is None:
            return (found[0],)
        try:
            text = include(name).rstrip("\n") if what == "include" else words(what, name)
        except (LookupError, FileNotFoundError):
            raise ValueError(f"{place}:{line}: {found[0]} stands for nothing") from None
        return (text,) if isinstance(text, str) else text

    lines: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        begun, end = [""], 0
        for found in COMMENT_OR_WORD.finditer(line):
            texts = [line[end : found.start()] + each for each in texts_of(found, number)]
            begun = [before + each for before in begun for each in texts]
            end = found.end()
        lines += [before + line[end:] for before in begun]
    return "\n".join(lines)


def read_file(package: str, file: str) -> str:
    """The text of one file in the folder `lua` of a package, named without its ending."""
    return resources.files(package).joinpath("lua", f"{file}.lua").read_text("utf-8")


def batches(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """Chunks of at most `most` items, in the same order, so that no call blocks the server."""
    for start in range(0, len(items), most):
        yield items[start : start + most]
