"""A page for programs to read, served by the crawl itself.

It is served on the crawl's event loop: what is told there is counted there, so no lock is needed,
and no thread or port outlives the crawl. Twisted's server would need a reactor, which not every
crawl has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LONGEST = 16 * 1024  # bytes of a request's head
PATIENCE = 10.0  # seconds for one visit: who asks or reads more slowly is sent away
PATHS = ("/", "/metrics")

Page = Callable[[str], tuple[str, bytes]]


class Endpoint:
    """`page` makes a content type and a body of what the visitor accepts (its `Accept` header)."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._server: asyncio.Server | None = None
        self._visits: set[asyncio.Task[None]] = set()

    async def open(self, host: str, port: int) -> str:
        """Serve, and return the page's address. Port 0: any that is free. Raises `OSError`."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=LONGEST)
        address, port, *_ = self._server.sockets[0].getsockname()
        return f"http://{f'[{address}]' if ':' in address else address}:{port}/metrics"

    async def close(self) -> None:
        """Free the port, whoever is still reading."""
        if self._server is None:
            return
        self._server.close()  # frees the port at once; to wait for its end is to wait for visitors
        visits = list(self._visits)
        for visit in visits:
            visit.cancel()
        await asyncio.gather(*visits, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visit = asyncio.current_task()
        assert visit is not None, "asyncio serves each visitor in a task"
        self._visits.add(visit)
        try:
            async with asyncio.timeout(PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head.decode("latin-1")))
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError, asyncio.LimitOverrunError):
            pass  # too slow, gone, or no HTTP
        finally:
            self._visits.discard(visit)
            writer.transport.abort()

    def _answer(self, head: str) -> bytes:
        request, *lines = head.split("\r\n")
        method, _, target = request.partition(" ")
        path = target.partition(" ")[0].partition("?")[0]
        status, kind, body = "200 OK", "text/plain; charset=utf-8", b""
        if method not in ("GET", "HEAD"):
            status = "405 Method Not Allowed"
        elif path not in PATHS:
            status, body = "404 Not Found", b"see /metrics\n"
        else:
            headers = [line.partition(":") for line in lines]
            accepts = [value.strip() for name, _, value in headers if name.lower() == "accept"]
            kind, body = self._page(",".join(accepts))
        answer = (
            f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            "Allow: GET, HEAD\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        return answer.encode("latin-1") + (b"" if method == "HEAD" else body)
