"""Writes batches of the history that tests have made."""

from __future__ import annotations

from semaphore_middleware.link.scripts import run_scripts
from semaphore_middleware.report.diary import Batch
from semaphore_middleware.report.keys import HistoryKeys
from semaphore_middleware.report.writer import batch_call
from tests.support.nodes import Caller

KEYS = HistoryKeys("semaphore")
KEPT_MS = 86_400_000


async def write(caller: Caller, batch: Batch) -> None:
    """Let this node write a batch."""
    call = batch_call(batch, KEYS, caller.name.encode(), b"news", KEPT_MS)
    await run_scripts(caller.connection, [call])
