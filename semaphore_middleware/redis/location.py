"""From a URL to the server: where it is, and a connection to it."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import urlsplit

from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from semaphore_middleware.errors import ServerRefusedError, ServerUnreachableError, SettingsError
from semaphore_middleware.redis.connection import Connection, retry_delay

logger = logging.getLogger(__name__)

SCHEMES = ("redis://", "rediss://", "unix://")
URL_NAMES = ("SEMAPHORE_REDIS_URL", "REDIS_URL")  # in the settings, then in the environment


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
            self._pool = ConnectionPool.from_url(url)
            # After the URL's own options, which would win. `Connection` sets time limits: those of
            # redis-py cost a task for each command, in which Python 3.11 can lose a cancellation.
            self._pool.connection_kwargs.update(
                protocol=2,
                decode_responses=False,
                retry=Retry(NoBackoff(), 0),
                socket_timeout=None,
                socket_connect_timeout=None,
                health_check_interval=0,
                client_name="scrapy-semaphore",
            )
            self._call_timeout = call_timeout
            self._name = _name_of(self._make_connection(), url)
        except (ValueError, TypeError):  # its text may hold a part of the password
            raise SettingsError(
                f"{where}: the address cannot be read; check its port, its database number, its "
                "options, and that special characters in the password are percent-encoded"
            ) from None

    def __str__(self) -> str:
        return self._name

    async def connect(self) -> Connection:
        """Open a new connection; one attempt.

        Raises `ServerUnreachableError`, or `ServerRefusedError` where waiting would not help.
        """
        connection = Connection(self._make_connection(), self._name, self._call_timeout)
        await connection.open()
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

    def _make_connection(self) -> AbstractConnection:
        return cast("AbstractConnection", self._pool.make_connection())  # type: ignore[no-untyped-call]


def _name_of(connection: Any, url: str) -> str:
    path = getattr(connection, "path", "")
    if path:
        return f"unix://{path}"
    scheme, _, _ = url.partition("://")
    return f"{scheme}://{connection.host}:{connection.port}/{connection.db}"
