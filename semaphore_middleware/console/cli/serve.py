"""`scrapy semaphore serve`: the state of `watch` in a browser, and steering with a token."""

from __future__ import annotations

import argparse
import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from semaphore_middleware.console.cli.connect import CommandError, Status, session
from semaphore_middleware.errors import SettingsError

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

    from semaphore_middleware.console.web.auth import Guard

PORT = 8379
TOKEN = "SEMAPHORE_TOKEN"  # in the environment


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="the address to listen on (default: 127.0.0.1, so only this machine can look)",
    )
    parser.add_argument(
        "--port", default=str(PORT), help=f"0 takes one that is free (default: {PORT})"
    )
    parser.add_argument(
        "--token",
        help="who knows it may steer from the page; without one nobody may. On a machine with "
        f"other users set {TOKEN} in the environment instead: they can see command lines",
    )


def run(settings: BaseSettings, options: argparse.Namespace) -> int:
    # Not at the top: the other verbs need no web server.
    from scrapy.utils.reactor import install_reactor

    from semaphore_middleware.console.web.auth import Guard

    port = _port(options.port)
    token = options.token if options.token is not None else os.environ.get(TOKEN) or None
    guard = Guard(options.host, token)
    install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")
    from twisted.internet import reactor as installed
    from twisted.internet.defer import Deferred

    reactor: Any = installed  # mypy sees a module there
    serving: list[asyncio.Task[None]] = []

    def begin() -> None:
        task = asyncio.ensure_future(_serve(settings, guard, options.host, port))
        serving.append(task)
        task.add_done_callback(lambda _: reactor.stop() if reactor.running else None)

    def end() -> Deferred[Any]:
        """Ctrl-C, or a failure: the reactor waits until all is given back."""
        for task in serving:
            task.cancel()
        return Deferred.fromFuture(
            asyncio.ensure_future(asyncio.gather(*serving, return_exceptions=True))
        )

    reactor.callWhenRunning(begin)
    reactor.addSystemEventTrigger("before", "shutdown", end)
    reactor.run()
    with suppress(asyncio.CancelledError):
        serving[0].result()
    return Status.DONE


async def _serve(settings: BaseSettings, guard: Guard, host: str, port: int) -> None:
    from twisted.internet import reactor as installed
    from twisted.internet.error import CannotListenError

    from semaphore_middleware.console.web.answers import Answers
    from semaphore_middleware.console.web.server import PageSite

    reactor: Any = installed
    async with session(settings) as semaphore:
        site = PageSite(Answers(semaphore, guard, semaphore.server))
        try:
            listening = reactor.listenTCP(port, site, interface=host)
        except CannotListenError as error:
            text = f"cannot listen on {host}, port {port}: {error.socketError}"
            raise CommandError(text, Status.WRONG) from None
        try:
            name = f"[{host}]" if ":" in host else host
            print(f"http://{name}:{listening.getHost().port}/ (Ctrl-C ends it)", flush=True)
            await asyncio.Event().wait()
        finally:
            await asyncio.gather(listening.stopListening(), site.stop())


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise SettingsError(f"--port {text}: allowed is an integer from 0 to 65535")
    return int(text)
