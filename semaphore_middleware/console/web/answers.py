"""What the page's server answers: some files, the state, and what people may change with the token.

It knows nothing of how a request comes or an answer goes: that is `server.py`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from types import MappingProxyType
from typing import Any, Self

from semaphore_middleware.console.poller import Lookout
from semaphore_middleware.console.web.actions import read_order
from semaphore_middleware.console.web.auth import Guard
from semaphore_middleware.console.web.state import Seen, View, state
from semaphore_middleware.core.admin import Admin
from semaphore_middleware.errors import SemaphoreError, SettingsError

MOST = 10_000  # bytes of a request's body
PATIENCE = 5.0  # seconds that a change may take before people hear that the server is away
NONE: Mapping[str, str] = MappingProxyType({})
SCRIPT = "text/javascript; charset=utf-8"
FILES = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "script.js": SCRIPT,
    "table.js": SCRIPT,
    "steer.js": SCRIPT,
    "draw.js": SCRIPT,
    "icon.svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asked:
    method: str
    path: str
    query: Mapping[str, str]
    body: bytes
    """At most `MOST` bytes; one more if there were more."""
    host: str | None = None
    origin: str | None = None
    authorization: str | None = None
    type: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes = b""
    type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=lambda: NONE)

    @classmethod
    def json(cls, status: int, value: Any, headers: Mapping[str, str] = NONE) -> Self:
        return cls(status, json.dumps(value, separators=(",", ":")).encode(), headers=headers)

    @classmethod
    def error(cls, status: int, text: str, headers: Mapping[str, str] = NONE) -> Self:
        return cls.json(status, {"error": text}, headers)


class Answers:
    """`name` is what the Redis server is called on the page."""

    def __init__(self, semaphore: Admin, guard: Guard, name: str) -> None:
        self._semaphore = semaphore
        self._guard = guard
        self._name = name
        self._lookout = Lookout(semaphore)
        directory = resources.files("semaphore_middleware.console.web").joinpath("static")
        self._files = {
            file: Answer(200, directory.joinpath(file).read_bytes(), type)
            for file, type in FILES.items()
        }

    async def stop(self) -> None:
        await self._lookout.stop()

    async def to(self, asked: Asked) -> Answer:
        if not self._guard.may_look(asked.host):
            return Answer.error(403, f"this page is for its own machine, not for {asked.host!r}")
        path = asked.path.removeprefix("/") or "index.html"
        if path in self._files or path == "state.json":
            if asked.method not in ("GET", "HEAD"):
                return Answer.error(405, "allowed are GET and HEAD", {"Allow": "GET, HEAD"})
            return self._files.get(path) or await self._state(asked)
        if path in ("token", "steer") and self._guard.steering:
            if asked.method != "POST":
                return Answer.error(405, "allowed is POST", {"Allow": "POST"})
            return await self._steer(asked, path)
        return Answer.error(404, "there is nothing here")

    async def _state(self, asked: Asked) -> Answer:
        try:
            view = View.read(asked.query)
        except SettingsError as error:
            return Answer.error(400, str(error))
        seen, problem = await self._lookout.look()
        head = {"server": self._name, "problem": problem, "steering": self._guard.steering}
        return Answer.json(200, {**head, **state(seen or Seen(0.0), view)})

    async def _steer(self, asked: Asked, path: str) -> Answer:
        if not self._guard.may_steer(asked.authorization, asked.origin, asked.host):
            return Answer.error(403, "this is not the token that the command was given")
        if path == "token":
            return Answer(204)
        if len(asked.body) > MOST:
            return Answer.error(413, f"the body is larger than {MOST} bytes")
        if (asked.type or "").partition(";")[0].strip() != "application/json":
            return Answer.error(415, "the body must be application/json")
        try:
            order = read_order(self._semaphore, asked.body)
            async with asyncio.timeout(PATIENCE):
                await order()
        except SettingsError as error:
            return Answer.error(400, str(error))
        except TimeoutError:
            # It stands in line for the connection, and nothing there can be taken back.
            return Answer.error(503, "the Redis server does not answer; once it does, it is done")
        except SemaphoreError as error:
            return Answer.error(503, f"the Redis server does not serve: {error}")
        return Answer(204)
