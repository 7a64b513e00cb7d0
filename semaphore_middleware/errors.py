"""Everything that can go wrong, in one tree. Each error's text says what to do."""

from __future__ import annotations


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
