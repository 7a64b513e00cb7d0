"""`scrapy semaphore` and `scrapy frontier`: their verbs, how they are called, how they end."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping
from enum import IntEnum
from importlib import import_module
from pathlib import Path
from textwrap import fill
from typing import Any, ClassVar, NoReturn

from scrapy.commands import ScrapyCommand, ScrapyHelpFormatter
from scrapy.exceptions import UsageError

from semaphore_middleware.model.validation import did_you_mean

# Scrapy imports this module for each of its own commands, so the verbs' modules are imported later.

VERBS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "semaphore": {
        "status": ("status", "show who holds permits, who waits, and which limits apply"),
        "watch": ("watch", "show the same live, the sites where most requests wait first"),
        "serve": ("serve", "show live, in a browser, who holds permits and who waits"),
        "gate": (
            "serve",
            "grant permits to other programs, such as curl, each held while its connection lasts",
        ),
        "report": ("report", "show what was done to a site, or compare it with the site's own log"),
        "limit": ("changes", "set a site's limit, for all nodes, at once"),
        "pause": ("changes", "let no request start at a site, until 'resume'"),
        "resume": ("changes", "go on after 'pause', or at once with a site that refused a request"),
        "reset": ("changes", "take back what 'limit', 'pause' and 'resume' have set"),
        "share": ("changes", "set how large a job's share of each site is, for all nodes, at once"),
        "evict": ("changes", "give back what a dead node holds, without waiting for its leases"),
        "trust": ("changes", "let a server that is new, or has lost its data, grant at once"),
    },
    "frontier": {
        "status": ("crawls", "show the shared crawls of the server"),
        "add": ("crawls", "queue start requests for a crawl"),
        "retry": ("crawls", "put requests that were set aside or have failed back into the queues"),
        "end": ("crawls", "end a crawl for all its nodes"),
        "drop": ("crawls", "end a crawl for all its nodes at once, and forget it"),
    },
}
"""By command: each verb's module, and its help."""

LINE = 78  # characters, of the help


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
    Status.DECLINED: "the question was not answered with yes, or a report and a log do not fit",
    Status.WRONG: "a value or an option is not allowed, or a library is missing",
    Status.NO_SERVER: "the server cannot be reached, refuses, or has no address",
    Status.UNKNOWN: "nothing is known of that scope, node or crawl",
    Status.INTERRUPTED: "interrupted",
}
EXITS = f"Exit status: {'; '.join(f'{one:d} {MEANINGS[one]}' for one in Status)}."


class CommandError(Exception):
    """One clear line for the user, and the exit status."""

    def __init__(self, text: str, status: Status) -> None:
        super().__init__(text)
        self.status = status


def check_installed(library: str, hint: str = "") -> None:
    """Raise `CommandError`, with the command to install it, if the library is missing."""
    try:
        import_module(library)
    except ImportError:
        raise CommandError(
            f"this needs {library}: pip install 'scrapy-semaphore[commands]'{hint}", Status.WRONG
        ) from None


class VerbParser(argparse.ArgumentParser):
    """Reports a wrong option in one line, with a hint at a name like it, or at the help."""

    def error(self, message: str) -> NoReturn:
        hint = f"; see {self.prog} -h"
        if unknown := re.search(r"unrecognized arguments: ([^\s=]+)", message):
            hint = did_you_mean(unknown[1], self._option_string_actions) or hint
            message = f"unexpected {unknown[1]!r}"
        command = self.prog.rpartition(" ")[0]
        self.exit(Status.WRONG, f"{command}: {message}{hint}\n")


class ListFormatter(argparse.RawDescriptionHelpFormatter, ScrapyHelpFormatter):
    """Keeps the lines of the list of verbs."""


class VerbCommand(ScrapyCommand):
    """A Scrapy command with verbs, found by its entry point.

    A verb's module has `add_options(parser, verb)`, and `run(settings, options)`, which may return
    an exit status. Only when the verb runs is it imported, and what stands behind the verb parsed.
    """

    requires_project = False
    requires_crawler_process = False
    default_settings: ClassVar[dict[str, object]] = {"LOG_ENABLED": False}
    name: ClassVar[str]

    def syntax(self) -> str:
        return "<verb> [options]"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.formatter_class = ListFormatter
        parser.description = fill(self.long_desc(), LINE)
        parser.epilog = fill(f"scrapy {self.name} <verb> -h explains each. {EXITS}", LINE)
        verbs = "\n".join(f"  {verb:8} {text}" for verb, (_, text) in VERBS[self.name].items())
        parser.add_argument_group("Verbs", verbs)
        parser.add_argument("verb", nargs="?", help=argparse.SUPPRESS)
        parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        if opts.verb is None:
            raise UsageError
        known = VERBS[self.name]
        if args:
            self._fail(f"unexpected {args[0]!r}; see scrapy {self.name} -h", Status.WRONG)
        elif opts.verb not in known:
            hint = did_you_mean(opts.verb, known) or f"; there are {', '.join(known)}"
            self._fail(f"there is no verb {opts.verb!r}{hint}", Status.WRONG)
        else:
            self._run(opts)

    def _run(self, opts: argparse.Namespace) -> None:
        from scrapy.utils.log import configure_logging

        from semaphore_middleware.errors import SemaphoreError, SettingsError
        from semaphore_middleware.scrapy.settings import unknown_names

        module, text = VERBS[self.name][opts.verb]
        verb: Any = import_module(f"{__package__}.{module}")
        options = self._parse(verb, opts, f"{text[0].upper()}{text[1:]}.")
        configure_logging(self.settings)
        _accept_all_output()
        try:
            for mistake in unknown_names(
                one.partition("=")[0] for one in (*opts.set, *options.set)
            ):
                raise CommandError(mistake, Status.WRONG)
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
        except BrokenPipeError:  # `| head` has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def _parse(self, module: Any, opts: argparse.Namespace, description: str) -> argparse.Namespace:
        """The verb's options; those of Scrapy's that stand behind it are put into the settings."""
        name = f"scrapy {self.name} {opts.verb}"
        parser = VerbParser(
            prog=name,
            description=description,
            epilog=EXITS,
            formatter_class=ScrapyHelpFormatter,
            conflict_handler="resolve",
        )
        module.add_options(parser, opts.verb)
        named = [one for one in parser._actions if not one.option_strings]
        parser.usage = f"{name} [options] {' '.join(map(_usage, named))}"
        super().add_options(parser)
        options = parser.parse_intermixed_args(opts.words, argparse.Namespace(verb=opts.verb))
        self.process_options([], options)
        return options

    def _fail(self, text: str, status: Status) -> None:
        print(f"scrapy {self.name}: {text}", file=sys.stderr)
        self.exitcode = status


class SemaphoreCommand(VerbCommand):
    """`scrapy semaphore`."""

    name = "semaphore"

    def short_desc(self) -> str:
        return "See and change the limits that all crawling processes hold together"

    def long_desc(self) -> str:
        return (
            "Shows which sites' limits are full, who holds permits and who waits, and sets limits "
            "while crawls run. The server is that of the project's crawls (SEMAPHORE_REDIS_URL or "
            "REDIS_URL, in the settings, by -s, or in the environment), else the embedded one if "
            "it runs. Looking changes nothing there."
        )


class FrontierCommand(VerbCommand):
    """`scrapy frontier`."""

    name = "frontier"

    def short_desc(self) -> str:
        return "See the crawls that many nodes share, add to one, end one, put requests back"

    def long_desc(self) -> str:
        return (
            "Shows the crawls that many nodes share: how many nodes take part, how many sites have "
            "queued requests, and how many requests are queued, taken by nodes, and set aside "
            "because three nodes have failed with them. The server is that of the semaphore."
        )


def _accept_all_output() -> None:
    """Keep unprintable output from failing the command, above all after a change."""
    if sys.stdout is None:  # closed, as by `>&-`
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - until the process ends
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # some terminals lack characters


def _usage(action: argparse.Action) -> str:
    name = str(action.metavar)
    return {"*": f"[{name} ...]", "?": f"[{name}]"}.get(str(action.nargs), name)
