"""Permits for programs in any language: each HTTP response lasts as long as its permit is held."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import quote

from aiohttp import web
from aiohttp.typedefs import Handler
from scrapy import Request

from semaphore_console.auth import HEAD_TIMEOUT_S, OwnNames
from semaphore_middleware import FairSemaphore
from semaphore_middleware.errors import PermitLostError, SemaphoreError, SettingsError
from semaphore_middleware.model.hosts import kind_of, order_of, refuse_url, scope_name, site_index
from semaphore_middleware.model.limits import Limit
from semaphore_middleware.model.validation import check_integer

GRANTED = b"granted\n"  # a line that a shell can wait for
OF_BROWSERS = ("Origin", "Sec-Fetch-Site")
"""Headers of a web page's requests in a browser: no page may keep a site's permits."""


class Gate:
    """Answers `GET /permit/<name>` when the permits of the name's scopes are granted, and holds
    them until the connection closes.

    `limits_of` finds the scopes and limits of a crawl's request. `names` are the allowed Host
    headers; None: any, as on a Unix socket.
    """

    def __init__(
        self,
        semaphore: FairSemaphore,
        limits_of: Callable[[Request], dict[str, Limit]],
        names: OwnNames | None,
    ) -> None:
        self._semaphore = semaphore
        self._limits_of = limits_of
        self._names = names

    def make_runner(self) -> web.AppRunner:
        """The server, not listening yet."""
        app = web.Application(middlewares=[self._answer])
        app.add_routes([web.get("/permit/{name}", self._permit, allow_head=False)])
        return web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            keepalive_timeout=HEAD_TIMEOUT_S,
            handler_cancellation=True,  # when a client goes, its wait or its permit ends
            lingering_time=0,
            shutdown_timeout=0.5,
        )

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check the headers, and answer an error with one line of text."""
        host = request.headers.get("Host")
        if self._names is not None and not self._names.includes(host):
            return _error(403, f"this is for its own machine, not for {host!r}")
        if any(header in request.headers for header in OF_BROWSERS):
            return _error(403, "this is not for web pages")
        try:
            return await handler(request)
        except SettingsError as error:
            return _error(400, str(error))
        except SemaphoreError as error:
            return _error(503, str(error))
        except web.HTTPException as error:
            return _error(error.status, f"{error.reason}; there is GET /permit/<host>")

    async def _permit(self, request: web.Request) -> web.StreamResponse:
        # Drop anything the client sends after its request. If it were kept, reading would pause at
        # some time, and the client's end go unnoticed.
        request.protocol.close()
        assert request.transport is not None
        if not request.transport.is_reading():
            return _error(400, "a connection is for one request, without a body")
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        permits = await self._semaphore.acquire_all(self._wanted(request))
        try:
            with permits.until_lost():
                permits.begin()
                await response.prepare(request)
                await response.write(GRANTED)
                await asyncio.get_running_loop().create_future()  # cancelled at the client's end
        except PermitLostError:
            request.transport.close()  # without the last chunk: the client sees an error
        finally:
            permits.release()
        return response

    def _wanted(self, request: web.Request) -> list[tuple[str, Limit]]:
        """The scopes and limits of a crawl's request to this host, or of the scope of this name."""
        name = request.match_info["name"]
        host = scope_name(name)
        if kind_of(host) == "host":
            authority = f"[{host}]" if host.count(":") > 1 else quote(host, safe=":")
            asked = Request(f"http://{authority}/")
        else:
            refuse_url(name, repr(name))
            asked = Request("http://localhost/", meta={"semaphore_scope": name})
        limits = self._limits_of(asked)
        if "limit" in request.query:
            concurrency = check_integer(request.query["limit"], "limit", least=1, text=True)
            scopes = tuple(limits)
            index = site_index(scopes)
            scope = name if index is None else scopes[index]
            limits[scope] = replace(limits.get(scope, Limit(1)), concurrency=concurrency)
        return sorted(limits.items(), key=lambda item: order_of(item[0]))


def _error(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=f"{text}\n")
