"""Everything that can go wrong, in one tree. Each error's text says what to do."""

from __future__ import annotations

import asyncio
import logging
from typing import NoReturn

logger = logging.getLogger(__name__)


class SemaphoreError(Exception):
    """The root: catch this to catch all of them. None has fields; the text says what to do."""


class SettingsError(SemaphoreError, ValueError):
    """A setting or an argument has a value that is not allowed; the text names both, and what is.

    A `ValueError`. Raised before anything is sent to the server.
    """


class ServerRefusedError(SemaphoreError):
    """The server answers, and waiting is in vain: wrong password, too old, a read-only replica."""


class ServerUnreachableError(SemaphoreError, ConnectionError):
    """The server cannot be reached just now; whoever gets this may try again.

    A `ConnectionError`. Who waits for a permit never gets it: the semaphore waits for its server.
    """


class AcquireTimeoutError(SemaphoreError, TimeoutError):
    """No permit within the time allowed (`timeout`, `SEMAPHORE_ACQUIRE_TIMEOUT`; seconds).

    A `TimeoutError`, so an `OSError`, which Scrapy's retry middleware retries.
    """


class PermitLostError(SemaphoreError, ConnectionError):
    """A permit's lease could not be renewed in time, so its work was stopped; do it again.

    A `ConnectionError`, so an `OSError`: Scrapy's retry middleware retries the request like a
    broken connection.
    """


class ClosedError(SemaphoreError, RuntimeError):
    """The semaphore is not open: it was closed or drained, or never entered. A `RuntimeError`."""


def end_crawl(error: Exception) -> NoReturn:
    """Raise `error` so that Scrapy ends the crawl with exit status 1 after one clear line.

    Scrapy keeps the crawl in an asyncio task that nobody awaits: an error in it is reported as
    "never retrieved", with a traceback that hides the one line a user needs. So the line is logged
    here, and the task's error is marked as seen.
    """
    logger.error("%s", error)
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no running loop: a reactor that is not asyncio's
        task = None
    if task is not None:
        task.add_done_callback(_see_error)
    raise error


def _see_error(task: asyncio.Task[object]) -> None:
    if not task.cancelled():
        task.exception()
