"""TLS in front of a server: the one that the tests get in a wheel is built without it."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.support.certificates import Authority, Certificate
from tests.support.servers import RedisServer


@contextmanager
def tls_in_front_of(
    server: RedisServer,
    certificate: Certificate,
    clients: Authority | None = None,
    newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
) -> Iterator[int]:
    """A TLS port that passes on to the server; `clients` must have signed the client's certificate.

    In threads, since asyncio does not send a client whom it refuses the alert that servers send.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.certificate, certificate.key)
    context.maximum_version = newest
    if clients:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients.certificate)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with suppress(OSError):  # the listener is closed
                while True:
                    client, _ = listener.accept()
                    arguments = (client, context, str(server.path))
                    threading.Thread(target=_serve, args=arguments, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)


def _serve(client: socket.socket, context: ssl.SSLContext, path: str) -> None:
    with (
        client,
        suppress(OSError),
        context.wrap_socket(client, server_side=True) as outside,
        socket.socket(socket.AF_UNIX) as inside,
    ):
        inside.connect(path)
        others: dict[socket.socket, socket.socket] = {outside: inside, inside: outside}
        while True:
            ready = [outside] if outside.pending() else select.select(list(others), [], [])[0]
            for one in ready:
                data = one.recv(2**16)
                if not data:
                    return
                others[one].sendall(data)
