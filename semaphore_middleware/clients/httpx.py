"""Transports for httpx. Each takes a permit of the host for each request, redirects included."""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import httpx

from semaphore_middleware.clients import BACKOFF_CODES, Answers, check_semaphore, scope_of
from semaphore_middleware.core.semaphore import FairSemaphore
from semaphore_middleware.core.sync import SyncSemaphore
from semaphore_middleware.link.connection import causes_of

if TYPE_CHECKING:
    from semaphore_middleware.core.permit import Permit
    from semaphore_middleware.model.limits import GivenLimit


class AsyncSemaphoreTransport(httpx.AsyncBaseTransport):
    """A transport for `httpx.AsyncClient`. Each request needs a permit of its host.

        transport = AsyncSemaphoreTransport(semaphore, limit=2)
        async with httpx.AsyncClient(transport=transport, follow_redirects=True) as client:
            await client.get("https://example.com/")

    - `semaphore`: must be open while requests are made.
    - `limit`: the limit of each host, as for `FairSemaphore.acquire`.
    - `timeout`: seconds that a request waits for its permit at most; None: as long as it takes.
      The client's own timeouts begin after that.
    - `transport`: makes the requests; by default an `httpx.AsyncHTTPTransport()`. Options of
      connections, such as `verify` and `proxy`, must be given to it instead of the client. Requests
      without a response then do not count against the site: the reason may be a proxy.
    - `backoff_codes`: statuses of refusals, after which the site gets a pause (see
      docs/without-scrapy.md). Without any, no pause is begun, whatever a site answers.

    A permit is given back, and the answer reported, when the body of the response has been read, or
    the response is closed. If the permit is lost before that, the request ends with
    `PermitLostError`. A request raises what `FairSemaphore.acquire` raises, and `SettingsError` for
    a URL without a host.
    """

    def __init__(
        self,
        semaphore: FairSemaphore,
        limit: GivenLimit,
        timeout: float | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        backoff_codes: Iterable[int] = BACKOFF_CODES,
    ) -> None:
        check_semaphore(semaphore, FairSemaphore)
        self._semaphore = semaphore
        self._limit = limit
        self._timeout = timeout
        self._transport = transport or httpx.AsyncHTTPTransport()
        self._answers = Answers(backoff_codes)
        self._is_direct = transport is None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Called by httpx."""
        scope = scope_of(str(request.url))
        permit = await self._semaphore.acquire(scope, self._limit, self._timeout)
        began = time.monotonic()
        try:
            with permit.until_lost():
                response = await self._transport.handle_async_request(request)
            assert isinstance(response.stream, httpx.AsyncByteStream)
            _report(self._answers, permit, request, response, began)
        except BaseException as error:
            if self._is_direct and _is_of_site(error):
                self._answers.report_failure(permit)
            permit.release()
            raise
        return _with_body(response, _AsyncBody(response.stream, permit))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()


class SemaphoreTransport(httpx.BaseTransport):
    """A transport for `httpx.Client`, with a `SyncSemaphore` and otherwise the same arguments.

    If a permit is lost, the request runs to its end, and then raises `PermitLostError`.
    """

    def __init__(
        self,
        semaphore: SyncSemaphore,
        limit: GivenLimit,
        timeout: float | None = None,
        transport: httpx.BaseTransport | None = None,
        backoff_codes: Iterable[int] = BACKOFF_CODES,
    ) -> None:
        check_semaphore(semaphore, SyncSemaphore)
        self._semaphore = semaphore
        self._limit = limit
        self._timeout = timeout
        self._transport = transport or httpx.HTTPTransport()
        self._answers = Answers(backoff_codes)
        self._is_direct = transport is None

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Called by httpx."""
        scope = scope_of(str(request.url))
        with ExitStack() as held:
            permit = held.enter_context(self._semaphore.permit(scope, self._limit, self._timeout))
            began = time.monotonic()
            try:
                response = self._transport.handle_request(request)
            except httpx.TransportError as error:
                if self._is_direct and _is_of_site(error):
                    self._answers.report_failure(permit)
                raise
            assert isinstance(response.stream, httpx.SyncByteStream)
            _report(self._answers, permit, request, response, began)
            return _with_body(response, _Body(response.stream, held.pop_all()))

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()


class _AsyncBody(httpx.AsyncByteStream):
    def __init__(self, body: httpx.AsyncByteStream, permit: Permit) -> None:
        self._body = body
        self._permit = permit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks = aiter(self._body)
        while True:
            # Only while reading: what the caller does with a chunk must not be cancelled.
            with self._permit.until_lost():
                chunk = await anext(chunks, None)
            if chunk is None:
                return
            yield chunk

    async def aclose(self) -> None:
        try:
            await self._body.aclose()
        finally:
            self._permit.release()


class _Body(httpx.SyncByteStream):
    def __init__(self, body: httpx.SyncByteStream, held: ExitStack) -> None:
        self._body = body
        self._held = held

    def __iter__(self) -> Iterator[bytes]:
        yield from self._body

    def close(self) -> None:
        with self._held:
            self._body.close()


def _report(
    answers: Answers,
    permit: Permit,
    request: httpx.Request,
    response: httpx.Response,
    began: float,
) -> None:
    latency = time.monotonic() - began
    url, fields = str(request.url), response.headers.get_list
    answers.report(permit, request.method, url, response.status_code, fields, latency)


def _is_of_site(error: BaseException) -> bool:
    """Whether a request's error means that its site does not respond: it cannot be reached, or
    takes too long. A site whose certificate is not accepted has responded.
    """
    if isinstance(error, httpx.ConnectError):
        return not any(isinstance(cause, ssl.SSLError) for cause in causes_of(error))
    return isinstance(error, httpx.ConnectTimeout | httpx.ReadTimeout)


def _with_body(
    response: httpx.Response, body: httpx.AsyncByteStream | httpx.SyncByteStream
) -> httpx.Response:
    """The response with another body, of which nothing has been read."""
    return httpx.Response(
        response.status_code, headers=response.headers, stream=body, extensions=response.extensions
    )
