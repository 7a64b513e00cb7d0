"""One connection to the server: opened once, used until it breaks.

redis-py's client and its pool reconnect and resend silently. A call meant for one run of the server
would then reach the next one, which has no record of the permits.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from inspect import signature
from itertools import pairwise
from typing import Any
from weakref import WeakSet

from hiredis import pack_command
from redis.asyncio import connection as redis_py
from redis.asyncio.connection import SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    InvalidResponse,
    MovedError,
    NoPermissionError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from semaphore_middleware.errors import ServerRefusedError, ServerUnreachableError, SettingsError

logger = logging.getLogger(__name__)

OLDEST_VERSION = (6, 2)
READ_ONLY_SCRIPTS_SINCE = (7, 0)
FACTS = ("role", "run_id", "master_replid", "maxmemory", "maxmemory_policy", "evicted_keys")
KEYS_PER_SCAN = 1000
RUNS_COMPARED = 8  # calls, each of which may reach another server
TLS_TIMEOUT_S = 10.0  # for a handshake: on a busy machine it takes longer than a call
TLS_OPTIONS = (
    "ssl_ca_certs",
    "ssl_ca_data",
    "ssl_ca_path",
    "ssl_cert_reqs",
    "ssl_certfile",
    "ssl_check_hostname",
    "ssl_ciphers",
    "ssl_exclude_verify_flags",
    "ssl_include_verify_flags",
    "ssl_keyfile",
    "ssl_min_version",
    "ssl_password",
)
UNKNOWN_AUTHORITY = (18, 19, 20, 21)  # OpenSSL's codes: no known authority has signed it
# Another server has the data, or will have it soon. While a slot is moved, calls with keys that do
# not exist are not redirected, and the scripts have such keys: so calls wait until it has moved.
ELSEWHERE = (ReadOnlyError, BusyLoadingError, AskError, TryAgainError, ClusterDownError)
BROKEN_TLS = (ssl.SSLEOFError, ssl.SSLZeroReturnError)  # not a problem of TLS
HUNG_UP = (ConnectionResetError, asyncio.IncompleteReadError, *BROKEN_TLS)
# Keeps redis-py from sending its own name and version: that needs one more right, and new releases
# look the version up for each connection, which takes a millisecond.
ANONYMOUS: dict[str, Any] = dict.fromkeys(
    {"driver_info"} & signature(redis_py.AbstractConnection.__init__).parameters.keys()
    or ("lib_name", "lib_version")
)


@dataclass(frozen=True)
class Address:
    """Where a server listens: a host and a port, or the path of a Unix socket."""

    host: str = "localhost"
    port: int = 6379
    path: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.path or f"{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """True for a TCP address that only this machine can reach."""
        return not self.path and (self.host in ("localhost", "::1") or self.host[:4] == "127.")


@dataclass(frozen=True)
class Target:
    """The destination of a connection."""

    address: Address
    name: str
    """The server's name in errors, without a password."""
    database: int = 0
    """Number of the database to use there."""
    was_found: bool = False
    """True if sentinels or cluster nodes named it: after a failover they will name another one."""
    is_replaced: Callable[[Connection], Awaitable[bool]] | None = None
    """Checks whether another server should be used by now; None: there is nothing to check."""


class ClusterNodeError(ServerRefusedError):
    """The server is a node of a cluster, perhaps not the owner of our slot."""


class PasswordRefusedError(ServerRefusedError):
    """The server does not accept the user name and the password."""


class MissingRightError(ServerRefusedError):
    """The user lacks a right; the text has the server's words."""


class NotInScriptsError(ServerRefusedError):
    """The server does not allow scripts a command that it allows nodes."""


class CallTimeoutError(ServerUnreachableError):
    """A call was not answered in time; it may have been too large."""


class Connection:
    """One connection to one run of the server. Any error closes it for good.

    Use `Server.connect` to make one. Its methods raise `ServerUnreachableError`, or
    `ServerRefusedError` if waiting would not help: a right is missing, or the server is of an
    unsuitable kind.
    """

    incarnation: str
    """The server's run id and replication id at the last `check_server`. The latter changes in a
    failover, even if the same process becomes the master again.
    """
    facts: Mapping[str, str]
    """INFO's fields on that incarnation, and on evictions."""
    may_evict: bool = False
    """True if the server, by its last INFO, evicts keys when its memory is full."""
    needs_info_for_scripts: bool = False
    """True if scripts may not use INFO: they get `facts` as an argument instead."""
    has_read_only_scripts: bool = False
    """True if the server has EVALSHA_RO, a command without the right to write."""

    def __init__(self, connector: Connector, target: Target) -> None:
        self._connector = connector
        self._connection = connector.make(target.address)
        self._target = target
        self.address = target.address
        self.server_name = target.name
        self._is_tls = isinstance(self._connection, SSLConnection)
        self._time_limit = max(connector.call_timeout, TLS_TIMEOUT_S * self._is_tls)
        self._search: asyncio.Task[None] | None = None
        self._replaced = False
        self._is_parents = False
        _opened.add(self)

    @property
    def is_open(self) -> bool:
        """True until this side notices a break; always false in a forked child."""
        return bool(self._connection.is_connected) and not self._is_parents

    async def connect(self) -> Connection:
        """Connect and authenticate. Returns itself."""
        try:
            async with asyncio.timeout(self._time_limit):
                await self._connection.connect()  # type: ignore[no-untyped-call]
        except BaseException as error:
            await self.close()
            if isinstance(error, RedisError | OSError):
                raise self._explain(error) from None
            raise
        self._time_limit = self._connector.call_timeout
        return self

    async def check_server(self) -> None:
        """Read the server's kind, version and incarnation, and select the database.

        Raises `ServerRefusedError` if the server is too old, a read-only replica or a sentinel, and
        `ClusterNodeError` if it is a node of a cluster.
        """
        # A sentinel does not know SELECT, so INFO is read before the error of that.
        database = self._target.database
        select = [("SELECT", database)] if database else []
        text, *selected = await self.call([("INFO",), *select])
        if isinstance(text, Exception):
            raise self._explain(text)
        info = read_info(text)
        mode = info.get("redis_mode", info.get("server_mode"))  # the latter since Valkey 9.1
        if mode == "sentinel":
            raise ServerRefusedError(
                f"{self.server_name} is a sentinel; write redis+sentinel://{self.address}/service "
                "with the name of the master that it watches"
            )
        if mode == "cluster" and not self._target.was_found:
            raise ClusterNodeError(
                f"{self.server_name} is a node of a cluster; write redis+cluster://host:port"
            )
        for field in ("redis_version", "role", "run_id"):
            if field not in info:
                raise ServerRefusedError(
                    f"{self.server_name} does not report a {field} in INFO, as Redis and Valkey do"
                )
        version = info["redis_version"]
        numbers = tuple(int(part) for part in version.split(".")[:2])
        if numbers < OLDEST_VERSION:
            raise ServerRefusedError(
                f"{self.server_name} is version {version}; version 6.2 or newer is needed"
            )
        self.has_read_only_scripts = numbers >= READ_ONLY_SCRIPTS_SINCE
        if info["role"] == "slave":
            if self._target.was_found:  # during a failover
                raise ServerUnreachableError(f"{self.server_name} is a read-only replica")
            raise ServerRefusedError(
                f"{self.server_name} is a read-only replica; give the address of its master"
            )
        if info["role"] != "master":
            raise ServerRefusedError(
                f"{self.server_name} has the role {info['role']!r}; give the address of a master "
                "that no other server writes to"
            )
        self.incarnation = f"{info['run_id']} {info.get('master_replid', '')}"
        self.facts = {name: info[name] for name in FACTS if name in info}
        is_limited = info.get("maxmemory", "0") != "0"
        self.may_evict = is_limited and info.get("maxmemory_policy") != "noeviction"
        for reply in selected:
            if isinstance(reply, Exception):
                raise self._explain(reply)

    async def check_run(self) -> None:
        """Check that the server answers PING, which subscriptions need, and that all calls reach
        the same server.
        """
        _, *texts = await self.execute([("PING",), *[("INFO", "server")] * RUNS_COMPARED])
        ids = [read_info(text).get("run_id") for text in texts]
        if sum(one != other for one, other in pairwise(ids)) > 1:  # once: it was replaced
            raise ServerRefusedError(
                f"{self.server_name} is not one server: its run_id in INFO changes from call to "
                "call, as behind a proxy to several servers; give the address of one of them"
            )

    @property
    def replication(self) -> str:
        """The replication id, which a server and its replicas share; without one, the run id."""
        return self.facts.get("master_replid") or self.facts["run_id"]

    @property
    def what_is_denied(self) -> str:
        """The beginning of an error about a missing right, which names the user."""
        options = self._connector.options
        provider = options.get("credential_provider")
        login = provider.last if provider else (options.get("username"), "")
        user = login[0] if len(login) == 2 else None
        return f"{self.server_name} does not permit the user {user or 'default'!r} what is needed"

    @property
    def peer(self) -> str:
        """The server's IP address; empty if unknown."""
        writer = getattr(self._connection, "_writer", None)
        address = writer and writer.get_extra_info("peername")
        return address[0] if isinstance(address, tuple) else ""

    async def connect_again(self) -> Connection:
        """Open another connection to this run of the server, for another thread: with the same
        address and credentials, and without checks for another master.

        Raises `ServerUnreachableError` if the server is in another incarnation.
        """
        target = replace(self._target, address=self.address, is_replaced=None)
        connection = await self._connector.connect_again(target)
        try:
            await connection.check_server()
            if connection.incarnation != self.incarnation:
                raise ServerUnreachableError(f"{self.server_name} was replaced by another server")
        except BaseException:
            await connection.close()
            raise
        connection.needs_info_for_scripts = self.needs_info_for_scripts
        return connection

    def check_master(self) -> None:
        """Start to look for the present master, unless the target has no such check. If it is
        another server, the connection is closed.
        """
        is_replaced = self._target.is_replaced
        if is_replaced and (self._search is None or self._search.done()):
            self._search = asyncio.create_task(self._leave_if_replaced(is_replaced))

    async def _leave_if_replaced(
        self, is_replaced: Callable[[Connection], Awaitable[bool]]
    ) -> None:
        # While the master answers, failing sentinels or look-ups do not matter.
        with suppress(ServerUnreachableError, ServerRefusedError, OSError):
            if await is_replaced(self):
                self._replaced = True
                logger.warning("%s was replaced by another server.", self.server_name)
                await self.close()

    async def call(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send all commands, then read all replies. A command's own error is its reply.

        After an error the commands may have been executed. Raises `CallTimeoutError` if the answer
        takes too long.
        """
        try:
            async with asyncio.timeout(self._time_limit):
                await self._send(commands)
                return [await self._read_reply() for _ in commands]
        except (RedisError, OSError) as error:
            await self.close()
            reason = "it was replaced" if self._replaced else self._text_of(error)
            timed_out = isinstance(error, TimeoutError)
            raise (CallTimeoutError if timed_out else ServerUnreachableError)(
                f"lost the connection to {self.server_name}: {reason}"
            ) from None
        except BaseException:  # cancelled halfway: replies would no longer match commands
            await self.close()
            raise

    async def execute(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Like `call`, but raises `ServerUnreachableError` if the server refuses a command."""
        return self.check(await self.call(commands))

    async def scan(self, start: bytes, end: bytes = b"") -> set[bytes]:
        """The names of all keys with this start and end. Scans every key of the server."""
        pattern = re.sub(rb"([*?\[\]\\])", rb"\\\1", start) + b"*" + end
        return set(await self._scan(("SCAN",), "MATCH", pattern))

    async def scan_set(self, key: bytes) -> set[bytes]:
        """The members of a sorted set, read in several calls."""
        members_and_scores = await self._scan(("ZSCAN", key))
        return set(members_and_scores[::2])

    async def _scan(self, command: tuple[Any, ...], *options: Any) -> list[bytes]:
        found: list[bytes] = []
        cursor = b"0"
        while True:
            scan = (*command, cursor, *options, "COUNT", KEYS_PER_SCAN)
            ((cursor, some),) = await self.execute([scan])
            found += some
            if cursor == b"0":
                return found

    def check(self, replies: list[Any]) -> list[Any]:
        """Return the replies; raise if one of them is an error."""
        for reply in replies:
            if isinstance(reply, Exception):
                if "not allowed from script" in str(reply):
                    raise NotInScriptsError(f"{self.server_name} refuses: {reply}")
                if is_denial(reply) or is_unknown_command(reply):
                    raise self._explain(reply)
                # Out of memory, failing to save, a key of another type.
                raise ServerUnreachableError(f"{self.server_name} refuses: {reply}") from reply
        return replies

    async def subscribe(self, channels: Sequence[bytes]) -> None:
        """Subscribe to all channels at once; `listen` receives their messages."""
        (reply,) = await self.call([("SUBSCRIBE", *channels)])  # to the first channel
        if isinstance(reply, Exception):
            names = ", ".join(repr(channel.decode("utf-8", "replace")) for channel in channels)
            error = self._explain(reply)
            raise type(error)(f"{error}; the channels are {names}")

    async def listen(
        self, channels: Sequence[bytes], ping_after: float, on_message: Callable[[Any], None]
    ) -> None:
        """Receive messages, as a `Subscription` does, until the connection breaks."""
        try:
            await self.subscribe(channels)
            on_message(None)
            ping_sent = False
            while True:
                message = await self._connection.read_response(
                    timeout=ping_after, disconnect_on_error=False
                )
                if message is None:  # what redis-py returns after `timeout`
                    if ping_sent:
                        raise ConnectionResetError("no answer")
                    await self._send([("PING",)])
                    ping_sent = True
                    continue
                ping_sent = False
                if message[0] == b"message":
                    on_message(message[2])
        except (RedisError, OSError) as error:
            raise ServerUnreachableError(
                f"lost the connection for messages to {self.server_name}: {self._text_of(error)}"
            ) from None
        finally:
            await self.close()

    async def close(self) -> None:
        """Close the connection, at any time and repeatedly. Does nothing in a forked child."""
        if self._is_parents:
            return
        if self._search is not None and not self._replaced:
            self._search.cancel()
        await self._connection.disconnect(nowait=True)

    async def _send(self, commands: Sequence[tuple[Any, ...]]) -> None:
        """Send commands. redis-py would silently reopen a connection, without its subscription."""
        if not self.is_open:
            raise ConnectionResetError("the connection is closed")
        # Packed by hiredis: redis-py's own packing, in Python, is most of a call's cost.
        packed = b"".join(pack_command(command) for command in commands)
        await self._connection.send_packed_command(packed, check_health=False)

    async def _read_reply(self) -> Any:
        try:
            return await self._connection.read_response()
        except ELSEWHERE:
            raise  # like a broken connection: this server can no longer serve
        except ResponseError as error:
            return error

    def _text_of(self, error: BaseException) -> str:
        if isinstance(error, TimeoutError) and not str(error):
            return f"no answer within {self._time_limit:g} s"
        if isinstance(error, AskError | TryAgainError):
            moved = "was" if isinstance(error, MovedError) else "is being"
            return f"the slot of our keys {moved} moved"
        # A command that a server does not know is shown with its arguments: AUTH's are secret.
        text = str(error).partition(", with args beginning with")[0]
        return text.splitlines()[0].rstrip(".") if text else type(error).__name__

    def _explain(self, error: Exception) -> Exception:
        """Our own error for one of redis-py's, depending on whether waiting may help."""
        name = self.server_name
        for cause in causes_of(error):
            if isinstance(cause, ssl.SSLError) and not isinstance(cause, BROKEN_TLS):
                return ServerRefusedError(f"{name}: {_tls_problem(cause, self._connector.options)}")
        if isinstance(error.__cause__, RedisError):  # as redis-py has it on a Unix socket
            error = error.__cause__
        text = self._text_of(error)
        if isinstance(error, BusyLoadingError):
            return ServerUnreachableError(f"{name} is still loading its data")
        if "MASTERDOWN" in text:
            return ServerUnreachableError(f"{name}: {text}")
        if "NOAUTH" in text or "Authentication required" in text:
            return ServerRefusedError(f"{name} requires a password, and its URL has none")
        if isinstance(error, AuthenticationError | AuthorizationError):
            return self._explain_refused_password(text)
        if is_unknown_command(error):
            return ServerRefusedError(f"{name} does not know a command that is needed: {text}")
        if is_denial(error):
            return MissingRightError(f"{self.what_is_denied}: {text}")
        if isinstance(error, InvalidResponse) or "Protocol" in text:
            return ServerRefusedError(f"{name} does not use the Redis protocol{self._hint}")
        if isinstance(error, ResponseError):
            never_passes = re.search("DB index|SELECT is not allowed", text)
            kind = ServerRefusedError if never_passes else ServerUnreachableError
            return kind(f"{name} refuses: {text}")
        hung_up = any(isinstance(cause, HUNG_UP) for cause in causes_of(error))
        if (hung_up and not self.address.path) or (
            self._is_tls and isinstance(error, TimeoutError)
        ):
            text += self._hint
        return ServerUnreachableError(f"cannot reach {name}: {text}")

    def _explain_refused_password(self, text: str) -> ServerRefusedError:
        name, options = self.server_name, self._connector.options
        if "without any password configured" in text:
            is_asked = "credential_provider" in options
            given = "SEMAPHORE_REDIS_CREDENTIALS gives one" if is_asked else "its URL has one"
            return ServerRefusedError(f"{name} has no password, and {given}")
        if options.get("username") and not options.get("password"):
            return ServerRefusedError(
                f"{name} does not accept this user name without a password; an address with a "
                "password alone is redis://:PASSWORD@HOST"
            )
        return PasswordRefusedError(
            f"{name} does not accept this user name and password, from {self._connector.source}"
        )

    @property
    def _hint(self) -> str:
        """A likely reason why the server closes the connection or sends invalid replies."""
        if not self._is_tls:
            return "; if it uses TLS, write rediss://; if it is a proxy, give the server's address"
        names = _given_tls_options(self._connector.options)
        return f"; it may not use TLS, or require another certificate ({names})"


def read_info(text: bytes) -> dict[str, str]:
    """The fields of a reply to INFO."""
    lines = text.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def check_tls_options(options: Mapping[str, Any]) -> None:
    """Check the TLS options of a URL by loading their files. Raises `SettingsError`."""
    given = {name: options[name] for name in TLS_OPTIONS if name in options}
    certificate, key = given.get("ssl_certfile"), given.get("ssl_keyfile")
    try:
        if certificate or key:
            # With an empty password OpenSSL does not ask for one at the terminal.
            password = given.get("ssl_password", "")
            ssl.create_default_context().load_cert_chain(certificate, key, password)  # type: ignore[arg-type]
        SSLConnection(**given).ssl_context.get()
    except (OSError, ValueError, TypeError, RedisError) as error:
        raise SettingsError(_tls_problem(error, given)) from None


def tls_version(name: str) -> ssl.TLSVersion:
    """The value of `ssl_min_version`, by its name: redis-py takes only a number."""
    allowed = [known for known in ssl.TLSVersion.__members__ if known.startswith("TLS")]
    if name not in allowed:
        raise SettingsError(f"ssl_min_version={name}: allowed is one of {', '.join(allowed)}")
    return ssl.TLSVersion[name]


def _tls_problem(error: Exception, options: Mapping[str, Any]) -> str:
    """OpenSSL's message, and the names of the options."""
    words = re.sub(r"^\[.*?\] | \(_ssl\.c:\d+\)$", "", str(error.args[-1])).rstrip(".")
    hint = ""
    if getattr(error, "verify_code", 0) in UNKNOWN_AUTHORITY and "ssl_ca_certs" not in options:
        hint = "; name an authority of your own by ?ssl_ca_certs=FILE"
    return f"TLS: {words} ({_given_tls_options(options)}{hint})"


def _given_tls_options(options: Mapping[str, Any]) -> str:
    return ", ".join(name for name in TLS_OPTIONS if name in options) or "no options given"


def is_denial(error: Exception) -> bool:
    """True for an error of a command or a script for which the user lacks a right."""
    of_script = re.search("ACL failure in script|The user executing the script", str(error))
    return isinstance(error, NoPermissionError) or of_script is not None


def is_unknown_command(error: Exception) -> bool:
    """True for an error of a command or a script because a command was renamed or disabled."""
    return re.search(r"\bunknown (redis )?command", str(error), re.IGNORECASE) is not None


def is_full(error: object) -> bool:
    """True for a reply that is the error of a server at its `maxmemory`."""
    return isinstance(error, Exception) and "'maxmemory'" in str(error)


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """The error and its causes, each once."""
    known = set[int]()
    while error is not None and id(error) not in known:
        known.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


_opened: WeakSet[Connection] = WeakSet()
_of_parent: list[Connection] = []


def _leave_to_parent() -> None:
    """Keep a forked child from closing its parent's connections, or garbage-collecting them. Both
    processes share a selector, so the parent would receive nothing more.
    """
    for connection in _opened:
        connection._is_parents = True
        _of_parent.append(connection)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_leave_to_parent)


@dataclass(frozen=True)
class Connector:
    """Opens connections, all with the same options, to any address. Raises what they raise."""

    connection_class: type[redis_py.AbstractConnection]
    options: Mapping[str, Any]
    """The arguments of its constructor, from the URL."""
    call_timeout: float
    """How many seconds a round trip may take."""
    source: str
    """Where the user name and the password were set, for errors."""

    async def connect(self, target: Target) -> Connection:
        """Open a new connection; one attempt."""
        try:
            return await Connection(self, target).connect()
        except PasswordRefusedError:
            if "credential_provider" not in self.options:
                raise
            return await Connection(self, target).connect()  # they may just have changed

    async def connect_again(self, target: Target) -> Connection:
        """Open a new connection in another thread, with the credentials that were returned last. If
        they have expired, the function is called, unless only its own event loop can await it.
        """
        options = {**self.options}
        provider = options.pop("credential_provider", None)
        if provider is not None:
            *user, options["password"] = provider.last
            options["username"] = user[0] if user else None
        try:
            return await Connection(replace(self, options=options), target).connect()
        except PasswordRefusedError:
            if provider is None or provider.is_of_loop:
                raise
            return await Connection(self, target).connect()

    async def ask(self, address: Address, what: str, command: tuple[str, ...]) -> Any:
        """Send one command to a sentinel or a cluster node (`what`)."""
        connection = await self.connect(Target(address, f"the {what} at {address}"))
        try:
            (reply,) = await connection.call([command])
        finally:
            await connection.close()
        is_error = isinstance(reply, ResponseError)
        if is_error and (is_unknown_command(reply) or "cluster support disabled" in str(reply)):
            raise ServerRefusedError(f"{address} is not a {what}")
        connection.check([reply])
        return reply

    def make(self, address: Address) -> redis_py.AbstractConnection:
        """A connection of redis-py's, not connected yet. Raises `TypeError` or `ValueError` for
        options that it does not take.
        """
        where: dict[str, Any] = {"host": address.host, "port": address.port}
        if address.path:
            where = {"path": address.path}
        # `Connection` sets time limits: those of redis-py cost a task for each command, in which
        # Python 3.11 can lose a cancellation. It also selects the database.
        return self.connection_class(
            **self.options,
            **where,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=None,
            socket_connect_timeout=None,
            health_check_interval=0,
            client_name="scrapy-semaphore",
            **ANONYMOUS,
        )
