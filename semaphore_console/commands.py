"""`scrapy semaphore serve` and `gate`: the page in a browser, and permits over HTTP."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from semaphore_middleware.commands.verbs import (
    CommandError,
    Status,
    Verb,
    admin_of,
    check_installed,
    node_of,
)
from semaphore_middleware.model.validation import check_integer

if TYPE_CHECKING:
    from aiohttp.web import AppRunner, BaseSite
    from scrapy.settings import BaseSettings

    Serve = Callable[[BaseSettings, argparse.Namespace], Coroutine[Any, Any, None]]

LOOPBACK = "127.0.0.1"
PAGE_PORT = 8379
GATE_PORT = 8380
TOKEN = "SEMAPHORE_TOKEN"  # in the environment


def _add_serve(parser: argparse.ArgumentParser) -> None:
    text = f"the address to listen on (default: {LOOPBACK}, for this machine only)"
    parser.add_argument("--host", default=LOOPBACK, help=text)
    _add_port(parser, PAGE_PORT)
    parser.add_argument(
        "--token",
        help="the password for changes from the page; without one the page is read-only. If "
        f"others use this machine, set {TOKEN} in the environment instead: they can see "
        "command lines",
    )


def _add_gate(parser: argparse.ArgumentParser) -> None:
    _add_port(parser, GATE_PORT, f"of {LOOPBACK}; ")
    text = "listen on a Unix socket instead: only this user's programs can connect to it"
    parser.add_argument("--socket", metavar="PATH", help=text)


def _add_port(parser: argparse.ArgumentParser, default: int, of: str = "") -> None:
    text = f"{of}0 picks a free port (default: {default})"
    parser.add_argument("--port", help=text)


def _port(options: argparse.Namespace, default: int) -> int:
    if options.port is None:
        return default
    allowed = "an integer from 0 to 65535"
    return check_integer(options.port, "--port", least=0, most=65535, allowed=allowed, text=True)


def _run(serve: Serve, settings: BaseSettings, options: argparse.Namespace) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    check_installed("aiohttp")
    if not settings.getbool("LOG_ENABLED"):  # warnings are printed: a server that is away, and bugs
        for package in ("semaphore_middleware", __package__):
            logging.getLogger(package).addHandler(logging.StreamHandler())
    asyncio.run(serve(settings, options))


async def _serve_page(settings: BaseSettings, options: argparse.Namespace) -> None:
    check_installed("prometheus_client")
    from aiohttp.web import TCPSite

    from semaphore_console.auth import Auth
    from semaphore_console.sections import load_sections
    from semaphore_console.server import make_runner

    token = options.token if options.token is not None else os.environ.get(TOKEN) or None
    host, port = options.host, _port(options, PAGE_PORT)
    auth = Auth(host, token)
    end = _ended()
    sections = load_sections(settings)
    async with admin_of(settings) as admin:
        await admin.rules()  # a missing server is an error now; later it is shown
        async with _set_up(make_runner(admin, sections, auth)) as runner:
            await _listen(TCPSite(runner, host, port), f"{host}, port {port}")
            name = f"[{host}]" if ":" in host else host
            _print_address(f"http://{name}:{runner.addresses[0][1]}/")
            await end.wait()


async def _serve_permits(settings: BaseSettings, options: argparse.Namespace) -> None:
    from aiohttp.web import TCPSite, UnixSite

    from semaphore_console.auth import OwnNames
    from semaphore_console.gate import Gate

    path, port = options.socket, _port(options, GATE_PORT)
    if path and options.port is not None:
        raise CommandError("give --port or --socket, not both", Status.WRONG)
    end = _ended()
    semaphore, limits_of = node_of(settings, "gate")
    await semaphore.open(wait=False)  # a missing server is an error now; later it is waited for
    gate = Gate(semaphore, limits_of, None if path else OwnNames(LOOPBACK))
    async with _set_up(gate.make_runner()) as runner:
        try:
            if path:
                _check_unused(path)
                with _for_this_user():
                    await _listen(UnixSite(runner, path), path)
                _print_address(path)
            else:
                await _listen(TCPSite(runner, LOOPBACK, port), f"{LOOPBACK}, port {port}")
                _print_address(f"http://{LOOPBACK}:{runner.addresses[0][1]}/permit/<host>")
            await end.wait()
        finally:
            await semaphore.close()  # each client's connection is closed with its permit


def _check_unused(path: str) -> None:
    """Raise `CommandError` if a process listens there: asyncio would take the path from it."""
    if not hasattr(socket, "AF_UNIX"):
        raise CommandError("--socket: Windows has no Unix sockets", Status.WRONG)
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except OSError:
            return
    raise CommandError(f"cannot listen on {path}: it is in use", Status.WRONG)


@contextmanager
def _for_this_user() -> Iterator[None]:
    """A context whose new files only this user can open. A socket's mode must be right from the
    first: between `bind` and `chmod` others could connect.
    """
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)


SERVE = Verb(
    "show live, in a browser, who holds permits and who waits",
    partial(_run, _serve_page),
    _add_serve,
)
GATE = Verb(
    "grant permits to other programs, such as curl, each held while its connection lasts",
    partial(_run, _serve_permits),
    _add_gate,
)


# Both --------------------------------------------------------------------------------------------


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
    except (OSError, UnicodeError) as error:  # the latter for an impossible name of a host
        number = getattr(error, "errno", None) or 0
        reason = os.strerror(number) if number > 0 else getattr(error, "strerror", error)
        raise CommandError(f"cannot listen on {where}: {reason}", Status.WRONG) from None


def _print_address(address: str) -> None:
    print(f"{address} (Ctrl-C ends it)", flush=True)
