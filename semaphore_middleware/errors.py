"""All errors that the package raises, in one tree. Each error's text says what to do."""

from __future__ import annotations


class SemaphoreError(Exception):
    """The root of all errors of this package. None has fields; the text says what to do."""


class SettingsError(SemaphoreError, ValueError):
    """A setting or an argument has a value that is not allowed; the text says what is allowed.

    A `ValueError`. Raised before anything is sent to the server.
    """


class ServerRefusedError(SemaphoreError):
    """The server answers, but waiting will not help: wrong password, too old, read-only replica."""


class ServerUnreachableError(SemaphoreError, ConnectionError):
    """The server cannot be reached just now; the caller may try again.

    A `ConnectionError`. Not raised while waiting for a permit: the semaphore waits for its server.
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


class HostDownError(SemaphoreError):
    """A site has not responded to any request for a while, so this one was not made.

    Not an `OSError`: Scrapy's retry middleware leaves it alone. To try again at once is in vain.
    """


class ClosedError(SemaphoreError, RuntimeError):
    """The semaphore is not open: it was closed or drained, or never entered. A `RuntimeError`."""
