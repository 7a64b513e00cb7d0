"""`scrapy semaphore serve` and `gate`: the page in a browser, and permits over HTTP."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from semaphore_middleware.console.cli.commands import CommandError, Status, check_installed
from semaphore_middleware.console.cli.connect import admin_of, crawls_of
from semaphore_middleware.model.validation import check_integer
from semaphore_middleware.redis.environment import default_node
from semaphore_middleware.scrapy.settings import SemaphoreSettings

if TYPE_CHECKING:
    from aiohttp.web import AppRunner, BaseSite
    from scrapy.settings import BaseSettings

LOOPBACK = "127.0.0.1"
DEFAULT_PORTS = {"serve": 8379, "gate": 8380}
TOKEN = "SEMAPHORE_TOKEN"  # in the environment


def add_options(parser: argparse.ArgumentParser, verb: str) -> None:
    """Declare the options of a verb."""
    if verb == "serve":
        text = f"the address to listen on (default: {LOOPBACK}, so only this machine can look)"
        parser.add_argument("--host", default=LOOPBACK, help=text)
    port, of = str(DEFAULT_PORTS[verb]), f"of {LOOPBACK}; " if verb == "gate" else ""
    text = f"{of}0 takes one that is free (default: {port})"
    parser.add_argument("--port", default=port, help=text)
    if verb == "serve":
        parser.add_argument(
            "--token",
            help="whoever knows it may make changes from the page; without one nobody may. On a "
            f"machine with other users set {TOKEN} in the environment instead: they can see "
            "command lines",
        )
    else:
        text = "listen on a Unix socket instead: only this user's programs can connect to it"
        parser.add_argument("--socket", metavar="PATH", help=text)


def run(settings: BaseSettings, options: argparse.Namespace) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    check_installed("aiohttp")
    allowed = "an integer from 0 to 65535"
    port = check_integer(options.port, "--port", least=0, most=65535, allowed=allowed, text=True)
    if not settings.getbool("LOG_ENABLED"):  # warnings are printed: a server that is away, and bugs
        logging.getLogger("semaphore_middleware").addHandler(logging.StreamHandler())
    serve = _serve_page if options.verb == "serve" else _serve_permits
    asyncio.run(serve(settings, options, port))


async def _serve_page(settings: BaseSettings, options: argparse.Namespace, port: int) -> None:
    from aiohttp.web import TCPSite

    from semaphore_middleware.console.web.auth import Auth
    from semaphore_middleware.console.web.server import make_runner

    token = options.token if options.token is not None else os.environ.get(TOKEN) or None
    host, auth = options.host, Auth(options.host, token)
    end, crawls = _ended(), crawls_of(settings)
    async with admin_of(settings) as admin:
        await admin.rules()  # a missing server is an error now; later it is shown
        async with _set_up(make_runner(admin, crawls, auth)) as runner:
            await _listen(TCPSite(runner, host, port), f"{host}, port {port}")
            name = f"[{host}]" if ":" in host else host
            _say(f"http://{name}:{runner.addresses[0][1]}/")
            await end.wait()


async def _serve_permits(settings: BaseSettings, options: argparse.Namespace, port: int) -> None:
    from aiohttp.web import TCPSite, UnixSite

    from semaphore_middleware.console.gate import Gate
    from semaphore_middleware.console.web.auth import OwnNames
    from semaphore_middleware.core.semaphore import FairSemaphore
    from semaphore_middleware.scrapy.scopes import ScopeFinder

    read, path = SemaphoreSettings.read(settings), options.socket
    end = _ended()
    semaphore = FairSemaphore(
        read.url,
        url_from=read.url_from,
        node=read.node or default_node("gate"),
        **read.semaphore_options(),
    )
    await semaphore.open(wait=False)  # a missing server is an error now; later it is waited for
    gate = Gate(
        semaphore, ScopeFinder(read.scopes, read.limits), None if path else OwnNames(LOOPBACK)
    )
    async with _set_up(gate.make_runner()) as runner:
        try:
            if path:
                _check_unused(path)
                await _listen(UnixSite(runner, path), path)
                _say(path)
            else:
                await _listen(TCPSite(runner, LOOPBACK, port), f"{LOOPBACK}, port {port}")
                _say(f"http://{LOOPBACK}:{runner.addresses[0][1]}/permit/<host>")
            await end.wait()
        finally:
            await semaphore.close()  # each client's connection is closed with its permit


def _check_unused(path: str) -> None:
    """Raise `CommandError` if somebody listens there: asyncio would take the name away."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except OSError:
            return
    raise CommandError(f"cannot listen on {path}: it is in use", Status.WRONG)


# Both --------------------------------------------------------------------------------------------


def _ended() -> asyncio.Event:
    """An event of the running loop, which is set by Ctrl-C and SIGTERM."""
    end = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, end.set)
    return end


@asynccontextmanager
async def _set_up(runner: AppRunner) -> AsyncIterator[AppRunner]:
    try:
        await runner.setup()
        yield runner
    finally:
        await runner.cleanup()


async def _listen(site: BaseSite, where: str) -> None:
    """Start to listen. Raises `CommandError` where that is not possible."""
    try:
        await site.start()
    except (OSError, UnicodeError) as error:  # the latter for an impossible name of a host
        number = getattr(error, "errno", None) or 0
        reason = os.strerror(number) if number > 0 else getattr(error, "strerror", error)
        raise CommandError(f"cannot listen on {where}: {reason}", Status.WRONG) from None


def _say(address: str) -> None:
    print(f"{address} (Ctrl-C ends it)", flush=True)
