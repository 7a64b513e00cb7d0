"""From a URL to the server: one link for commands, one for grants.

A `Link` is one connection, and so it ends in one life of one server. redis-py's client and its pool
reconnect and send again behind the caller's back: a call meant for one life would reach the next.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import ssl
from collections.abc import Callable, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

from hiredis import pack_command
from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    InvalidResponse,
    NoPermissionError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from semaphore_middleware.errors import ServerRefusedError, ServerUnreachableError, SettingsError
from semaphore_middleware.redis.server_state import BORN_EMPTY, Life

logger = logging.getLogger(__name__)

SCHEMES = ("redis://", "rediss://", "unix://")
OLDEST = (6, 2)
Reply = Any


class Server:
    """Where the server is and how to reach it; `str()` of it shows no password."""

    def __init__(self, url: str, timeout: float, where: str = "the server's URL") -> None:
        if not url.startswith(SCHEMES):
            raise SettingsError(
                f"{where}: not a server's address; allowed is redis://host:port/db, "
                "rediss://host:port/db or unix:///path?db=N"
            )
        try:
            host, *rest = re.split("[/?#]", url.partition("://")[2], maxsplit=1)
            if host and "@" in "".join(rest):  # a part of the password would be taken for the host
                raise ValueError
            if not url.startswith("unix:") and not re.fullmatch(r"/?\d*", urlsplit(url).path):
                raise ValueError  # redis-py would take a name for database 0
            self._pool = ConnectionPool.from_url(url)
            # After the URL's own options, which would win. `Link` sets time limits: redis-py's own
            # cost a task for each command, in which Python 3.11 can lose a cancellation.
            self._pool.connection_kwargs.update(
                protocol=2,
                decode_responses=False,
                retry=Retry(NoBackoff(), 0),
                socket_timeout=None,
                socket_connect_timeout=None,
                health_check_interval=0,
                client_name="scrapy-semaphore",
            )
            self.timeout = timeout
            self._name = _name_of(self._make_connection(), url)
        except (ValueError, TypeError):  # its text may hold a part of the password
            raise SettingsError(
                f"{where}: the address cannot be read; check its port, its database number, its "
                "options, and that special characters in the password are percent-encoded"
            ) from None

    def __str__(self) -> str:
        return self._name

    def _make_connection(self) -> AbstractConnection:
        return cast("AbstractConnection", self._pool.make_connection())  # type: ignore[no-untyped-call]

    async def connect(self) -> Link:
        """A new link. Raises `ServerUnreachableError`, or `ServerRefusedError`: waiting is vain."""
        link = Link(self._make_connection(), self)
        try:
            try:
                await link.connect()
            except (RedisError, OSError) as error:
                raise self._explain(error) from None
            link.life = await self.look_at(link)
        except BaseException:
            await link.close()
            raise
        return link

    async def reach(
        self,
        complain: Callable[[Exception], None],
        give_up: type[Exception] | tuple[type[Exception], ...] = (),
    ) -> Link:
        """A link to the server, however long it takes. `complain` hears why not yet."""
        attempt = 0
        while True:
            try:
                link = await self.connect()
            except give_up:
                raise
            except (ServerUnreachableError, ServerRefusedError) as error:
                complain(error)
                await asyncio.sleep(patience(attempt))
                attempt += 1
            else:
                if attempt:
                    logger.info("Reached %s.", self)
                return link

    async def look_at(self, link: Link) -> Life:
        sections = ("server", "replication", "stats", "memory", "commandstats")
        info: dict[str, str] = {}
        *texts, born = await link.call([*(("INFO", s) for s in sections), ("GET", BORN_EMPTY)])
        for text in texts:
            if isinstance(text, Exception):
                raise self._explain(text)
            lines = text.decode("utf-8", "replace").splitlines()
            info.update(line.split(":", 1) for line in lines if ":" in line)
        version = info.get("redis_version", "0")
        if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
            raise ServerRefusedError(f"{self} is version {version}; version 6.2 or newer is needed")
        if info.get("role") != "master":
            raise ServerRefusedError(
                f"{self} is a read-only replica; give the address of its master"
            )
        if "run_id" not in info:
            raise ServerRefusedError(f"{self} tells no run_id, as Redis and Valkey do")
        return Life.read(info, born_empty=born == info["run_id"].encode())

    def text_of(self, error: BaseException) -> str:
        if isinstance(error, TimeoutError) and not str(error):
            return f"no answer within {self.timeout:g} s"
        return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__

    def _explain(self, error: Exception) -> Exception:
        """Our word for redis-py's error: will it pass by itself, or not?"""
        if isinstance(error.__cause__, RedisError):  # as redis-py has it on a Unix socket
            error = error.__cause__
        text = self.text_of(error)
        if isinstance(error, BusyLoadingError):
            return ServerUnreachableError(f"{self} is still loading its data")
        if "MASTERDOWN" in text:
            return ServerUnreachableError(f"{self}: {text}")
        if isinstance(error, AuthenticationError | AuthorizationError) or "NOAUTH" in text:
            return ServerRefusedError(f"{self} does not accept this user name and password")
        if isinstance(error, NoPermissionError):
            return ServerRefusedError(f"{self} does not permit this user what is needed: {text}")
        if isinstance(error, InvalidResponse) or "Protocol" in text:
            return ServerRefusedError(f"{self} does not speak the Redis protocol")
        if isinstance(error, ssl.SSLError) or isinstance(error.__cause__, ssl.SSLError):
            return ServerRefusedError(f"{self}: TLS failed: {text}")
        if isinstance(error, ResponseError):
            return ServerRefusedError(f"{self} refuses: {text}")
        return ServerUnreachableError(f"cannot reach {self}: {text}")


class Link:
    """One connection to one life of the server. After any error it is closed and of no more use."""

    life: Life

    def __init__(self, connection: AbstractConnection, server: Server) -> None:
        self._connection = connection
        self._server = server

    async def connect(self) -> None:
        """Raises what redis-py raises: `Server` explains it."""
        async with asyncio.timeout(self._server.timeout):
            await self._connection.connect()  # type: ignore[no-untyped-call]

    async def call(
        self, commands: Sequence[tuple[Any, ...]], first_apart: bool = False
    ) -> list[Reply]:
        """Send all, then read all. A command's own error stands in its place in the list.

        With `first_apart` the server need not do them all before others hear of the first.
        Raises `ServerUnreachableError` if the connection breaks; what was sent may have been done.
        """
        try:
            if not self._connection.is_connected:
                raise ConnectionResetError("the connection is closed")
            # hiredis packs: redis-py does it in Python, where that is most of a call's cost.
            packed = [pack_command(command) for command in commands]
            async with asyncio.timeout(self._server.timeout):
                if first_apart and len(packed) > 1:
                    await self._send(packed[:1])
                    del packed[0]
                await self._send(packed)
                return [await self._reply() for _ in commands]
        except (RedisError, OSError) as error:
            await self.close()
            raise ServerUnreachableError(
                f"lost the connection to {self._server}: {self._server.text_of(error)}"
            ) from None
        except BaseException:  # cancelled halfway: replies would no longer fit their commands
            await self.close()
            raise

    async def _send(self, packed: Sequence[bytes]) -> None:
        await self._connection.send_packed_command(b"".join(packed), check_health=False)

    async def _reply(self) -> Reply:
        try:
            return await self._connection.read_response()
        except (ReadOnlyError, BusyLoadingError):
            raise  # this server can no longer serve: like a broken connection
        except ResponseError as error:
            return error

    async def listen(
        self, channels: Sequence[bytes], quiet: float, heard: Callable[[Any], None]
    ) -> None:
        """Subscribe, say `heard(None)`, then `heard(payload)` for each message, until it breaks.

        `quiet` is how many seconds of silence to bear before asking whether the server is there.
        Raises `ServerUnreachableError`.
        """
        try:
            await self._connection.send_command("SUBSCRIBE", *channels)
            asked = False
            while True:
                message = await self._connection.read_response(
                    timeout=quiet, disconnect_on_error=False
                )
                if message is None:  # what redis-py returns after `timeout`
                    if asked:
                        raise ConnectionResetError("no answer")
                    await self._connection.send_command("PING", check_health=False)
                    asked = True
                    continue
                asked = False
                if message[0] == b"subscribe":
                    if message[2] == len(channels):
                        heard(None)
                elif message[0] == b"message":
                    heard(message[2])
        except (RedisError, OSError) as error:
            raise ServerUnreachableError(
                f"lost the grants channel of {self._server}: {self._server.text_of(error)}"
            ) from None
        finally:
            await self.close()

    async def close(self) -> None:
        await self._connection.disconnect(nowait=True)


def patience(attempt: int) -> float:
    """Seconds to wait before the next attempt to reach the server, after `attempt` failures."""
    return min(1.0, 0.05 * math.pow(2, min(attempt, 10)))


def _name_of(connection: Any, url: str) -> str:
    path = getattr(connection, "path", "")
    if path:
        return f"unix://{path}"
    scheme, _, _ = url.partition("://")
    return f"{scheme}://{connection.host}:{connection.port}/{connection.db}"
