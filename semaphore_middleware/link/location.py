"""Finds the present master of a URL, and connects to it."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import redis
from redis.asyncio import connection as redis_py
from redis.asyncio.connection import parse_url
from redis.crc import key_slot

from semaphore_middleware.errors import ServerRefusedError, ServerUnreachableError, SettingsError
from semaphore_middleware.link import embedded
from semaphore_middleware.link.connection import (
    TLS_OPTIONS,
    Address,
    ClusterNodeError,
    Connection,
    Connector,
    Target,
    check_tls_options,
    tls_version,
)
from semaphore_middleware.link.credentials import ChangingCredentials
from semaphore_middleware.link.environment import text_of
from semaphore_middleware.link.text import tag_of

logger = logging.getLogger(__name__)

SCHEMES = (
    "redis",
    "redis+sentinel",
    "redis+cluster",
    "rediss",
    "rediss+sentinel",
    "rediss+cluster",
    "unix",
)
PORTS = {"sentinel": 26379, "cluster": 6379, "": 6379}  # by the kind of server that a URL names

USED = ("username", "password", "socket_keepalive")
FOR_SENTINELS = {"sentinel_username": "username", "sentinel_password": "password"}
IGNORED = (  # options of redis-py that other programs with the same URL may need
    "client_name",
    "decode_responses",
    "encoding",
    "encoding_errors",
    "health_check_interval",
    "legacy_responses",
    "max_connections",
    "protocol",
    "retry_on_timeout",
    "socket_connect_timeout",
    "socket_read_size",
    "socket_timeout",
    "timeout",
)


class Server:
    """The server of a URL. Its `str()` shows no password.

    `call_timeout` is how many seconds a round trip may take; `prefix` is the first part of every
    key. `credentials` is called for each connection; `options` of TLS are added to those in the
    URL. Raises `SettingsError` for a URL that cannot be read; `where` is the place where the URL
    was set. Its methods raise what those of a `Connection` do.
    """

    def __init__(
        self,
        url: str,
        call_timeout: float,
        where: str = "the server's URL",
        prefix: str = "semaphore",
        credentials: Callable[[], object] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._url = url
        self.call_timeout = call_timeout
        more = options or {}
        check_names(more)
        try:
            self._parts = parts = _read(url, more)
            checked = _checked(parts)
            of_sentinels = {name: checked.pop(key, None) for key, name in FOR_SENTINELS.items()}
            for_sentinels = {**checked, **of_sentinels}
            if credentials is not None:
                checked = _with_credentials(checked, credentials, call_timeout)
            source = where if credentials is None else "SEMAPHORE_REDIS_CREDENTIALS"
            self._connector = Connector(parts.connection_class, checked, call_timeout, source)
            self._connector.make(parts.addresses[0])
        except (TypeError, ValueError) as error:
            raise SettingsError(f"{where}: {_problem_of(error)}") from None
        self._sentinels: Sentinels | None = None
        if parts.kind == "sentinel":
            own = replace(self._connector, options=for_sentinels, source=where)
            self._sentinels = Sentinels(parts.addresses, parts.service, own)
        self._cluster = Cluster(parts.addresses, tag_of(prefix), self._connector)
        self.is_cluster = parts.kind == "cluster"
        """Known for sure after the first `connect`."""

    def __str__(self) -> str:
        return self._parts.name

    async def connect(self) -> Connection:
        """Open a new connection; one attempt."""
        if self._sentinels is not None:
            address = await self._sentinels.find_master()
            name = f"the master of {self._sentinels.service!r} at {address}"
            is_replaced = self._sentinels.is_replaced
            return await self._connect_to(
                Target(address, name, self._parts.database, was_found=True, is_replaced=is_replaced)
            )
        if not self.is_cluster:
            address = self._parts.addresses[0]
            target = Target(
                address,
                str(self),
                self._parts.database,
                is_replaced=self._has_moved if self.is_one_name else None,
            )
            try:
                return await self._connect_to(target)
            except ClusterNodeError:
                if address.path:  # the other nodes have no socket here
                    raise
                self.is_cluster = True
        owner, _ = await self._cluster.find()
        return await self._connect_to_node(owner)

    @property
    def is_one_name(self) -> bool:
        """True if the URL names a single host: all connections must lead to one server."""
        path = self._parts.addresses[0].path
        return not (path or self.is_cluster or self._sentinels is not None)

    @property
    def is_loopback(self) -> bool:
        """True if all addresses of the URL are this machine's own, over TCP."""
        return all(address.is_loopback for address in self._parts.addresses)

    async def _has_moved(self, connection: Connection) -> bool:
        """True if the host name now leads to another server. Raises `OSError`."""
        host, loop = connection.address.host, asyncio.get_running_loop()
        if connection.peer in ("", host):
            return False
        found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        if connection.peer in {sockaddr[0] for *_, sockaddr in found}:
            return False
        target = Target(connection.address, str(self), self._parts.database)
        probe = await self._connect_to(target)
        await probe.close()
        is_same_run = probe.facts["run_id"] == connection.facts["run_id"]
        return not is_same_run and probe.replication != connection.replication

    async def each_master(self) -> AsyncGenerator[Connection]:
        """A new connection to each server with keys of ours, whatever their slot: in a cluster to
        all masters. Each is closed before the next one.
        """
        connection = await self.connect()
        others: list[Address] | None = None
        while True:
            try:
                if others is None:
                    others = await self._other_masters(connection)
                yield connection
            finally:
                await connection.close()
            if not others:
                return
            connection = await self._connect_to_node(others.pop())

    async def _other_masters(self, connection: Connection) -> list[Address]:
        if not self.is_cluster:
            return []
        _, masters = await self._cluster.find()
        return [address for address in masters if address != connection.address]

    async def _connect_to_node(self, address: Address) -> Connection:
        target = Target(address, f"{self} at {address}", self._parts.database, was_found=True)
        return await self._connect_to(target)

    async def _connect_to(self, target: Target) -> Connection:
        try:
            connection = await self._connector.connect(target)
        except ServerUnreachableError:
            is_embedded = embedded.is_joined(self._url)
            if not (is_embedded and await asyncio.to_thread(embedded.start_again, self._url)):
                raise
            connection = await self._connector.connect(target)
        try:
            await connection.check_server()
        except BaseException:
            await connection.close()
            raise
        return connection


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a URL."""

    scheme: str
    kind: str
    """The kind of the addresses: `sentinel`, `cluster`, or nothing for the server's own."""
    addresses: Sequence[Address]
    service: str
    database: int
    options: dict[str, Any]
    connection_class: type[redis_py.AbstractConnection]

    @property
    def name(self) -> str:
        """The URL, without secrets."""
        if self.scheme == "unix":
            return f"unix://{self.addresses[0]}"
        service = f"/{self.service}" if self.service else ""
        addresses = ",".join(map(str, self.addresses))
        return f"{self.scheme}://{addresses}{service}/{self.database}"


def _problem_of(error: Exception) -> str:
    """The problem with a URL. The text of an error that is not ours may hold a part of the
    password.
    """
    if isinstance(error, SettingsError):
        return str(error)
    unknown = re.search(r"argument '(\w+)'", str(error))
    if isinstance(error, TypeError) and unknown:
        return f"redis-py {redis.__version__} does not know the option {unknown[1]}"
    return (
        "the address cannot be read; check its host, its port, its database number, its options, "
        "and that special characters in the password are percent-encoded"
    )


def check_names(options: Mapping[str, Any]) -> None:
    """Check that all of these are options of TLS. Raises `SettingsError`."""
    if unknown := [name for name in options if name not in TLS_OPTIONS]:
        raise SettingsError(
            f"SEMAPHORE_REDIS_OPTIONS: {unknown[0]!r} is not an option of TLS; allowed are "
            f"{', '.join(TLS_OPTIONS)}"
        )


def _with_credentials(
    options: Mapping[str, Any], function: Callable[[], object], seconds: float
) -> dict[str, Any]:
    """The options with these credentials in place of a user name."""
    if "password" in options:
        raise SettingsError("it has a password, and SEMAPHORE_REDIS_CREDENTIALS gives another one")
    others = {name: value for name, value in options.items() if name != "username"}
    provider = ChangingCredentials(function, options.get("username"), 0.8 * seconds)
    return {**others, "credential_provider": provider}


def _read(url: str, more: Mapping[str, Any]) -> _Parts:
    """The parts of a URL, with more options. Raises `ValueError`."""
    scheme, user, hosts, path, query = _split(url)
    transport, _, kind = scheme.partition("+")
    service = ""
    if kind == "sentinel":
        service, path = _split_service(path)
    if scheme == "unix":
        if not path:  # unix://redis.sock names a host
            raise ValueError
        addresses = [Address(path=unquote(path))]
    else:
        if not re.fullmatch(r"/?\d*", path):  # redis-py would read a name as database 0
            raise SettingsError("the database number after the last '/' is not a number")
        named = [_address(host, kind) for host in hosts.split(",")]
        addresses = list(dict.fromkeys(named))  # each has one vote
    if len(addresses) > 1 and not kind:
        raise ValueError
    options = _options(f"{transport}://{user}@localhost{path}", query, more)
    options.pop("path" if scheme == "unix" else "host")
    connection_class = options.pop("connection_class", redis_py.Connection)
    database = options.pop("db", 0)
    return _Parts(scheme, kind, addresses, service, database, options, connection_class)


def _split(url: str) -> tuple[str, str, str, str, str]:
    """Scheme, user with password, hosts, path and query of a URL. Raises `ValueError`."""
    scheme, found, rest = url.partition("://")
    scheme = re.sub("^valkey", "redis", scheme)  # as some platforms write it
    if not found or scheme not in SCHEMES:
        raise SettingsError(
            "not a server's address; allowed is redis://host:port/db, rediss://host:port/db, "
            "unix:///path?db=N, redis+cluster://host:port,host:port or "
            "redis+sentinel://host:port,host:port/service/db"
        )
    authority, *others = re.split("[/?#]", rest, maxsplit=1)
    if authority and "@" in "".join(others):  # a part of the password would be taken for the host
        raise ValueError
    user, _, hosts = authority.rpartition("@")
    # Without the hosts: urlsplit refuses a list of them that has an IPv6 address in it.
    split = urlsplit(f"//{rest[len(authority) :]}")
    return scheme, user, hosts, split.path, split.query


def _split_service(path: str) -> tuple[str, str]:
    """The service of the sentinels, and the rest of the path. Raises `SettingsError`."""
    service, slash, database = path.removeprefix("/").partition("/")
    if not service:
        raise SettingsError("no service is named; allowed is redis+sentinel://…/service")
    return unquote(service), slash + database


def _address(text: str, kind: str) -> Address:
    """A host, or a host and its port. Raises `ValueError`."""
    split = urlsplit(f"//{text}")
    try:
        port = split.port or PORTS[kind]
    except ValueError:
        raise SettingsError("the port after the host is not a number up to 65535") from None
    if kind and not split.hostname:
        raise ValueError
    host = unquote(split.hostname or "localhost")
    host.encode("idna")  # as for its look-up: otherwise each attempt to connect would fail
    return Address(host, port)


def _options(url: str, query: str, more: Mapping[str, Any]) -> dict[str, Any]:
    """User, password, database and options of one server, as redis-py reads them."""
    given = {**dict(parse_qsl(query)), **{name: text_of(value) for name, value in more.items()}}
    version = given.pop("ssl_min_version", None)
    if "ssl_cert_reqs" in given:  # many write CERT_NONE, as in Python, or None
        given["ssl_cert_reqs"] = given["ssl_cert_reqs"].lower().removeprefix("cert_")
    options: dict[str, Any] = {**parse_url(f"{url}?{urlencode(given)}")}
    before = parse_url(url)
    for name, text in given.items():  # redis-py before 8.1 decodes a text of the query twice
        if name not in before and isinstance(options.get(name), str):
            options[name] = text
    if version:
        options["ssl_min_version"] = tls_version(version)
    return options


def _checked(parts: _Parts) -> dict[str, Any]:
    """The options of a URL, without those to ignore. Raises `SettingsError`."""
    options = parts.options
    known = (*USED, *TLS_OPTIONS, *(FOR_SENTINELS if parts.service else ()))
    names = list(options)  # those of the query come first
    if unknown := [name for name in names if name not in (*known, *IGNORED)]:
        before = names[: names.index(unknown[0])]
        # Behind a password, the name may be a part of it.
        named = "" if any("password" in name for name in before) else f" {unknown[0]!r}"
        raise SettingsError(f"it has an unknown option{named}; known are {', '.join(known)}, db")
    if issubclass(parts.connection_class, redis_py.SSLConnection):
        check_tls_options(options)
    elif of_tls := [name for name in options if name in TLS_OPTIONS]:
        raise SettingsError(f"{of_tls[0]} needs an address that begins with 'rediss'")
    return {name: value for name, value in options.items() if name not in IGNORED}


class Sentinels:
    """The sentinels of a URL. All are asked each time, and the majority of the answers counts: a
    sentinel that is cut off from the others may name a replaced master. A master that answers is
    left only if the majority of all sentinels names another.
    """

    def __init__(self, addresses: Sequence[Address], service: str, connector: Connector) -> None:
        self._addresses = addresses
        self.service = service
        self._connector = connector

    async def find_master(self, of_all: bool = False) -> Address:
        """The master by the majority of the sentinels that answer, or of all of them (`of_all`)."""
        answers, problems = await self._ask_all()
        if not answers:
            # One that refuses will go on refusing, but another may come back.
            raise min(problems, key=lambda problem: isinstance(problem, ServerRefusedError))
        ((answer, count),) = answers.most_common(1)
        if 2 * count <= (len(self._addresses) if of_all else answers.total()):
            named = ", ".join(str(answer or "none") for answer in answers)
            raise ServerUnreachableError(
                f"the sentinels do not agree on the master of {self.service!r}: {named}"
            )
        if answer is None:
            raise ServerRefusedError(f"the sentinels know no service {self.service!r}")
        return answer

    async def is_replaced(self, connection: Connection) -> bool:
        """True if the majority of all sentinels names another master than the connection's."""
        return await self.find_master(of_all=True) != connection.address

    async def _ask_all(self) -> tuple[Counter[Address | None], list[Exception]]:
        """All answers and errors, until a majority of all sentinels agrees."""
        asked = [asyncio.create_task(self._ask(address)) for address in self._addresses]
        answers: Counter[Address | None] = Counter()
        problems: list[Exception] = []
        try:
            for task in asyncio.as_completed(asked):
                try:
                    answer = await task
                except (ServerUnreachableError, ServerRefusedError) as problem:
                    problems.append(problem)
                    continue
                answers[answer] += 1
                if 2 * answers[answer] > len(asked):
                    break  # whatever the others answer
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        return answers, problems

    async def _ask(self, address: Address) -> Address | None:
        """Its answer; None: it does not know the service."""
        command = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)
        reply = await self._connector.ask(address, "sentinel", command)
        return Address(reply[0].decode(), int(reply[1])) if reply else None


NO_HOST_NAME = b"?"  # of a node without a name, in a cluster whose nodes have names


class Cluster:
    """The nodes of a cluster: those in its URL and in the last answer. Each time another one is
    asked first: one that is cut off may name a replaced owner of the slot.

    `key` is any of our keys.
    """

    def __init__(self, addresses: Iterable[Address], key: bytes, connector: Connector) -> None:
        self._named = tuple(addresses)
        self._nodes = deque(self._named)
        self._slot = key_slot(key)
        self._connector = connector

    async def find(self) -> tuple[Address, list[Address]]:
        """The owner of our slot, and all masters with slots, by the first answer of a node."""
        problem: Exception | None = None
        for _ in range(len(self._nodes)):
            address = self._nodes[0]
            self._nodes.rotate(-1)
            try:
                return await self._ask(address)
            except ServerUnreachableError as error:
                problem = error
            except ServerRefusedError as error:
                problem = problem or error  # another one may come back
        assert problem is not None
        raise problem

    async def _ask(self, address: Address) -> tuple[Address, list[Address]]:
        reply = await self._connector.ask(address, "cluster node", ("CLUSTER", "SLOTS"))
        owner: Address | None = None
        masters, present = [], []
        for first, last, *nodes in reply:
            found = [_address_of(node, address) for node in nodes]
            masters.append(found[0])
            present += found
            if first <= self._slot <= last:
                owner = found[0]
        if owner is None:
            raise ServerUnreachableError(
                f"the cluster node at {address} knows no owner of slot {self._slot}"
            )
        # Nodes that have left are not asked any more: each would cost a call's time.
        kept = [node for node in self._nodes if node in self._named or node in present]
        self._nodes = deque(dict.fromkeys([*kept, *present]))
        return owner, list(dict.fromkeys(masters))


def _address_of(node: Any, asked: Address) -> Address:
    """The address of a node in the reply; if it does not know its own, the one it was asked at."""
    host, port, _, *more = node
    if host == NO_HOST_NAME:
        named = dict(zip(more[0][::2], more[0][1::2], strict=True))
        host = named.get(b"ip")
    return Address(host.decode() if host else asked.host, port)
