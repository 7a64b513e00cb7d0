"""An adapter for requests. It takes a permit of the host for each request, redirects included."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod

from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter
from requests.exceptions import (
    ChunkedEncodingError,
    ContentDecodingError,
    RequestException,
    Timeout,
)
from requests.utils import select_proxy
from urllib3.exceptions import NewConnectionError

from semaphore_middleware.clients import BACKOFF_CODES, Answers, check_semaphore, scope_of
from semaphore_middleware.core.sync import SyncSemaphore

if TYPE_CHECKING:
    from semaphore_middleware.model.limits import GivenLimit

IN_REDIRECTS = (ChunkedEncodingError, ContentDecodingError, RuntimeError)
"""Errors in a redirect's body, which requests ignores."""


class SemaphoreAdapter(HTTPAdapter):
    """An adapter for `requests.Session`. Each request needs a permit of its host.

        session.mount("https://", SemaphoreAdapter(semaphore, limit=2))

    - `limit`: the limit of each host, as for `FairSemaphore.acquire`.
    - `timeout`: seconds that a request waits for its permit at most; None: as long as it takes.
      The request's own timeout begins after that.
    - `backoff_codes`: statuses of refusals, after which the site gets a pause (see
      docs/without-scrapy.md). Without any, no pause is begun, whatever a site answers.
    - `options`: those of requests' `HTTPAdapter`. With `max_retries` the retries of a request have
      one permit, and only the last response counts.

    A permit is given back, and the answer reported, when the body of the response has been read, or
    the response is closed. With `stream=True` that is up to you; without it, the body is read
    before hooks are called, and `elapsed` includes that time. If the permit is lost before that,
    the request runs to its end, and then raises `PermitLostError`. A request raises what
    `SyncSemaphore.permit` raises, and `SettingsError` for a URL without a host.
    """

    def __init__(
        self,
        semaphore: SyncSemaphore,
        limit: GivenLimit,
        timeout: float | None = None,
        backoff_codes: Iterable[int] = BACKOFF_CODES,
        **options: Any,
    ) -> None:
        check_semaphore(semaphore, SyncSemaphore)
        super().__init__(**options)
        self._semaphore = semaphore
        self._limit = limit
        self._timeout = timeout
        self._answers = Answers(backoff_codes)

    def send(
        self, request: PreparedRequest, stream: bool = False, *arguments: Any, **options: Any
    ) -> Response:
        """Called by requests."""
        url = request.url or ""
        scope = scope_of(url)
        with ExitStack() as held:
            permit = held.enter_context(self._semaphore.permit(scope, self._limit, self._timeout))
            began = time.monotonic()
            try:
                response = super().send(request, stream, *arguments, **options)
            except RequestException as error:
                if _is_of_site(error) and not select_proxy(url, options.get("proxies")):
                    self._answers.report_failure(permit)
                raise
            raw = response.raw
            latency = time.monotonic() - began
            method, status, fields = request.method or "", response.status_code, raw.headers.getlist
            self._answers.report(permit, method, url, status, fields, latency)
            to_end = held.pop_all()
            raw.close = _ending(raw.close, to_end)
            raw.release_conn = _ending(raw.release_conn, to_end)  # at the end of a body
        if not stream:
            _read_body(response)
        return response


def _is_of_site(error: RequestException) -> bool:
    """Whether a request's error means that its site does not respond: it cannot be reached, or
    takes too long.
    """
    reason = getattr(error.args[0], "reason", None) if error.args else None
    return isinstance(error, Timeout) or isinstance(reason, NewConnectionError)


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
