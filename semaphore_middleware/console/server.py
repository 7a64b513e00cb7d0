"""The page's HTTP server: its routes, and the common part of every answer."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Mapping
from hashlib import sha1
from importlib import resources
from pathlib import PurePath
from typing import Any

from aiohttp import web, web_response
from aiohttp.http import HttpProcessingError
from aiohttp.typedefs import Handler
from prometheus_client import CONTENT_TYPE_LATEST

from semaphore_middleware.console.actions import act
from semaphore_middleware.console.auth import HEAD_TIMEOUT_S, SERVER, Auth
from semaphore_middleware.console.fleet_metrics import FleetMetrics
from semaphore_middleware.console.poller import LastHour, Poller, snapshots
from semaphore_middleware.console.sections import Section
from semaphore_middleware.console.view import show, show_section
from semaphore_middleware.errors import (
    SemaphoreError,
    ServerRefusedError,
    ServerUnreachableError,
    SettingsError,
)
from semaphore_middleware.link.connection import MissingRightError
from semaphore_middleware.model.options import prefix_named
from semaphore_middleware.operators.admin import Admin
from semaphore_middleware.operators.snapshot import EMPTY

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0  # from one survey of the server to the next
UNSEEN_INTERVAL_S = 10.0  # while no browser is open: only for the last hour
REFUSALS_LOGGED_EVERY_S = 60.0  # who guesses a token may try often
MAX_BODY = 10_000  # bytes of a request
SHUTDOWN_TIMEOUT_S = 0.5  # for requests under way when the command ends
STATIC = resources.files("semaphore_middleware.console").joinpath("static")
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
setattr(web_response, "SERVER_SOFTWARE", SERVER)  # noqa: B010 - also for errors of aiohttp itself
HEADERS = {
    # Nothing from other servers and nothing inline.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",  # browsers keep an answer, and ask each time for a newer one
}


def make_runner(admin: Admin, sections: Mapping[str, Section], auth: Auth) -> web.AppRunner:
    """The page's server, not listening yet. It reads the Redis server through `admin` and
    `sections`, changes it through `admin`, and closes neither.
    """
    page = Page(admin, sections, auth)
    app = web.Application(middlewares=[page.answer], client_max_size=MAX_BODY)
    app.add_routes([web.get(f"/{name}", page.file) for name in ("", *page.files)])
    app.add_routes([web.get("/state.json", page.state), web.get("/metrics", page.metrics)])
    if auth.allows_changes:
        app.add_routes([web.post("/token", page.token), web.post("/actions", page.action)])
    app.on_startup.append(page.start)
    app.on_cleanup.append(page.stop)
    http_logger = logger.getChild("http")
    http_logger.addFilter(_is_own_error)  # otherwise each invalid request logs a traceback
    return web.AppRunner(
        app,
        access_log=None,  # each browser would add a line a second
        logger=http_logger,
        handle_signals=False,
        keepalive_timeout=HEAD_TIMEOUT_S,
        shutdown_timeout=SHUTDOWN_TIMEOUT_S,
    )


class Page:
    """The answers of the page's server."""

    def __init__(self, admin: Admin, sections: Mapping[str, Section], auth: Auth) -> None:
        self._admin = admin
        self._sections = sections
        self._auth = auth
        self._refused_at = -math.inf  # when a refusal was last logged
        self._keys = f"{{{admin.prefix}}}:"
        self._last_hour = LastHour()
        self._metrics = FleetMetrics(admin.prefix)
        self._poller = Poller(snapshots(admin, self._last_hour), INTERVAL_S)
        # The absence of a Redis server that a section shares is logged only once.
        self._pollers = {
            name: Poller(section.survey, INTERVAL_S, logs=section.server != admin.server)
            for name, section in sections.items()
        }
        self.files = {file.name: file.read_bytes() for file in STATIC.iterdir()}
        """The files for browsers, by name."""

    async def start(self, _: web.Application) -> None:
        """Survey for the last hour, also while no browser is open."""
        self._surveys = asyncio.create_task(self._survey())

    async def _survey(self) -> None:
        while True:
            await asyncio.sleep(UNSEEN_INTERVAL_S)
            self._metrics.count_starts(await self._poller.look() or EMPTY)

    async def stop(self, _: web.Application) -> None:
        """End the surveys under way."""
        self._surveys.cancel()
        await self._poller.stop()
        for poller in self._pollers.values():
            await poller.stop()

    @web.middleware
    async def answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check the Host header, and give every answer its headers; errors are JSON objects."""
        try:
            if not self._auth.may_see(host := request.headers.get("Host")):
                words = f"{host!r} is not this machine; open the page by this machine's address"
                raise web.HTTPForbidden(text=words)
            response = await handler(request)
        except web.HTTPException as error:
            response = _error(error.status, error.text or error.reason)
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
        except Exception:
            logger.exception("Internal error (a bug: please report it); the answer is status 500.")
            response = _error(500, "internal error; see the command's output")
        assert isinstance(response, web.Response)
        if response.status == 200 and isinstance(response.body, bytes):
            response.etag = sha1(response.body, usedforsecurity=False).hexdigest()
            if response.etag in (request.if_none_match or ()):
                response = web.Response(status=304, headers={"ETag": response.headers["ETag"]})
        response.headers.update(HEADERS)
        return response

    async def file(self, request: web.Request) -> web.Response:
        """One of the page's own files."""
        name = request.path.removeprefix("/") or "index.html"
        kind = TYPES[PurePath(name).suffix]
        return web.Response(body=self.files[name], headers={"Content-Type": kind})

    async def state(self, request: web.Request) -> web.Response:
        """The page's figures, as the query asks for them."""
        await self._look()
        shown = show(self._poller.snapshot or EMPTY, request.query)
        if opened := shown["opened"]:
            opened["history"] = self._last_hour.figures_of(opened["scope"])
        body = {
            "server": f"{self._admin.server}{prefix_named(self._admin.prefix)}",
            "problem": _problem(self._poller, "scopes", self._keys),
            "problem_since": self._poller.away_since,
            "can_change": self._auth.allows_changes,
            **shown,
        }
        for name, poller in self._pollers.items():
            body |= show_section(name, poller.snapshot or ())
            body[f"{name}_problem"] = _problem(poller, name, self._sections[name].keys)
            body[f"{name}_problem_since"] = poller.away_since
        return web.json_response(body)

    async def metrics(self, _: web.Request) -> web.Response:
        """All figures in Prometheus' format."""
        await self._look()
        newest = self._poller.snapshot if self._poller.is_current else None
        pollers = zip(self._sections.values(), self._pollers.values(), strict=True)
        rows = [
            (section, poller.snapshot or ()) for section, poller in pollers if poller.is_current
        ]
        body = self._metrics.text(newest, rows)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _look(self) -> None:
        """Take the surveys that are due."""
        pollers: list[Poller[Any]] = [self._poller, *self._pollers.values()]
        await asyncio.gather(*(poller.look() for poller in pollers))

    async def token(self, request: web.Request) -> web.Response:
        """Status 204 for the right token on this page, otherwise 403."""
        self._check_token(request)
        return web.Response(status=204)

    async def action(self, request: web.Request) -> web.Response:
        """Make the change in the request's body."""
        self._check_token(request)
        try:
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                body = await request.read()
        except TimeoutError:
            raise web.HTTPRequestTimeout from None
        if request.content_type != "application/json":
            raise web.HTTPUnsupportedMediaType(text="the body must be application/json")
        try:
            await act(self._admin, body)
        except SettingsError as error:
            raise web.HTTPBadRequest(text=str(error)) from None
        except ServerRefusedError as error:
            raise web.HTTPServiceUnavailable(text=str(error)) from None
        except SemaphoreError as error:
            words = f"the Redis server cannot be used: {error}"
            raise web.HTTPServiceUnavailable(text=words) from None
        return web.Response(status=204)

    def _check_token(self, request: web.Request) -> None:
        given = map(request.headers.get, ("Authorization", "Origin", "Host"))
        if refusal := self._auth.refusal(*given):
            now = time.monotonic()
            if now - self._refused_at >= REFUSALS_LOGGED_EVERY_S:
                self._refused_at = now
                logger.warning("A change asked for by %s was refused: %s.", request.remote, refusal)
            raise web.HTTPForbidden(text=refusal)


def _problem(poller: Poller[Any], what: str, keys: str) -> str | None:
    """The reason for old figures; None if they are current. `keys` is how their keys begin."""
    error = poller.error
    if isinstance(error, MissingRightError):
        return f"The {what} cannot be shown: {error}; all keys begin with {keys!r}."
    if isinstance(error, ServerRefusedError):
        return f"The {what} cannot be shown: {error}."
    if isinstance(error, ServerUnreachableError):
        return f"The Redis server does not answer: {error}."
    if error is not None:
        return f"The Redis server cannot be used: {error}."
    if poller.is_late:
        return "The Redis server does not answer."
    return None


def _is_own_error(record: logging.LogRecord) -> bool:
    """False for an invalid HTTP request: its sender gets status 400."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


def _error(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)
