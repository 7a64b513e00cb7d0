"""Which errors of downloads mean that a site closed the connection before it responded."""

import errno
import ssl
from typing import Any

import pytest
from OpenSSL import SSL
from scrapy import Request
from twisted.internet import error as of_twisted
from twisted.internet.defer import CancelledError
from twisted.python.failure import Failure
from twisted.web._newclient import (
    ConnectionAborted,
    RequestGenerationFailed,
    RequestTransmissionFailed,
)
from twisted.web.client import ResponseFailed, ResponseNeverReceived

from semaphore_middleware.scrapy.download_errors import (
    is_closing,
    is_without_response,
    may_be_idle,
)

PLAIN, TLS = Request("http://a/"), Request("https://a/")


def by(wrapper: Any, *causes: BaseException) -> BaseException:
    failures = [Failure(cause) for cause in causes]  # type: ignore[no-untyped-call]
    error: BaseException = wrapper(failures)
    return error


def from_(cause: BaseException, text: str = "") -> BaseException:
    """An error of Scrapy's, as its handlers raise them."""
    error = RuntimeError(text)
    error.__cause__ = cause
    return error


def named(name: str, base: type[Exception] = Exception, text: str = "") -> Exception:
    """An error of a package that need not be installed."""
    error: Exception = type(name, (base,), {})(text)
    return error


LOST = of_twisted.ConnectionLost()
DONE = of_twisted.ConnectionDone()
RESET = ConnectionResetError(errno.ECONNRESET, "reset by peer")
OF_H2 = named("H2Error").__class__

CLOSED = [
    *(LOST, DONE, by(ResponseNeverReceived, LOST), from_(by(ResponseNeverReceived, DONE))),
    by(RequestTransmissionFailed, LOST),
    from_(by(ResponseNeverReceived, SSL.Error([("SSL routines", "", "unexpected eof")]))),
    from_(by(ResponseNeverReceived, SSL.Error([("", "", "tls alert handshake failure")]))),
    by(ResponseNeverReceived, SSL.SysCallError(-1, "Unexpected EOF")),
    *(from_(RESET), BrokenPipeError(), ExceptionGroup("", [RESET])),
    from_(named("ServerDisconnectedError")),
    from_(named("RemoteProtocolError", text="Server disconnected without sending a response.")),
    from_(ssl.SSLEOFError(8, "EOF occurred")),
    from_(ssl.SSLError(1, "[SSL: SSLV3_ALERT_HANDSHAKE_FAILURE] alert handshake failure")),
]
failed: Any = ResponseFailed
OVER_HTTP2 = [
    from_(by(ResponseFailed, LOST)),
    failed([named("InactiveStreamClosed", of_twisted.ConnectionClosed)]),
    by(ResponseFailed, named("RemoteTerminatedConnection", OF_H2), LOST),
    from_(failed([]), "[Remote peer 127.0.0.1 sent RST_STREAM]"),
]
OTHERS = [
    of_twisted.ConnectBindError(),  # type: ignore[no-untyped-call]
    *(ValueError(), OSError(errno.EMFILE, "too many open files")),
    from_(OSError(errno.EADDRNOTAVAIL, "no free port")),
    by(ResponseNeverReceived, of_twisted.ConnectionAborted()),
    by(ResponseNeverReceived, CancelledError(), LOST),
    by(ResponseNeverReceived, ConnectionAborted()),
    by(RequestGenerationFailed, LOST),
    by(ResponseFailed, named("InvalidNegotiatedProtocol", OF_H2), LOST),
    by(ResponseNeverReceived, SSL.Error([("", "", "certificate verify failed")])),
    by(ResponseNeverReceived, SSL.Error([("", "", "wrong version number")])),
]


@pytest.mark.parametrize("error", CLOSED, ids=repr)
def test_a_closed_connection_is_found_by_its_cause(error: BaseException) -> None:
    assert is_closing(error, PLAIN)
    assert is_closing(error, TLS)


@pytest.mark.parametrize("number", [errno.ECONNRESET, errno.EPIPE])
def test_so_is_one_that_is_closed_while_it_is_made(number: int) -> None:
    assert is_closing(of_twisted.getConnectError((number, "")), PLAIN)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("error", OVER_HTTP2, ids=repr)
def test_so_is_one_of_http2(error: BaseException) -> None:
    assert is_closing(error, TLS)


@pytest.mark.parametrize("error", OTHERS, ids=repr)
def test_what_this_machine_or_a_protocol_has_caused_is_none(error: BaseException) -> None:
    assert not is_closing(error, TLS)


def test_errors_that_refer_to_each_other_are_read_once() -> None:
    """As those are that a handler takes out of a group, and raises."""
    error = ValueError()
    error.__context__ = ExceptionGroup("some", [error, ConnectionResetError()])
    assert is_closing(error, PLAIN)


def test_a_response_that_has_begun_is_one() -> None:
    assert not is_closing(from_(by(ResponseFailed, DONE)), PLAIN)


@pytest.mark.parametrize(
    "number",
    [
        errno.EMFILE,
        errno.ENFILE,
        errno.EADDRNOTAVAIL,
        errno.EADDRINUSE,
        errno.ENOBUFS,
        errno.EACCES,
    ],
)
def test_no_site_is_at_fault_if_this_machine_cannot_connect(number: int) -> None:
    of_connect = of_twisted.getConnectError((number, ""))  # type: ignore[no-untyped-call]
    assert not is_without_response(of_connect)
    refused = ConnectionRefusedError()
    refused.__cause__ = OSError(number, "")
    assert not is_without_response(refused)


def test_a_connection_of_a_request_that_nobody_repeats_may_have_been_idle() -> None:
    requests = {"GET": b"", "HEAD": b"", "POST": b"", "PUT": b"x"}
    found = {
        name: may_be_idle(Request("http://a/", method=name, body=requests[name]))
        for name in requests
    }
    assert found == {"GET": False, "HEAD": False, "POST": True, "PUT": True}
    assert may_be_idle(Request("http://a/", body=b"x"))
