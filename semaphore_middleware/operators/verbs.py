"""The command `scrapy semaphore`: finds and calls its verbs, and sets the exit status."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import re
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import IntEnum
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from scrapy.commands import ScrapyCommand

from semaphore_middleware.model.validation import did_you_mean

# Scrapy imports this module for each of its own commands, so verbs import what they need later.

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

    from semaphore_middleware.operators.admin import Admin

T = TypeVar("T")


class Status(IntEnum):
    """A command's exit status."""

    DONE = 0
    DECLINED = 1
    WRONG = 2
    NO_SERVER = 3
    UNKNOWN = 4
    INTERRUPTED = 130


MEANINGS = {
    Status.DONE: "done",
    Status.DECLINED: "no crawl could start (check), or the question was not answered with yes",
    Status.WRONG: "a value or an option is not allowed, or a library is missing",
    Status.NO_SERVER: "the server cannot be reached, refuses, or has no address",
    Status.UNKNOWN: "nothing is known of that scope, node or crawl",
    Status.INTERRUPTED: "interrupted",
}
EXITS = f"Exit status: {'; '.join(f'{status:d} {MEANINGS[status]}' for status in Status)}."


class CommandError(Exception):
    """An error that the user sees as one line, and the exit status."""

    def __init__(self, text: str, status: Status) -> None:
        super().__init__(text)
        self.status = status


def check_installed(library: str, hint: str = "") -> None:
    """Raise `CommandError`, with the command to install it, if the library is missing."""
    try:
        import_module(library)
    except ImportError:
        raise CommandError(f"{_how_to_install(library)}{hint}", Status.WRONG) from None


def _how_to_install(library: str) -> str:
    return f"this needs {library}: pip install 'scrapy-semaphore[commands]'"


def confirmed(question: str) -> bool:
    """Ask for a yes. After any other answer, print that nothing was changed."""
    try:
        is_yes = input(question).strip().lower() in ("y", "yes")
    except EOFError:
        print()
        is_yes = False
    if not is_yes:
        print("Nothing was changed.")
    return is_yes


# The server --------------------------------------------------------------------------------------


def admin_of(settings: BaseSettings) -> Admin:
    """A client for the server of crawls with these settings; not connected yet.

    Starts no embedded server. Raises `SettingsError`, and `CommandError` if there is no server.
    """
    from semaphore_middleware.model.settings import value_of
    from semaphore_middleware.operators.admin import Admin

    url, url_from = address_of(settings)
    return Admin(
        url,
        name=value_of("SEMAPHORE_NODE", settings) or None,
        lease=value_of("SEMAPHORE_LEASE", settings),
        prefix=value_of("SEMAPHORE_PREFIX", settings),
        url_from=url_from,
        credentials=value_of("SEMAPHORE_REDIS_CREDENTIALS", settings),
        redis_options=value_of("SEMAPHORE_REDIS_OPTIONS", settings),
    )


def do_with_admin(settings: BaseSettings, work: Callable[[Admin], Awaitable[T]]) -> T:
    """Do some work with a new client, so that none is open while a question waits for an answer."""

    async def do() -> T:
        async with admin_of(settings) as admin:
            return await work(admin)

    return asyncio.run(do())


def address_of(settings: BaseSettings) -> tuple[str, str]:
    """The URL of the server, and where it was set. Raises as `admin_of`."""
    from semaphore_middleware.link import embedded
    from semaphore_middleware.link.environment import server_of

    url, url_from = server_of(settings)
    if (url := url or embedded.find()) is None:
        raise CommandError(
            embedded.why_none(", in the settings, by -s, or in the environment"),
            Status.NO_SERVER,
        )
    return url, url_from


# Verbs -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verb:
    """A verb of a command. An entry point of the command's group names it."""

    help: str
    """Its line in the list of verbs."""
    run: Callable[[BaseSettings, argparse.Namespace], int | None]
    """Runs the verb, and returns an exit status; None: done. It may raise `CommandError`."""
    add_options: Callable[[argparse.ArgumentParser], object] = lambda _: None
    description: str = ""
    """The text of its own help; empty: `help`."""


def _load(point: EntryPoint) -> Verb:
    """Load a verb. If that fails, the verb's help is the reason, and calling it raises an error."""
    try:
        _import_redis()
        verb = point.load()
        if not isinstance(verb, Verb):
            raise TypeError("it is not a Verb")
        return verb
    except ModuleNotFoundError as error:
        problem = _how_to_install(str(error.name))
    except Exception as error:
        problem = f"{point.value} cannot be loaded: {' '.join(str(error).split())}"

    def fail(*_: object) -> NoReturn:
        raise CommandError(problem, Status.WRONG)

    return Verb(problem, fail, fail)


def _import_redis() -> None:
    """Import redis-py without OpenTelemetry's SDK. It imports that where it is installed, for
    metrics that a command does not have, which takes as long as all the rest.
    """
    sdk = "opentelemetry.sdk"
    if sdk in sys.modules:
        return
    sys.modules[sdk] = None  # type: ignore[assignment] # cannot be imported
    try:
        import_module("redis")
    finally:
        del sys.modules[sdk]


MEANT = {"unpause": "resume", "unlimit": "reset"}
"""Verbs that users try, and those they mean: the most similar verb is the opposite."""


def _not_empty(text: str) -> str:
    if not text:  # as from a shell variable that is not set
        raise argparse.ArgumentTypeError("the value is empty")
    return text


class VerbParser(argparse.ArgumentParser):
    """Reports a wrong option in one line, with a similar name or a hint at the help. Refuses empty
    values.
    """

    def add_argument(self, *names: str, **how: Any) -> argparse.Action:
        action = super().add_argument(*names, **how)
        if action.option_strings and action.nargs != 0 and action.type is None:
            action.type = _not_empty
        return action

    def error(self, message: str) -> NoReturn:
        hint = f"; see {self.prog} -h"
        if unknown := re.search(r"unrecognized arguments: ([^\s=]+)", message):
            options = re.findall(r"--[a-z][a-z-]*", self.format_help())
            hint = did_you_mean(unknown[1], options) or hint
            message = f"unexpected {unknown[1]!r}"
        command = self.prog.rpartition(" ")[0]
        self.exit(Status.WRONG, f"{command}: {message}{hint}\n")


class VerbCommand(ScrapyCommand):
    """A Scrapy command with verbs: the entry points of its group."""

    requires_project = False
    requires_crawler_process = False
    default_settings: ClassVar[dict[str, object]] = {"LOG_ENABLED": False}
    name: ClassVar[str]
    group: ClassVar[str]

    def syntax(self) -> str:
        return "<verb> [options]"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Scrapy's own options may stand anywhere; all others are left to the verb."""
        super().add_options(parser)
        parser.allow_abbrev = False  # a verb's option may begin like one of Scrapy's
        parser.add_argument("-h", "--help", dest="asks_for_help", action="store_true")

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        gc.freeze()  # Scrapy's modules stay: the collector need not visit them again and again
        points = {point.name: point for point in entry_points(group=self.group)}
        name, *words = args or [""]
        if not args:
            self._list_parser(points).print_help()
            self.exitcode = Status.DONE if opts.asks_for_help else Status.WRONG
        elif name in points:
            self._call(_load(points[name]), name, words, opts)
        elif name.startswith("-"):
            self._fail(f"unexpected {name!r}; see scrapy {self.name} -h", Status.WRONG)
        else:
            hint = did_you_mean(name, points, meant=MEANT)
            hint = hint or f"; the verbs are {', '.join(sorted(points))}"
            self._fail(f"there is no verb {name!r}{hint}", Status.WRONG)

    def _list_parser(self, points: dict[str, EntryPoint]) -> argparse.ArgumentParser:
        """A parser for the command's help: a list of the verbs."""
        parser = self._parser("", self.long_desc())
        parser.usage = f"{parser.prog} {self.syntax()}"
        parser.epilog = f"{parser.prog} <verb> -h explains each. {EXITS}"
        verbs = parser.add_subparsers(title="verbs", metavar="<verb>")
        for name in sorted(points):
            verbs.add_parser(name, help=_load(points[name]).help)
        super().add_options(parser)
        return parser

    def _parser(self, verb: str, description: str) -> VerbParser:
        return VerbParser(
            prog=f"scrapy {self.name} {verb}".rstrip(),
            description=description,
            epilog=EXITS,
        )

    def _call(self, verb: Verb, name: str, words: list[str], opts: argparse.Namespace) -> None:
        from scrapy.utils.log import configure_logging

        from semaphore_middleware.errors import SemaphoreError, SettingsError
        from semaphore_middleware.model.settings import unknown_names

        _prepare_streams()
        try:
            text = verb.description or f"{verb.help[0].upper()}{verb.help[1:]}."
            parser = self._parser(name, text)
            verb.add_options(parser)
            if opts.asks_for_help:
                return parser.print_help()
            options = parser.parse_intermixed_args(words)
            configure_logging(self.settings)
            for mistake in unknown_names(text.partition("=")[0] for text in opts.set):
                raise CommandError(mistake, Status.WRONG)
            assert self.settings is not None
            self.exitcode = verb.run(self.settings, options) or Status.DONE
            sys.stdout.flush()
        except CommandError as error:
            self._fail(str(error), error.status)
        except SettingsError as error:
            self._fail(str(error), Status.WRONG)
        except SemaphoreError as error:
            self._fail(str(error), Status.NO_SERVER)
        except KeyboardInterrupt:
            print(file=sys.stderr)  # so that the shell's prompt does not stand behind ^C
            self.exitcode = Status.INTERRUPTED
        except BrokenPipeError:  # as by `| head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def _fail(self, text: str, status: Status) -> None:
        print(f"scrapy {self.name}: {text}", file=sys.stderr)
        self.exitcode = status


class SemaphoreCommand(VerbCommand):
    """The command `scrapy semaphore`."""

    name = "semaphore"
    group = "semaphore_middleware.verbs"

    def short_desc(self) -> str:
        return "See and change the limits that all crawling processes share"

    def long_desc(self) -> str:
        return (
            "Shows which sites' limits are full, who holds permits and who waits, and sets limits "
            "while crawls run. It uses the server of the project's crawls (SEMAPHORE_REDIS_URL or "
            "REDIS_URL, in the settings, by -s, or in the environment), otherwise the embedded "
            "server if it runs. Reading changes nothing there."
        )


def _prepare_streams() -> None:
    """Keep closed streams and unprintable output from failing the command, especially after a
    change.
    """
    if sys.stdin is None:  # closed, as by `<&-`
        sys.stdin = Path(os.devnull).open()  # noqa: SIM115 - until the process ends
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
    stdout: Any = sys.stdout
    if hasattr(stdout, "reconfigure"):
        stdout.reconfigure(errors="replace")  # some terminals lack characters
