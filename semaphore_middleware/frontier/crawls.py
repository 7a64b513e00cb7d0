"""All shared crawls of a server, as operators see and change them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace

from scrapy.settings import BaseSettings

from semaphore_middleware.frontier.client import CALL_TIMEOUT_S, CrawlClient, NewRequest, Queued
from semaphore_middleware.frontier.codec import StartEncoder
from semaphore_middleware.frontier.settings import CrawlSettings
from semaphore_middleware.frontier.starts import stripped
from semaphore_middleware.frontier.state import Counts, CrawlKeys, commands_for
from semaphore_middleware.model.hosts import encoded
from semaphore_middleware.redis.connection import Connection
from semaphore_middleware.redis.location import Server

CRAWLS_PER_CALL = 100  # that are counted in one round trip
ADDED_PER_CALL = 500  # requests


class Crawls:
    """The shared crawls of one server, or of all masters of a cluster.

    `settings` say where they are, and for `add` how a run begins. Each call, and each `of`, opens
    connections of its own.

    Raises `SettingsError` for a URL or a prefix that is not allowed. Each method also raises
    `ServerUnreachableError` and `ServerRefusedError`.
    """

    def __init__(self, settings: CrawlSettings) -> None:
        self._settings = settings
        self._server = Server(settings.url, CALL_TIMEOUT_S, settings.url_from, settings.prefix)

    @property
    def server(self) -> str:
        """The server's address, without a password."""
        return str(self._server)

    @property
    def prefix(self) -> str:
        """What the names of all keys begin with, behind a brace."""
        return self._settings.prefix

    async def survey(self) -> dict[str, Counts]:
        """All crawls, by name. Changes nothing on the server, but looks at all of its keys."""
        found: dict[str, Counts] = {}
        async with aclosing(self._server.each_master()) as masters:
            async for connection in masters:
                names = await self._names(connection)
                for first in range(0, len(names), CRAWLS_PER_CALL):
                    some = names[first : first + CRAWLS_PER_CALL]
                    found.update(await self._counts_of(connection, some))
        return {name: found[name] for name in sorted(found) if found[name].exists}

    @asynccontextmanager
    async def of(self, name: str) -> AsyncIterator[CrawlClient]:
        """One crawl, which need not exist."""
        crawl = CrawlClient(replace(self._settings, name=name, node="frontier"))
        try:
            yield crawl
        finally:
            await crawl.link.close()

    async def add(self, name: str, lines: Iterable[str], settings: BaseSettings) -> Counter[Queued]:
        """Queue start requests; how many of them were. The first run of a crawl may begin with it,
        and a further one with `CRAWL_RUN = "new"`. Lines that are empty or begin with `#` are
        skipped. `settings` are those of the project.

        Raises `CrawlEndedError`, and `ValueError` for a wrong line: those before it are queued.
        """
        written = (
            (number, line)
            for number, line in enumerate(map(stripped, lines), 1)
            if line and not line.startswith("#")
        )
        found: Counter[Queued] = Counter()
        async with self.of(name) as crawl:
            _, in_common = await crawl.join(new_run=self._settings.run == "new")
            try:
                serializer = in_common.get("CRAWL_SERIALIZER", self._settings.serializer)
                encode = StartEncoder(settings, in_common.get("spider", name), serializer)
                while some := list(itertools.islice(written, ADDED_PER_CALL)):
                    new: list[NewRequest] = []
                    try:
                        for number, line in some:
                            try:
                                new.append(encode(line, crawl.new_place))
                            except ValueError as error:
                                raise ValueError(f"line {number}: {error}") from None
                    finally:
                        found.update((await crawl.sync(new, working=True)).queued)
            finally:
                await crawl.leave()
        return found

    async def _counts_of(self, connection: Connection, names: Sequence[str]) -> dict[str, Counts]:
        """Counts by crawl. Left out are crawls of which some key is of another type, or has no
        number where ours have one: they are not ours.
        """
        calls = [commands_for(CrawlKeys(self.prefix, name)) for name in names]
        replies = iter(await connection.call(list(itertools.chain(*calls))))
        found = {}
        for name, call in zip(names, calls, strict=True):
            of_crawl = list(itertools.islice(replies, len(call)))
            if not any(map(_is_of_another_type, of_crawl)):
                with suppress(ValueError):
                    found[name] = Counts.of(connection.check(of_crawl))
        return found

    async def _names(self, connection: Connection) -> list[str]:
        """The names of the crawls that have their keys there."""
        head, tail = b"{%b:" % encoded(self.prefix), b"}:run"
        names = []
        for key in await connection.scan(head, tail):
            with suppress(UnicodeDecodeError):  # not ours
                names.append(key[len(head) : -len(tail)].decode("utf-8", "surrogatepass"))
        return names


def _is_of_another_type(reply: object) -> bool:
    return isinstance(reply, Exception) and str(reply).startswith("WRONGTYPE")
