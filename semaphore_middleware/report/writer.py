"""The observer that writes the history: this node's requests to each site, by minute."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

from semaphore_middleware.core.observer import (
    NodeJoined,
    ObservedSemaphore,
    Observer,
    PauseBegun,
    PauseCaused,
    RefusalReported,
    RequestBegun,
    RequestEnded,
    RobotsTxtObeyed,
    RoundTrip,
    ScopeLeft,
    UsageReported,
)
from semaphore_middleware.core.protocol import milliseconds
from semaphore_middleware.errors import ServerRefusedError, ServerUnreachableError
from semaphore_middleware.link import chance
from semaphore_middleware.link.connection import Connection, is_full
from semaphore_middleware.link.link import Link
from semaphore_middleware.link.location import Server
from semaphore_middleware.link.scripts import Call, batches, run_scripts
from semaphore_middleware.link.text import encoded
from semaphore_middleware.model.events import Event
from semaphore_middleware.model.hosts import host_within, normal_host
from semaphore_middleware.model.options import NodeOptions
from semaphore_middleware.report.diary import Batch, Diary
from semaphore_middleware.report.history import ObeyedFile
from semaphore_middleware.report.keys import HistoryKeys
from semaphore_middleware.report.scripts import NOTE_HISTORY, NOTE_ROBOTSTXT

logger = logging.getLogger(__name__)

SPREAD_S = 5.0  # after a minute's end, so that not all nodes write at once
FILES_PER_CALL = 10
LARGEST_FILE = 16 * 1024  # bytes of a robots.txt, compressed


class HistoryWriter(Observer):
    """Counts events, and writes the counts to the server a little after each minute.

    It has a connection of its own, so that no permit waits for its calls. A node's last minute is
    written when the node closes.
    """

    kinds = (
        NodeJoined,
        RequestBegun,
        RequestEnded,
        RefusalReported,
        UsageReported,
        PauseBegun,
        PauseCaused,
        ScopeLeft,
        RoundTrip,
        RobotsTxtObeyed,
    )

    def __init__(self, options: NodeOptions, server: Server) -> None:
        self._link = Link(server)  # the semaphore's own link logs that the server is away
        self._keys = HistoryKeys(options.prefix)
        self._job = encoded(options.job)
        self._kept = milliseconds(options.history)
        self._longest_pause = options.backoff.most
        self._files: list[tuple[str, bytes]] = []  # robots.txt files, by origin

    async def open(self, semaphore: ObservedSemaphore) -> None:
        """Begin to count. Nothing is written before the server has accepted this node."""
        self._node = encoded(semaphore.node)
        self._now = asyncio.get_running_loop().time
        self.diary = Diary(self._now)
        self._writer: asyncio.Task[None] | None = None

    def on_event(self, event: Event) -> None:
        """Count an event."""
        diary = self.diary
        match event:
            case RequestBegun(permit):
                diary.add_start(permit.scope)
            case RequestEnded(scope, status, size):
                diary.add_response(scope, status, size)
            case NodeJoined():  # the first batch announces it
                self._writer = asyncio.create_task(self._write_minutes())
            case RoundTrip(seconds, wall):
                if wall is not None:
                    now = self._now()
                    diary.set_clock(wall, now - seconds, now)
            case UsageReported(scope, held, limit, least_interval, interval):
                diary.set_usage(scope, held, limit, least_interval, interval)
            case ScopeLeft(scope):
                diary.forget(scope)
            case RefusalReported(scope):
                diary.add_refusal(scope)
            case PauseBegun(scope, paused_at, length):
                diary.set_pause(scope, paused_at, length)
            case PauseCaused(scope, paused_at, length, asked, refused):
                asked_ms = 1000 * min(asked, self._longest_pause)
                diary.add_cause(scope, paused_at, length, asked_ms, refused)
            case RobotsTxtObeyed(origin, status, problem, text):
                packed = ObeyedFile.pack(status, problem, text)
                if len(packed) <= LARGEST_FILE:
                    self._files.append((origin, packed))

    async def close(self) -> None:
        """Write the rest in the time left, unless the server is away."""
        if self._writer is None:
            return
        self._writer.cancel()
        try:
            await asyncio.gather(self._writer, return_exceptions=True)
            is_done = self._link.problem is not None
            while not is_done:  # the server may have closed the connection
                is_done = await self._link.attempt(partial(self._write, is_closing=True))
        finally:
            await self._link.close()

    # To the server ------------------------------------------------------------------------------

    async def _write_minutes(self) -> None:
        """Write each minute. An idle node writes as well, unlike a killed one."""
        while True:
            while not await self._link.attempt(self._write):
                pass
            await asyncio.sleep(self.diary.seconds_left + SPREAD_S * chance.fraction())

    async def _write(self, is_closing: bool = False) -> None:
        """Write all files and batches due. A batch written before an error is not counted again.

        Raises `ServerUnreachableError`.
        """
        is_done = False
        async with self._link.use() as connection:
            await self._write_files(connection)
            while not is_done:
                batch = self.diary.next_batch(is_closing)
                try:
                    await self._write_batch(connection, batch)
                except ServerRefusedError as error:
                    logger.warning("A minute of this node is missing from the history: %s", error)
                has_more = self.diary.on_sent(batch)
                is_done = self.diary.is_closed if is_closing else not has_more

    async def _write_batch(self, connection: Connection, batch: Batch) -> None:
        call = batch_call(batch, self._keys, self._node, self._job, self._kept)
        sent = self._now()
        (wall,) = await self._run(connection, [call])
        if wall is None:
            raise ServerRefusedError("the server has lost whether it has counted it")
        self.diary.set_clock(wall / 1000, sent, self._now())

    async def _write_files(self, connection: Connection) -> None:
        """Write the robots.txt files that this node began to obey. Idempotent."""
        for files in batches([*self._files], FILES_PER_CALL):
            calls = []
            for origin, packed in files:
                key = self._keys.of_files(normal_host(host_within(origin) or origin))
                calls.append(
                    Call(
                        NOTE_ROBOTSTXT,
                        [self._keys.sites, key],
                        [encoded(origin), packed, self._kept],
                    )
                )
            try:
                await self._run(connection, calls)
            except ServerRefusedError as error:
                origins = ", ".join(origin for origin, _ in files)
                logger.warning(
                    "The robots.txt of %s is missing from the history: %s", origins, error
                )
            del self._files[: len(files)]

    async def _run(self, connection: Connection, calls: list[Call]) -> list[Any]:
        """The replies of scripts. Raises `ServerRefusedError` also if the server is full."""
        try:
            return await run_scripts(connection, calls)
        except ServerUnreachableError as error:
            if is_full(error.__cause__):
                raise ServerRefusedError(str(error)) from error
            raise


def batch_call(batch: Batch, keys: HistoryKeys, node: bytes, job: bytes, kept: int) -> Call:
    """The call that writes a node's batch, kept for so many milliseconds."""
    arguments: list[Any] = [kept, node, batch.number, batch.minute]
    arguments += [int(batch.is_last), int(batch.is_resent), job]
    for tally in batch.tallies:
        arguments += [encoded(tally.scope), tally.pack()]
    scopes = [tally.scope for tally in batch.tallies]
    return Call(NOTE_HISTORY, keys.of_batch(node, batch.minute, scopes), arguments)
