"""From a URL to the server: where it is, and a connection to it."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast
from urllib.parse import urlsplit

from redis.asyncio import connection as redis_py
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from semaphore_middleware.errors import ServerRefusedError, ServerUnreachableError, SettingsError
from semaphore_middleware.redis import tls
from semaphore_middleware.redis.connection import Connection, retry_delay

logger = logging.getLogger(__name__)

SCHEMES = ("redis://", "rediss://", "unix://")
URL_NAMES = ("SEMAPHORE_REDIS_URL", "REDIS_URL")  # in the settings, then in the environment

USED = ("host", "port", "path", "username", "password", "socket_keepalive")
IGNORED = (  # options of redis-py that others may need who use the same URL
    *("client_name", "decode_responses", "encoding", "encoding_errors", "health_check_interval"),
    *("legacy_responses", "max_connections", "protocol", "retry_on_timeout", "socket_read_size"),
    *("socket_connect_timeout", "socket_timeout", "timeout"),
)


def url_from_environment() -> tuple[str | None, str]:
    """The URL in the environment, and where it was set; None means the embedded server."""
    for name in URL_NAMES:
        if os.environ.get(name):
            return os.environ[name], f"{name} in the environment"
    return None, "the environment"


class Server:
    """Where the server is and how to reach it; `str()` of it shows no password.

    `call_timeout` is how many seconds a round trip may take. Raises `SettingsError` for a URL that
    cannot be read; `where` says in it where the URL was set.
    """

    def __init__(self, url: str, call_timeout: float, where: str = "the server's URL") -> None:
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
            options: dict[str, Any] = {**parse_url(url)}
        except ValueError:  # its text may hold a part of the password
            raise _unreadable(where) from None
        self._connection_class = options.pop("connection_class", redis_py.Connection)
        self._database = options.pop("db", 0)
        self._options = _checked(options, self._connection_class, where)
        self._call_timeout = call_timeout
        self._was_reached = False
        try:
            self._name = _name_of(self._make_connection(), self._database, url)
        except (ValueError, TypeError):  # such as an option that this release does not know
            raise _unreadable(where) from None

    def __str__(self) -> str:
        return self._name

    async def connect(self) -> Connection:
        """Open a new connection; one attempt.

        Raises `ServerUnreachableError`, or `ServerRefusedError` where waiting would not help.
        """
        opened = self._make_connection()
        connection = Connection(
            opened, self._name, self._database, self._call_timeout, self._options
        )
        try:
            await connection.open()
        except ServerUnreachableError:
            if not self._was_reached and (problem := await self._diagnose(opened)):
                raise ServerRefusedError(f"{self._name}: {problem}") from None
            raise
        self._was_reached = True
        return connection

    async def reach(
        self,
        on_failure: Callable[[Exception], None],
        give_up: type[Exception] | tuple[type[Exception], ...] = (),
    ) -> Connection:
        """Open a new connection, however many attempts it takes.

        `on_failure` is called with the error of each attempt that failed, but for the errors to
        `give_up` at, which are raised.
        """
        attempt = 0
        while True:
            try:
                connection = await self.connect()
            except give_up:
                raise
            except (ServerUnreachableError, ServerRefusedError) as error:
                on_failure(error)
                await asyncio.sleep(retry_delay(attempt))
                attempt += 1
            else:
                if attempt:
                    logger.info("Reached %s.", self)
                return connection

    def _make_connection(self) -> redis_py.AbstractConnection:
        # `Connection` sets time limits: those of redis-py cost a task for each command, in which
        # Python 3.11 can lose a cancellation. It also chooses the database.
        connection = self._connection_class(
            **self._options,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=None,
            socket_connect_timeout=None,
            health_check_interval=0,
            client_name="scrapy-semaphore",
        )
        for told in ("driver_info", "lib_name", "lib_version"):  # by a command of one more right
            setattr(connection, told, None)
        return cast("redis_py.AbstractConnection", connection)

    async def _diagnose(self, connection: Any) -> str | None:
        """What is wrong, if it is about TLS; nothing can be said of a socket without a host."""
        if not hasattr(connection, "host"):
            return None
        has_tls = isinstance(connection, redis_py.SSLConnection)
        context = connection.ssl_context.get() if has_tls else None
        with suppress(TimeoutError):
            async with asyncio.timeout(self._call_timeout):
                return await tls.diagnose(connection.host, connection.port, context, self._options)
        return None


def _checked(options: dict[str, Any], connection_class: type, where: str) -> dict[str, Any]:
    """The options of a URL that count. Raises `SettingsError`."""
    unknown = [name for name in options if name not in (*USED, *IGNORED, *tls.OPTIONS)]
    if unknown:  # its name may be a part of the password
        allowed = ", ".join(sorted(("db", *USED, *tls.OPTIONS)))
        raise SettingsError(f"{where}: it has an option that is not known; known are {allowed}")
    is_tls = issubclass(connection_class, redis_py.SSLConnection)
    if not is_tls and (names := [name for name in options if name in tls.OPTIONS]):
        raise SettingsError(f"{where}: {names[0]} needs an address that begins with 'rediss'")
    if is_tls:
        tls.check_options(options, where)
    return {name: value for name, value in options.items() if name not in IGNORED}


def _unreadable(where: str) -> SettingsError:
    return SettingsError(
        f"{where}: the address cannot be read; check its port, its database number, its "
        "options, and that special characters in the password are percent-encoded"
    )


def _name_of(connection: Any, database: int, url: str) -> str:
    path = getattr(connection, "path", "")
    if path:
        return f"unix://{path}"
    scheme, _, _ = url.partition("://")
    return f"{scheme}://{connection.host}:{connection.port}/{database}"
