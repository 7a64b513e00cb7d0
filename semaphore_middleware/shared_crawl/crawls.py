"""All shared crawls of a server, for operators."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

from scrapy.settings import BaseSettings

from semaphore_middleware.errors import ServerUnreachableError
from semaphore_middleware.link.connection import Connection
from semaphore_middleware.link.index import Index
from semaphore_middleware.link.scripts import batches
from semaphore_middleware.link.text import encoded
from semaphore_middleware.shared_crawl.client import CALL_TIMEOUT_S, CrawlClient, NewRequest, Queued
from semaphore_middleware.shared_crawl.codec import StartEncoder
from semaphore_middleware.shared_crawl.counts import Counts, commands_for
from semaphore_middleware.shared_crawl.keys import CrawlKeys, index_key
from semaphore_middleware.shared_crawl.new_requests import MAX_NEW_BYTES, MAX_NEW_REQUESTS
from semaphore_middleware.shared_crawl.settings import CrawlSettings
from semaphore_middleware.shared_crawl.starts import stripped

CRAWLS_PER_CALL = 100  # counted in one round trip


class Crawls:
    """The shared crawls of one server, or of all masters of a cluster. `settings` name the server
    and, for `add_starts`, the run. Each method opens its own connections.

    Raises `SettingsError` for a wrong URL or prefix, `ServerUnreachableError` and
    `ServerRefusedError`.
    """

    def __init__(self, settings: CrawlSettings) -> None:
        self._settings = settings
        self._server = settings.server(CALL_TIMEOUT_S, settings.prefix)

    @property
    def server(self) -> str:
        """The server's address, without a password."""
        return str(self._server)

    @property
    def prefix(self) -> str:
        """The beginning of all keys, behind a brace."""
        return self._settings.prefix

    async def survey(self) -> dict[str, Counts]:
        """All crawls, by name. Changes only their index on the server. Without an index, and
        always in a cluster, this scans all keys.
        """
        found: dict[str, Counts] = {}
        async with aclosing(self._server.each_master()) as masters:
            async for connection in masters:
                names = await self._names(connection)
                for some in batches(names, CRAWLS_PER_CALL):
                    found.update(await self._counts_of(connection, some))
        return {name: found[name] for name in sorted(found) if found[name].exists}

    @asynccontextmanager
    async def open_crawl(self, name: str) -> AsyncIterator[CrawlClient]:
        """A client for one crawl. The crawl need not exist."""
        crawl = CrawlClient(replace(self._settings, name=name, node="operator"))
        try:
            yield crawl
        finally:
            await crawl.link.close()

    async def add_starts(
        self, name: str, lines: Iterable[str], settings: BaseSettings, found: Counter[Queued]
    ) -> bool:
        """Queue start requests, and count the results in `found`. Returns True if there was no such
        crawl. Empty lines and lines with `#` at the beginning are skipped. `settings` are the
        project's. The lines must come at once: while this waits for one, nothing renews the lease.

        Raises `RunOverError`, and `ValueError` for a wrong line: the lines before it are queued.
        """
        written = (
            (number, line)
            for number, line in enumerate(map(stripped, lines), 1)
            if line and not line.startswith("#")
        )
        async with self.open_crawl(name) as crawl:
            begins = not (await crawl.counts()).exists
            try:  # the reply to the call that joins may be lost
                joined = await crawl.join(new_run=self._settings.run == "new")
                encoder = StartEncoder(settings, joined.identity.get("spider", name))
                for batch in _batches_of(written, encoder):
                    found.update((await crawl.sync(batch, working=True)).queued)
            finally:
                with suppress(ServerUnreachableError):  # it leaves when its lease ends
                    await crawl.leave()
        return begins

    async def _counts_of(self, connection: Connection, names: Sequence[str]) -> dict[str, Counts]:
        """Counts by crawl, except crawls with keys of other types, or with texts in place of
        numbers: these keys are not ours.
        """
        calls = [commands_for(CrawlKeys(self.prefix, name)) for name in names]
        replies = iter(await connection.call(list(itertools.chain(*calls))))
        found = {}
        for name, call in zip(names, calls, strict=True):
            of_crawl = list(itertools.islice(replies, len(call)))
            if not any(map(_is_of_another_type, of_crawl)):
                with suppress(ValueError):
                    found[name] = Counts.from_replies(connection.check(of_crawl))
        return found

    async def _names(self, connection: Connection) -> list[str]:
        """The names of the crawls with keys on this master, and of some that had one."""
        head, tail = b"{%b:" % encoded(self.prefix), b"}:run"
        search = partial(connection.scan, head, tail)
        if self._server.is_cluster:  # whose nodes cannot add to one index
            keys = await search()
        else:
            keys = await Index(index_key(self.prefix)).names(connection, search)
        names = []
        for key in keys:
            with suppress(UnicodeDecodeError):  # not ours
                names.append(key[len(head) : -len(tail)].decode("utf-8", "surrogatepass"))
        return names


def _batches_of(
    lines: Iterable[tuple[int, str]], encoder: StartEncoder
) -> Iterator[list[NewRequest]]:
    """The requests in numbered lines, as many at once as a call may have. Raises `ValueError` for a
    wrong line, after the requests before it.
    """
    batch: list[NewRequest] = []
    size = 0
    for number, line in lines:
        try:
            new = encoder.encode(line)
        except ValueError as error:
            if batch:
                yield batch
            raise ValueError(f"line {number}: {error}") from None
        size += len(new.data)
        if batch and (len(batch) == MAX_NEW_REQUESTS or size > MAX_NEW_BYTES):
            yield batch
            batch, size = [], len(new.data)
        batch.append(new)
    if batch:
        yield batch


def _is_of_another_type(reply: object) -> bool:
    return isinstance(reply, Exception) and str(reply).startswith("WRONGTYPE")
