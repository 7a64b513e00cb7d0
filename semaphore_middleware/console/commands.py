"""`scrapy semaphore serve`: the page in a browser."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from semaphore_middleware.model.validation import check_integer
from semaphore_middleware.operators.verbs import (
    CommandError,
    Status,
    Verb,
    admin_of,
    check_installed,
)

if TYPE_CHECKING:
    from aiohttp.web import AppRunner, BaseSite
    from scrapy.settings import BaseSettings

LOOPBACK = "127.0.0.1"
PORT = 8379
TOKEN = "SEMAPHORE_TOKEN"  # in the environment


def _add_serve(parser: argparse.ArgumentParser) -> None:
    text = f"the address to listen on (default: {LOOPBACK}, for this machine only)"
    parser.add_argument("--host", default=LOOPBACK, help=text)
    parser.add_argument("--port", help=f"0 picks a free port (default: {PORT})")
    parser.add_argument(
        "--token",
        help="the password to pause and resume sites from the page; without one it is read-only. "
        f"If others use this machine, set {TOKEN} in the environment instead: they can see "
        "command lines",
    )


def _port(options: argparse.Namespace) -> int:
    if options.port is None:
        return PORT
    allowed = "an integer from 0 to 65535"
    return check_integer(options.port, "--port", least=0, most=65535, allowed=allowed, text=True)


def _run(settings: BaseSettings, options: argparse.Namespace) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    check_installed("aiohttp")
    check_installed("prometheus_client")
    if not settings.getbool("LOG_ENABLED"):  # print warnings: an unreachable server, and bugs
        logging.getLogger("semaphore_middleware").addHandler(logging.StreamHandler())
    asyncio.run(_serve(settings, options))


async def _serve(settings: BaseSettings, options: argparse.Namespace) -> None:
    from aiohttp.web import TCPSite

    from semaphore_middleware.console.auth import Auth
    from semaphore_middleware.console.sections import load_sections
    from semaphore_middleware.console.server import make_runner

    token = options.token if options.token is not None else os.environ.get(TOKEN) or None
    host, port = options.host, _port(options)
    auth = Auth(host, token)
    end = _ended()
    sections = load_sections(settings)
    async with admin_of(settings) as admin:
        await admin.rules()  # a missing server ends the command now; later it is shown
        async with _set_up(make_runner(admin, sections, auth)) as runner:
            await _listen(TCPSite(runner, host, port), f"{host}, port {port}")
            name = f"[{host}]" if ":" in host else host
            _print_address(f"http://{name}:{runner.addresses[0][1]}/")
            await end.wait()


def _ended() -> asyncio.Event:
    """An event of the running loop, set by Ctrl-C and SIGTERM."""
    end = asyncio.Event()
    with suppress(NotImplementedError):  # on Windows, Ctrl-C cancels the task
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
    """Start to listen. Raises `CommandError` if that fails."""
    try:
        await site.start()
    except (OSError, UnicodeError) as error:  # UnicodeError: an impossible host name
        number = getattr(error, "errno", None) or 0
        reason = os.strerror(number) if number > 0 else getattr(error, "strerror", error)
        raise CommandError(f"cannot listen on {where}: {reason}", Status.WRONG) from None


def _print_address(address: str) -> None:
    print(f"{address} (Ctrl-C ends it)", flush=True)


SERVE = Verb("show live, in a browser, who holds permits and who waits", _run, _add_serve)
