"""An adapter for requests. It takes a permit of the host for each request, redirects included."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod

from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter
from requests.exceptions import ChunkedEncodingError, ContentDecodingError

from semaphore_middleware.clients import scope_of

if TYPE_CHECKING:
    from semaphore_middleware.core.sync import SyncSemaphore
    from semaphore_middleware.model.limits import GivenLimit

IN_REDIRECTS = (ChunkedEncodingError, ContentDecodingError, RuntimeError)
"""Errors in a redirect's body, which requests ignores."""


class SemaphoreAdapter(HTTPAdapter):
    """An adapter for `requests.Session`. Each request needs a permit of its host.

        session.mount("https://", SemaphoreAdapter(semaphore, limit=2))

    - `limit`: the limit of each host, as for `FairSemaphore.acquire`.
    - `timeout`: seconds that a request waits for its permit at most; None: as long as it takes.
      The request's own timeout begins after that.
    - `options`: those of requests' `HTTPAdapter`.

    A permit is given back when the body of the response has been read, or the response is closed.
    With `stream=True` that is up to you; without it, the body is read before hooks are called, and
    `elapsed` includes that time. If the permit is lost before that, the request runs to its end,
    and then raises `PermitLostError`. A request raises what `SyncSemaphore.permit` raises.
    """

    def __init__(
        self,
        semaphore: SyncSemaphore,
        limit: GivenLimit,
        timeout: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._semaphore = semaphore
        self._limit = limit
        self._timeout = timeout

    def send(
        self, request: PreparedRequest, stream: bool = False, *arguments: Any, **options: Any
    ) -> Response:
        """Called by requests."""
        scope = scope_of(request.url or "")
        with ExitStack() as held:
            held.enter_context(self._semaphore.permit(scope, self._limit, self._timeout))
            response = super().send(request, stream, *arguments, **options)
            raw = response.raw
            to_end = held.pop_all()
            raw.close = _ending(raw.close, to_end)
            raw.release_conn = _ending(raw.release_conn, to_end)  # at the end of a body
        if not stream:
            _read_body(response)
        return response


def _read_body(response: Response) -> None:
    """Read the body, or close the response. requests would read it after the hooks, and would not
    close a response whose hook or body fails, which the error then keeps alive.
    """
    try:
        _ = response.content
    except BaseException as error:
        response.close()
        if not (response.is_redirect and isinstance(error, IN_REDIRECTS)):
            raise


def _ending(method: Callable[[], object], held: ExitStack) -> Callable[[], None]:
    """A response's method that also gives the permit back. It does not keep the response alive: one
    that is dropped gives its permit back at once.
    """
    weak = WeakMethod(method)

    def end() -> None:
        with held:
            if (method := weak()) is not None:
                method()

    return end
