"""The page's HTTP server: Twisted's, which Scrapy brings. What it answers is in `answers.py`."""

from __future__ import annotations

import asyncio
import logging
from hashlib import sha1
from typing import Any

from twisted.web.http import CACHED
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request, Site

from semaphore_middleware.console.web.answers import MOST, Answer, Answers, Asked

logger = logging.getLogger(__name__)

HEADERS = {
    "Server": "scrapy-semaphore",
    # Nothing from elsewhere and nothing inline.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",  # browsers keep it, and ask each time whether it is still so
}


class PageRequest(Request):
    """A request whose body cannot fill the memory."""

    def handleContentChunk(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        content: Any = self.content
        content.write(data[: MOST + 1 - content.tell()])


class PageSite(Site):
    def __init__(self, answers: Answers) -> None:
        self._page = Page(answers)
        super().__init__(  # type: ignore[no-untyped-call]  # Twisted has types for some
            self._page, requestFactory=PageRequest, timeout=60, parsePOSTFormSubmission=False
        )

    def log(self, request: object) -> None:
        """Not a line for each second of each browser."""

    async def stop(self) -> None:
        await self._page.stop()


class Page(Resource):
    isLeaf = True  # noqa: N815 - Twisted's name

    def __init__(self, answers: Answers) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Twisted has types for some
        self._answers = answers
        self._tasks: set[asyncio.Task[None]] = set()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._answers.stop()

    def render(self, request: Any) -> int:
        task = asyncio.ensure_future(self._serve(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # A browser that is gone need not be answered.
        request.notifyFinish().addErrback(lambda _: task.cancel())
        return NOT_DONE_YET

    async def _serve(self, request: Any) -> None:
        try:
            answer = await self._answers.to(_read(request))
        except Exception:
            logger.exception("This should not happen; the request is answered with an error.")
            answer = Answer.error(500, "something went wrong; the command's log has more")
        request.setResponseCode(answer.status)
        for name, value in {**HEADERS, **answer.headers}.items():
            request.setHeader(name, value)
        tag = f'"{sha1(answer.body, usedforsecurity=False).hexdigest()}"'
        cached = answer.status == 200 and request.setETag(tag.encode()) is CACHED
        if answer.body and not cached:
            request.setHeader("Content-Type", answer.type)
            request.setHeader("Content-Length", str(len(answer.body)))
            request.write(answer.body)
        request.finish()


def _read(request: Any) -> Asked:
    return Asked(
        request.method.decode("ascii", "replace"),
        request.path.decode("ascii", "replace"),
        {_text(name): _text(values[-1]) for name, values in request.args.items()},
        request.content.read(),
        host=request.getHeader("Host"),
        origin=request.getHeader("Origin"),
        authorization=request.getHeader("Authorization"),
        type=request.getHeader("Content-Type"),
    )


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
