"""Writes batches of the history that tests have made."""

from __future__ import annotations

from semaphore_middleware.link.scripts import Call, run_scripts
from semaphore_middleware.report.diary import Batch
from semaphore_middleware.report.keys import HistoryKeys
from semaphore_middleware.report.scripts import NOTE_HISTORY
from tests.support.nodes import Caller

KEYS = HistoryKeys("semaphore")
KEPT_MS = 86_400_000


async def write(caller: Caller, batch: Batch) -> None:
    """Let this node write a batch."""
    scopes = [tally.scope for tally in batch.tallies]
    node = caller.name.encode()
    arguments = [KEPT_MS, node, batch.number, batch.minute]
    arguments += [int(batch.is_last), int(batch.is_resent), b"news"]
    for tally in batch.tallies:
        arguments += [tally.scope.encode(), tally.pack()]
    call = Call(NOTE_HISTORY, KEYS.of_batch(node, batch.minute, scopes), arguments)
    await run_scripts(caller.connection, [call])
