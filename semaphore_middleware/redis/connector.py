"""Opens connections with the options of one URL: user, password, TLS, time limit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from redis.asyncio import connection as redis_py
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from semaphore_middleware.redis.connection import Address, Connection


class Connector:
    """Opens connections, all with the same options, to any address.

    `options` are those of redis-py's class; `call_timeout` is how many seconds a round trip may
    take.
    """

    def __init__(
        self,
        connection_class: type[redis_py.AbstractConnection],
        options: Mapping[str, Any],
        call_timeout: float,
    ) -> None:
        self._connection_class = connection_class
        self._options = options
        self._call_timeout = call_timeout

    def check(self, address: Address) -> None:
        """Raises `TypeError` or `ValueError` for options that redis-py does not take."""
        self._make(address, None)

    async def connect(
        self,
        address: Address,
        name: str,
        database: int = 0,
        credentials: Mapping[str, str] | None = None,
        *,
        find_master: Callable[[], Awaitable[Address]] | None = None,
        was_found: bool = False,
    ) -> Connection:
        """Open a new connection; one attempt. `name` is what errors call the server; `credentials`
        stand in for those of the options; `find_master` and `was_found` become the connection's.

        Raises `ServerUnreachableError`, or `ServerRefusedError` where waiting would not help.
        """
        connection = Connection(
            self._make(address, credentials),
            address,
            name,
            database,
            self._call_timeout,
            self._options,
            find_master=find_master,
            was_found=was_found,
        )
        await connection.connect()
        return connection

    def _make(
        self, address: Address, credentials: Mapping[str, str] | None
    ) -> redis_py.AbstractConnection:
        options = dict(self._options)
        if credentials is not None:
            options = {**options, "username": None, "password": None, **credentials}
        where: dict[str, Any] = {"host": address.host, "port": address.port}
        if address.path:
            where = {"path": address.path}
        # `Connection` sets time limits: those of redis-py cost a task for each command, in which
        # Python 3.11 can lose a cancellation. It also chooses the database.
        connection = self._connection_class(
            **options,
            **where,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=None,
            socket_connect_timeout=None,
            health_check_interval=0,
            client_name="scrapy-semaphore",
        )
        for told in ("driver_info", "lib_name", "lib_version"):  # by a command of one more right
            setattr(connection, told, None)
        return connection
