"""The simulated server: the scripts on a small Redis, with a clock and data that it can lose."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from hashlib import sha1
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from lupa import lua51
from redis.exceptions import NoScriptError, OutOfMemoryError, ReadOnlyError, ResponseError

from semaphore_middleware.core.records import OF_KEYS  # feature: unresponsive
from semaphore_middleware.core.scripts import SYNC
from semaphore_middleware.link import scripts
from semaphore_middleware.link.lease import STEP
from semaphore_middleware.link.scripts import sha1_of

EPOCH_MS = 1_700_000_000_000.0  # the server's wall clock at the simulation's second 0
COLLECT_EVERY = 200  # calls: the order of a table's fields depends on when Lua collects garbage
COMPARE_EVERY = 4  # calls: the fast path of `sync` is compared with the slow one
COMPARED = "reply, data or messages are not what they are without `fast_path`"
FAST_PATH = "shared/fast_path"
ERRORS = {"OOM": OutOfMemoryError, "READONLY": ReadOnlyError}


class Server:
    """Executes commands at once, by its own wall clock. There is one at a time.

    `publish` is called with each message; `note_bug` with the text of an error in a script;
    `note_grant` with key, node, lease id, and the numbers of the first and the last permit granted.
    """

    compare_every: float = COMPARE_EVERY
    """A call of this many runs `sync` without its fast path, too."""

    def __init__(
        self,
        publish: Callable[[bytes, bytes], None],
        note_bug: Callable[[str], None],
        note_grant: Callable[[bytes, bytes, int, int, int], None],
        lease: float = 0.0,
    ) -> None:
        self._lua = _lua().globals()
        self._lua.PUBLISH = publish
        self._lua.NOTE_GRANT = note_grant
        self._lua.STEP = 1000 * STEP * lease
        for name in (b"FAILURES", b"IN_A_ROW", b"OPENED_LATE", b"LATEST"):
            self._lua[name] = _lua().table()
        self._lua.IS_FULL, self._lua.LACKS_REPLICAS = False, False
        self._lua.POLICY, self._lua.EVICTED, self._lua.POPPED = b"noeviction", 0, 0
        self.gives_scripts_info = True
        self.after_info: Callable[[], None] | None = None
        """Called once, after the next INFO that a node asks for."""
        self._note_bug = note_bug
        self._scripts: set[bytes] = set()
        self._lives = 0
        self.clock_ahead_ms = EPOCH_MS
        self.calls = 0
        self.begin_incarnation()

    def begin_incarnation(self, data: Any = None) -> None:
        """Start anew, or be replaced: with these data, or without any."""
        self._lives += 1
        self._lua.RUN_ID = b"run%d" % self._lives
        self._lua.REPLICATION_ID = b"replication%d" % self._lives
        self._lua.DB = _lua().table() if data is None else data
        self.forget_scripts()

    def flush(self) -> None:
        self._lua.DB = _lua().table()

    def forget_scripts(self) -> None:
        self._scripts.clear()

    def snapshot(self) -> Any:
        """A copy of all data."""
        return self._lua.SNAPSHOT()

    def set_full(self, is_full: bool) -> None:
        """Let the server be at its maxmemory, or not."""
        self._lua.IS_FULL = is_full

    def set_lacking_replicas(self, lacks_replicas: bool) -> None:
        """Let it have fewer replicas than its min-replicas-to-write, or not."""
        self._lua.LACKS_REPLICAS = lacks_replicas

    def set_evicting(self) -> None:
        """Give it a policy by which it may evict keys."""
        self._lua.POLICY = b"allkeys-lru"

    def evict(self, number: int) -> None:
        """Evict one of the keys that are there."""
        if names := sorted(name for name, _ in self.keys_left()):
            self.evict_key(names[number % len(names)])

    def evict_key(self, name: bytes) -> None:
        """Evict this key, if it is there."""
        self._lua.EVICTED += 1
        self._lua.DB[name] = None

    def wall_ms(self, now: float) -> float:
        """What its wall clock shows at this time."""
        return now * 1000 + self.clock_ahead_ms

    def set_time(self, now: float) -> None:
        """Move its wall clock on."""
        self._lua.WALL = self.wall_ms(now)

    def execute(self, command: Sequence[bytes], now: float) -> Any:
        """The reply to a command at this time; an error is returned."""
        if self.calls % COLLECT_EVERY == 0:
            self._lua.COLLECT()
        self.calls += 1
        self.set_time(now)
        name, *arguments = command
        self._lua.LACKS_INFO = name.startswith(b"EVAL") and not self.gives_scripts_info
        if name == b"PING":
            return b"PONG"
        if name == b"SCRIPT":
            sha = sha1(arguments[1], usedforsecurity=False).hexdigest().encode()
            _compiled(arguments[1], sha)
            self._scripts.add(sha)
            return sha
        if name in (b"EVAL", b"EVAL_RO"):
            text, *rest = arguments
            sha = self.execute((b"SCRIPT", b"LOAD", text), now)
            return self.execute((name.replace(b"EVAL", b"EVALSHA"), sha, *rest), now)
        if name not in (b"EVALSHA", b"EVALSHA_RO"):
            reply = self._run(self._lua.redis.call, False, command)
            if name == b"INFO" and len(command) == 1 and self.after_info is not None:
                self.after_info()
            return reply
        sha, keys = arguments[0], int(arguments[1])
        if sha not in self._scripts:
            return NoScriptError("NOSCRIPT No matching script.")
        self._lua.KEYS = self._lua.LIST(*arguments[2 : 2 + keys])
        self._lua.ARGV = self._lua.LIST(*arguments[2 + keys :])
        sync = SYNC.source
        if self.calls % self.compare_every == 0 and sha.decode() == sha1_of(sync):
            return self._run_sync(sync, sha)
        return self._run(self._lua.SCRIPTS[sha], name == b"EVALSHA_RO", ())

    def _run_sync(self, source: str, sha: bytes) -> Any:
        """Run `sync`, and check that both its paths write, reply and send the same."""
        general = _without_fast_path()
        instead = _compiled(general.encode(), sha1_of(general).encode())
        fast = _compiled(source.encode(), sha)
        reply, is_bug, is_same = self._lua.RUN_BOTH(fast, instead)
        if not is_same:
            self._note_bug(COMPARED)
        return self._read(reply, is_bug)

    def _run(self, run: Any, reads_only: bool, arguments: Sequence[bytes]) -> Any:
        return self._read(*self._lua.RUN(run, reads_only, self._lua.LIST(*arguments)))

    def _read(self, reply: Any, is_bug: bool) -> Any:
        reply = _read(reply)
        if is_bug:
            self._note_bug(str(reply))
        return reply

    def put(self, key: bytes, fields: Mapping[bytes, Any], expires: float | None = None) -> None:
        """Write a hash; lists are packed. Times are in milliseconds by its wall clock."""
        hash = _lua().table_from({b"kind": b"H", b"h": _lua().table()})
        for name, value in fields.items():
            is_list = isinstance(value, list)
            hash.h[name] = self._lua.cmsgpack.pack(*value) if is_list else value
        hash.ex = expires
        self._lua.DB[key] = hash

    @staticmethod
    def commands() -> set[str]:
        """The names of all commands that the server has."""
        return {name.decode() for name in _lua().globals().COMMANDS}

    # Its data ----------------------------------------------------------------------------------

    def keys_left(self) -> list[tuple[bytes, float | None]]:
        """All keys, each with the milliseconds until it expires, if it does."""
        wall = self._lua.WALL
        found = [(name, entry.ex and entry.ex - wall) for name, entry in self._lua.DB.items()]
        return sorted(pair for pair in found if pair[1] is None or pair[1] > 0)

    def fields(self, key: bytes) -> list[bytes]:
        """The names of a hash's fields, or a sorted set's members."""
        entry = self._lua.DB[key]
        return sorted(entry.h.keys()) if entry else []

    def field(self, key: bytes, field: bytes) -> Any:
        """A field of a hash, a list if it was packed; None if it does not exist."""
        entry = self._lua.DB[key]
        value: Any = entry.h[field] if entry else None
        return [value[i] for i in range(1, value.n + 1)] if _is_table(value) else value

    def failures_counted(self, key: bytes) -> int:
        """How many requests without response were counted at a scope, without those that may have
        been counted twice, as a late update had opened the entry again.
        """
        return int(self._lua.FAILURES[key] or 0) - int(self._lua.OPENED_LATE[key] or 0)


# Lua --------------------------------------------------------------------------------------------


@cache
def _lua() -> Any:
    """One Lua runtime for all runs of this process, so that scripts are compiled once."""
    lua = lua51.LuaRuntime(encoding=None, unpack_returned_tuples=True)
    lua.execute(b"SCRIPTS = {} LIST = function(...) return { ... } end")
    lua.execute(b"COLLECT = function() collectgarbage() collectgarbage('stop') end")
    names = lua.globals()
    names.struct = lua.table_from({b"unpack": _unpack, b"pack": _pack})
    names.cjson = lua.table_from({b"decode": _decode, b"encode": _encode})
    for file in ("redis.lua", "witness.lua"):
        lua.execute((Path(__file__).parent / file).read_bytes())
    names.FAILED_AT = OF_KEYS["learned"].names.index("failed_in_a_row") + 1  # feature: unresponsive
    # As in a real server, a script with a global variable is wrong.
    lua.execute(b"KEYS, ARGV, NOTE_GRANT, PUBLISH = {}, {}, false, false")
    lua.execute(
        b"local function fail(_, name) error('global ' .. name) end"
        b" setmetatable(_G, { __index = fail, __newindex = fail })"
    )
    return lua


@cache
def _compiled(source: bytes, sha: bytes) -> Any:
    names = _lua().globals()
    names.SCRIPTS[sha] = names.loadstring(source)
    return names.SCRIPTS[sha]


@cache
def _without_fast_path() -> str:
    """The source of `sync`, in which the fast path leaves all updates to the rest."""
    parts = {FAST_PATH: "local function fast_path() end"}

    def include(file: str) -> str:
        return parts.pop(file, None) or scripts.assembled_file(SYNC.package, file, SYNC.words)

    text = scripts.assembled(
        scripts.read_file(SYNC.package, SYNC.name), SYNC.words, include, SYNC.name
    )
    assert not parts, f"{SYNC.name}.lua includes no {FAST_PATH}"
    return text


def _unpack(format: bytes, text: bytes, begin: int = 1) -> Any:
    layout = _layout(format)
    return *layout.unpack_from(text, begin - 1), begin + layout.size


def _pack(format: bytes, *values: Any) -> bytes:
    return _layout(format).pack(*values)


@cache
def _layout(format: bytes) -> struct.Struct:
    codes = format.decode().replace("I4", "I")  # Lua names the length
    return struct.Struct(">" + codes.replace(">", ""))  # and may give the order again


def _decode(text: bytes) -> Any:
    return _in_lua(json.loads(text))


def _in_lua(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, list):
        return _lua().table_from(map(_in_lua, value))
    if isinstance(value, dict):
        return _lua().table_from({name.encode(): _in_lua(part) for name, part in value.items()})
    return value


def _encode(parts: Any) -> bytes:
    read = {
        name.decode(): part.decode() if isinstance(part, bytes) else part
        for name, part in sorted(parts.items())
    }
    return json.dumps(read, separators=(",", ":")).replace("/", r"\/").encode()


def _is_table(value: Any) -> bool:
    return bool(lua51.lua_type(value) == "table")


def _read(value: Any) -> Any:
    """A reply as redis-py returns it."""
    if value is False or value is None:
        return None
    if isinstance(value, float):
        return int(value)
    if not _is_table(value):
        return value
    if value.err is not None:
        text = value.err.decode()
        return ERRORS.get(text.partition(" ")[0], ResponseError)(text)
    if value.ok is not None:
        return value.ok
    parts = takewhile(lambda part: part is not None, (value[i] for i in count(1)))
    return [_read(part) for part in parts]
