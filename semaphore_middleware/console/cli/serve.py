"""`scrapy semaphore serve`: the figures of `watch` in a browser, and changes with a token."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
from typing import TYPE_CHECKING

from semaphore_middleware.console.cli.commands import CommandError, Status, check_installed
from semaphore_middleware.console.cli.connect import admin_of, crawls_of
from semaphore_middleware.model.validation import check_integer

if TYPE_CHECKING:
    from aiohttp.web import BaseSite
    from scrapy.settings import BaseSettings

    from semaphore_middleware.console.web.auth import Auth

DEFAULT_PORT = 8379
TOKEN = "SEMAPHORE_TOKEN"  # in the environment


def add_options(parser: argparse.ArgumentParser, _verb: str) -> None:
    """Declare the options of `serve`."""
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="the address to listen on (default: 127.0.0.1, so only this machine can look)",
    )
    parser.add_argument(
        "--port",
        default=str(DEFAULT_PORT),
        help=f"0 takes one that is free (default: {DEFAULT_PORT})",
    )
    parser.add_argument(
        "--token",
        help="whoever knows it may make changes from the page; without one nobody may. On a "
        f"machine with other users set {TOKEN} in the environment instead: they can see command "
        "lines",
    )


def run(settings: BaseSettings, options: argparse.Namespace) -> None:
    """Serve the page until Ctrl-C or SIGTERM."""
    check_installed("aiohttp")
    from semaphore_middleware.console.web.auth import Auth

    port = port_of(options)
    token = options.token if options.token is not None else os.environ.get(TOKEN) or None
    print_errors(settings)
    asyncio.run(_serve(settings, Auth(options.host, token), options.host, port))


async def _serve(settings: BaseSettings, auth: Auth, host: str, port: int) -> None:
    from aiohttp.web import TCPSite

    from semaphore_middleware.console.web.server import make_runner

    end = ended()
    crawls = crawls_of(settings)
    async with admin_of(settings) as admin:
        await admin.rules()  # a missing server is an error now; later it is shown
        runner = make_runner(admin, crawls, auth)
        try:
            await runner.setup()
            await listen(TCPSite(runner, host, port), f"{host}, port {port}")
            name = f"[{host}]" if ":" in host else host
            print(f"http://{name}:{runner.addresses[0][1]}/ (Ctrl-C ends it)", flush=True)
            await end.wait()
        finally:
            await runner.cleanup()


# For all that serves -----------------------------------------------------------------------------


def port_of(options: argparse.Namespace) -> int:
    """The checked `--port`. Raises `SettingsError`."""
    return check_integer(
        options.port,
        "--port",
        least=0,
        most=65535,
        allowed="an integer from 0 to 65535",
        text=True,
    )


def print_errors(settings: BaseSettings) -> None:
    """Print what is logged as a warning, also without a log: a server that is away, and bugs."""
    if not settings.getbool("LOG_ENABLED"):
        logging.getLogger("semaphore_middleware").addHandler(logging.StreamHandler())


def ended() -> asyncio.Event:
    """An event of the running loop, which is set by Ctrl-C and SIGTERM."""
    end = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, end.set)
    return end


async def listen(site: BaseSite, where: str) -> None:
    """Start to listen. Raises `CommandError` where that is not possible."""
    try:
        await site.start()
    except (OSError, UnicodeError) as error:  # the latter for an impossible name of a host
        number = getattr(error, "errno", None) or 0
        reason = os.strerror(number) if number > 0 else getattr(error, "strerror", error)
        raise CommandError(f"cannot listen on {where}: {reason}", Status.WRONG) from None
