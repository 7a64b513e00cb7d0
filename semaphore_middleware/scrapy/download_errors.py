"""Errors of downloads: what they say of the site."""

from __future__ import annotations

import errno
import socket

from scrapy.core.downloader.handlers.http11 import TunnelError
from twisted.internet.error import ConnectBindError, ConnectError

from semaphore_middleware.scrapy.versions import (
    CannotResolveHostError,
    DownloadConnectionRefusedError,
    DownloadTimeoutError,
)

NO_RESPONSE = (
    DownloadTimeoutError,
    DownloadConnectionRefusedError,
    CannotResolveHostError,
    ConnectError,
    TimeoutError,
    ConnectionRefusedError,
    socket.gaierror,
)
"""Errors of an overloaded or unreachable site."""
NO_ROUTE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN}
PROXY_REFUSES = 407


def is_without_response(error: BaseException) -> bool:
    """True if this error means that the site did not respond."""
    if isinstance(error, ConnectBindError):
        return False
    return isinstance(error, NO_RESPONSE) or error_number(error) in NO_ROUTE


def is_of_proxy(error: BaseException) -> bool:
    """True if this error means that a proxy opens no tunnel for us: it has answered 407."""
    return isinstance(error, TunnelError) and f"'status': {PROXY_REFUSES}," in str(error)


def error_number(error: BaseException | None) -> int | None:
    """The system's number of the error that this one comes from, if there is one."""
    while error is not None:
        number = getattr(error, "osError", None) or getattr(error, "errno", None)
        if isinstance(number, int):
            return number
        error = error.__cause__ or error.__context__
    return None
