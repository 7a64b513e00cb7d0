"""`scrapy semaphore serve`: the page in a browser."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
from contextlib import suppress
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
    from aiohttp.web import BaseSite
    from scrapy.settings import BaseSettings

LOOPBACK = "127.0.0.1"
PORT = "8379"
TOKEN = "SEMAPHORE_TOKEN"  # the environment variable


def _add_serve(parser: argparse.ArgumentParser) -> None:
    text = f"the address to listen on (default: {LOOPBACK}, for this machine only)"
    parser.add_argument("--host", default=LOOPBACK, help=text)
    parser.add_argument("--port", default=PORT, help="0 picks a free port (default: %(default)s)")
    parser.add_argument(
        "--token",
        help="the password to pause and resume sites from the page; without one it is read-only. "
        f"If others use this machine, set {TOKEN} in the environment instead: they can see "
        "command lines",
    )


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
    host, allowed = options.host, "an integer from 0 to 65535"
    port = check_integer(options.port, "--port", least=0, most=65535, allowed=allowed, text=True)
    auth = Auth(host, token)
    end = _ended()
    sections = load_sections(settings)
    async with admin_of(settings) as admin:
        await admin.rules()  # a missing server ends the command now; later it is shown
        runner = make_runner(admin, sections, auth)
        try:
            await runner.setup()
            await _listen(TCPSite(runner, host, port), f"{host}, port {port}")
            name = f"[{host}]" if ":" in host else host
            print(f"http://{name}:{runner.addresses[0][1]}/ (Ctrl-C ends it)", flush=True)
            await end.wait()
        finally:
            await runner.cleanup()


def _ended() -> asyncio.Event:
    """An event of the running loop, set by Ctrl-C and SIGTERM."""
    end = asyncio.Event()
    with suppress(NotImplementedError):  # on Windows, Ctrl-C cancels the task
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, end.set)
    return end


async def _listen(site: BaseSite, where: str) -> None:
    """Start to listen. Raises `CommandError` if that fails."""
    try:
        await site.start()
    except (OSError, UnicodeError) as error:  # UnicodeError: an impossible host name
        number = getattr(error, "errno", None) or 0
        reason = os.strerror(number) if number > 0 else getattr(error, "strerror", error)
        raise CommandError(f"cannot listen on {where}: {reason}", Status.WRONG) from None


SERVE = Verb("show live, in a browser, who holds permits and who waits", _run, _add_serve)
