"""Errors of downloads, and what they mean for the site.

Each download handler has classes of its own, some of which it wraps in Scrapy's: what counts is the
cause that an error carries.
"""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Iterator

from OpenSSL import SSL
from scrapy import Request
from scrapy.core.downloader.handlers.http11 import TunnelError
from twisted.internet import error as of_twisted
from twisted.internet.defer import CancelledError
from twisted.python.failure import Failure
from twisted.web._newclient import RequestGenerationFailed
from twisted.web.client import ResponseFailed

from semaphore_middleware.link.connection import causes_of
from semaphore_middleware.scrapy.versions import (
    CannotResolveHostError,
    DownloadConnectionRefusedError,
    DownloadTimeoutError,
)

NO_RESPONSE = (
    DownloadTimeoutError,
    DownloadConnectionRefusedError,
    CannotResolveHostError,
    of_twisted.ConnectError,
    TimeoutError,
    ConnectionRefusedError,
    socket.gaierror,
)
"""Errors of an overloaded or unreachable site."""
NO_ROUTE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN}
CLOSED = (
    of_twisted.ConnectionClosed,
    ConnectionResetError,
    BrokenPipeError,
    ssl.SSLEOFError,
    ssl.SSLZeroReturnError,
    SSL.SysCallError,
    SSL.ZeroReturnError,
)
"""Errors of a connection that the other side has closed."""
CLOSED_NUMBERS = {errno.ECONNRESET, errno.EPIPE}
"""The system's numbers of the same, in an error of connecting."""
CLOSED_NAMES = {"ServerDisconnectedError", "RemoteTerminatedConnection"}
"""The same of aiohttp, which need not be installed, and of Scrapy's HTTP/2 handler."""
CLOSED_TEXTS = ("Server disconnected", "RST_STREAM")
"""The same in words: of httpx, and of HTTP/2's reset streams, for which there is no class."""
LOCAL = (
    of_twisted.ConnectBindError,
    of_twisted.ConnectionAborted,
    of_twisted.ConnectionFdescWentAway,
    of_twisted.FileDescriptorOverrun,
    CancelledError,
    RequestGenerationFailed,
    ssl.SSLCertVerificationError,
)
"""Errors that this process, or its machine, has caused."""
LOCAL_NUMBERS = {
    *(errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM),
    *(errno.EADDRNOTAVAIL, errno.EADDRINUSE, errno.EACCES),
}
"""No free file or port, no memory, or the machine's own firewall."""
PROXY_REFUSES = 407
REPEATED = {"GET", "HEAD", "OPTIONS", "DELETE", "TRACE"}
"""Methods of requests without a body that Twisted repeats on a new connection, if the site closes
one that has been idle.
"""


def is_without_response(error: BaseException) -> bool:
    """True if this error means that the site did not respond."""
    if _is_local(error):
        return False
    return isinstance(error, NO_RESPONSE) or error_number(error) in NO_ROUTE


def is_closing(error: BaseException, request: Request) -> bool:
    """True if this error of a request without response headers means that the site closed the
    connection before it responded.
    """
    if _is_local(error):
        return False
    causes = list(_causes(error))
    is_plain_http = request.url.startswith("http:")
    if is_plain_http and any(type(cause) is ResponseFailed for cause in causes):
        return False  # a part of the headers came; over TLS it may be HTTP/2's, of any closing
    return any(map(_is_closed, causes))


def may_be_idle(request: Request) -> bool:
    """True if the request's connection may have been idle before. No error shows it; but Twisted
    and aiohttp repeat other requests on a new connection before they report an error.
    """
    return request.method not in REPEATED or bool(request.body)


def is_of_proxy(error: BaseException) -> bool:
    """True if this error means that a proxy opens no tunnel for us: it has answered 407."""
    return isinstance(error, TunnelError) and f"'status': {PROXY_REFUSES}," in str(error)


def error_number(error: BaseException) -> int | None:
    """The system's number of the error that this one comes from, if there is one."""
    numbers = map(_number, _causes(error))
    return next((number for number in numbers if number is not None), None)


def _is_local(error: BaseException) -> bool:
    return any(
        isinstance(cause, LOCAL) or _number(cause) in LOCAL_NUMBERS or _is_of_protocol(cause)
        for cause in _causes(error)
    )


def _is_of_protocol(error: BaseException) -> bool:
    """True for errors of HTTP/2 itself: the site has answered, but this cannot be used."""
    is_h2 = any(base.__name__ == "H2Error" for base in type(error).__mro__)
    return is_h2 and type(error).__name__ not in CLOSED_NAMES


def _is_closed(error: BaseException) -> bool:
    if isinstance(error, CLOSED) or type(error).__name__ in CLOSED_NAMES:
        return True
    if _number(error) in CLOSED_NUMBERS:
        return True
    text = str(error)
    if isinstance(error, SSL.Error | ssl.SSLError):  # the site has ended the handshake
        return "alert" in text.lower() or "unexpected eof" in text
    return any(words in text for words in CLOSED_TEXTS)


def _number(error: BaseException) -> int | None:
    number = getattr(error, "osError", None) or getattr(error, "errno", None)
    is_of_tls = isinstance(error, ssl.SSLError)  # these numbers are not the system's
    return number if isinstance(number, int) and not is_of_tls else None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and all that it comes from, each once."""
    left, known = [error], set[int]()
    while left:
        for cause in causes_of(left.pop(0)):
            if id(cause) in known:
                break
            known.add(id(cause))
            yield cause
            for reason in (*getattr(cause, "reasons", ()), *getattr(cause, "exceptions", ())):
                inner = reason.value if isinstance(reason, Failure) else reason
                if isinstance(inner, BaseException):
                    left.append(inner)
