"""The errors that programs may catch, in one tree. Each error's text names the remedy."""

from __future__ import annotations


class SemaphoreError(Exception):
    """The base class of these errors. None has public fields."""


class SettingsError(SemaphoreError, ValueError):
    """A setting or an argument has an invalid value; the text names the allowed values.

    A `ValueError`. Raised before anything changes on the server.
    """


class ServerRefusedError(SemaphoreError):
    """The server answers, but waiting will not help: wrong password, too old, read-only replica."""


class ServerUnreachableError(SemaphoreError, ConnectionError):
    """The server cannot be reached at present; the caller may try again.

    A `ConnectionError`. Not raised while waiting for a permit: the semaphore waits for its server.
    """


class AcquireTimeoutError(SemaphoreError, TimeoutError):
    """No permit within the time allowed (`timeout`, `SEMAPHORE_ACQUIRE_TIMEOUT`; seconds).

    A `TimeoutError`, so an `OSError`: Scrapy's retry middleware retries the request.
    """


class PermitLostError(SemaphoreError, ConnectionError):
    """A permit's lease could not be renewed in time. Its work must be repeated: it was stopped,
    unless it runs in a thread.

    A `ConnectionError`, so an `OSError`: Scrapy's retry middleware retries the request, as after
    a broken connection.
    """


class HostDownError(SemaphoreError):
    """A site has not responded to any request for a while, so this request was not made.

    Not an `OSError`, so Scrapy's retry middleware does not retry the request: it would fail again.
    """


class SiteBlockedError(HostDownError):  # feature: blocked
    """A site has refused all requests for a while, so this request was not made."""


class ClosedError(SemaphoreError, RuntimeError):
    """The semaphore or `Admin` is closed, is closing, or was never entered. A `RuntimeError`."""
