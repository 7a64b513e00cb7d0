"""`scrapy semaphore gate`: permits for programs in any language, over HTTP."""

from __future__ import annotations

import argparse
import asyncio
import socket
from typing import TYPE_CHECKING

from semaphore_middleware.console.cli.commands import CommandError, Status, check_installed
from semaphore_middleware.console.cli.serve import ended, listen, port_of, print_errors
from semaphore_middleware.redis.environment import default_node
from semaphore_middleware.scrapy.settings import SemaphoreSettings

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

HOST = "127.0.0.1"
DEFAULT_PORT = 8380


def add_options(parser: argparse.ArgumentParser, _verb: str) -> None:
    """Declare the options of `gate`."""
    parser.add_argument(
        "--port",
        default=str(DEFAULT_PORT),
        help=f"of {HOST}; 0 takes one that is free (default: {DEFAULT_PORT})",
    )
    parser.add_argument(
        "--socket",
        metavar="PATH",
        help="listen on a Unix socket instead: only this user's programs can connect to it",
    )


def run(settings: BaseSettings, options: argparse.Namespace) -> None:
    """Serve permits until Ctrl-C or SIGTERM."""
    check_installed("aiohttp")
    port = port_of(options)
    print_errors(settings)
    asyncio.run(_serve(SemaphoreSettings.read(settings), port, options.socket))


async def _serve(settings: SemaphoreSettings, port: int, path: str | None) -> None:
    from aiohttp.web import TCPSite, UnixSite

    from semaphore_middleware.console.gate import Gate
    from semaphore_middleware.console.web.auth import OwnNames
    from semaphore_middleware.core.semaphore import FairSemaphore
    from semaphore_middleware.scrapy.scopes import ScopeFinder

    end = ended()
    semaphore = FairSemaphore(
        settings.url,
        url_from=settings.url_from,
        node=settings.node or default_node("gate"),
        **settings.semaphore_options(),
    )
    await semaphore.open(wait=False)  # a missing server is an error now; later it is waited for
    scopes = ScopeFinder(settings.scopes, settings.limits)
    runner = Gate(semaphore, scopes, None if path else OwnNames(HOST)).make_runner()
    try:
        await runner.setup()
        if path:
            _check_unused(path)
            await listen(UnixSite(runner, path), path)
            print(f"{path} (Ctrl-C ends it)", flush=True)
        else:
            await listen(TCPSite(runner, HOST, port), f"{HOST}, port {port}")
            port = runner.addresses[0][1]
            print(f"http://{HOST}:{port}/permit/<host> (Ctrl-C ends it)", flush=True)
        await end.wait()
    finally:
        await semaphore.close()  # each client's connection is closed with its permit
        await runner.cleanup()


def _check_unused(path: str) -> None:
    """Raise `CommandError` if somebody listens there: asyncio would take the name away."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except OSError:
            return
    raise CommandError(f"cannot listen on {path}: it is in use", Status.WRONG)
