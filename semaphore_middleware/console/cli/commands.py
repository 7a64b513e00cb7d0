"""`scrapy semaphore` and `scrapy frontier`: their verbs, how they are called, how they end."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping
from enum import IntEnum
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from scrapy.commands import ScrapyCommand, ScrapyHelpFormatter
from scrapy.exceptions import UsageError

from semaphore_middleware.model.validation import did_you_mean

# Scrapy imports this module for each of its own commands, so the verbs' modules are imported later.

VERBS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "semaphore": {
        "status": ("status", "show who holds permits, who waits, and which limits hold"),
        "watch": ("watch", "show the same live, the sites where most requests wait first"),
        "serve": ("serve", "show live, in a browser, who holds permits and who waits"),
        "limit": ("changes", "set a site's limit, for all nodes, at once"),
        "pause": ("changes", "let no request start at a site, until 'resume'"),
        "resume": ("changes", "go on after 'pause', or at once with a site that refused a request"),
        "reset": ("changes", "take back what 'limit', 'pause' and 'resume' have set"),
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

EXIT_STATUSES = (
    "Exit status: 0 done; 1 asked whether to go on, and not told yes; 2 a value or an option is "
    "not allowed; 3 the server cannot be reached, refuses, or has no address; 4 nothing is known "
    "of that scope, node or crawl; 130 interrupted."
)


class Status(IntEnum):
    """A command's exit status."""

    DONE = 0
    DECLINED = 1
    """Asked whether to go on, the user did not say yes; nothing was changed."""
    WRONG = 2
    """A value or an option is not allowed, or a library is missing."""
    NO_SERVER = 3
    """The server cannot be reached, refuses, or has no address."""
    UNKNOWN = 4
    """The server knows nothing of this scope, node or crawl."""


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
    """Reports a wrong option in one line, with a hint at the help."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} -h\n")


class VerbCommand(ScrapyCommand):
    """A Scrapy command with verbs, found by its entry point.

    A verb's module has `add_options(parser, verb)`, and `run(settings, options)` to return the exit
    status.
    """

    requires_project = False
    requires_crawler_process = False
    default_settings: ClassVar[dict[str, object]] = {"LOG_ENABLED": False}
    name: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self._options: dict[str, list[str]] = {}
        """Of each verb."""

    def syntax(self) -> str:
        return "<verb> [options]"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.epilog = f"scrapy {self.name} <verb> -h tells more of each. {EXIT_STATUSES}"
        parser.error = partial(self._wrong, parser)  # type: ignore[method-assign] # Scrapy's own
        verbs = parser.add_subparsers(
            title="Verbs",
            dest="verb",
            metavar="<verb>",
            prog=f"scrapy {self.name}",
            parser_class=VerbParser,
        )
        for verb, (module, text) in VERBS[self.name].items():
            of_verb = verbs.add_parser(
                verb,
                help=text,
                description=f"{text[0].upper()}{text[1:]}.",
                epilog=EXIT_STATUSES,
                formatter_class=ScrapyHelpFormatter,
                conflict_handler="resolve",
            )
            import_module(_path(module)).add_options(of_verb, verb)
            of_verb.usage = f"scrapy {self.name} {verb} [options]{_positionals(of_verb)}"
            self._add_global_options(of_verb)
            self._options[verb] = [name for a in of_verb._actions for name in a.option_strings]

    def _wrong(self, parser: argparse.ArgumentParser, message: str) -> NoReturn:
        """End with an error of the parser: a verb that there is not, as a rule."""
        if verb := re.search(r"invalid choice: '(.*?)'", message):
            known = VERBS[self.name]
            hint = did_you_mean(verb[1], known) or f"; there are {', '.join(known)}"
            message = f"there is no verb {verb[1]!r}{hint}"
        parser.exit(Status.WRONG, f"scrapy {self.name}: {message}\n")

    def _add_global_options(self, parser: argparse.ArgumentParser) -> None:
        """Accept Scrapy's own options before the verb and after it."""
        before = set(parser._actions)
        super().add_options(parser)
        for action in set(parser._actions) - before:
            action.default = argparse.SUPPRESS  # else it would overrule options before the verb
            if action.dest == "set":
                action.dest = "set_after"

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        opts.set = [*opts.set, *getattr(opts, "set_after", [])]
        super().process_options(args, opts)

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        if opts.verb is None:
            raise UsageError
        # argparse leaves over the names behind an option.
        names = getattr(opts, "names", None)
        if unknown := [a for a in args if names is None or a.startswith("-")]:
            hint = did_you_mean(unknown[0].partition("=")[0], self._options[opts.verb])
            hint = hint or f"; see scrapy {self.name} {opts.verb} -h"
            self._fail(f"unexpected {unknown[0]!r}{hint}", Status.WRONG)
            return
        if names is not None:
            opts.names = [*names, *args]
        self._run(opts)

    def _run(self, opts: argparse.Namespace) -> None:
        from scrapy.utils.log import configure_logging

        from semaphore_middleware.errors import SemaphoreError, SettingsError
        from semaphore_middleware.scrapy.settings import unknown_names

        configure_logging(self.settings)
        _accept_all_output()
        verb: Any = import_module(_path(VERBS[self.name][opts.verb][0]))
        try:
            for mistake in unknown_names(setting.partition("=")[0] for setting in opts.set):
                raise CommandError(mistake, Status.WRONG)
            self.exitcode = int(verb.run(self.settings, opts))
            sys.stdout.flush()
        except CommandError as error:
            self._fail(str(error), error.status)
        except SettingsError as error:
            self._fail(str(error), Status.WRONG)
        except SemaphoreError as error:
            self._fail(str(error), Status.NO_SERVER)
        except KeyboardInterrupt:
            print(file=sys.stderr)  # so that the shell's prompt does not stand behind ^C
            self.exitcode = 130
        except BrokenPipeError:  # `| head` has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def _fail(self, text: str, status: int) -> None:
        print(f"scrapy {self.name}: {text}", file=sys.stderr)
        self.exitcode = int(status)


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


def _path(module: str) -> str:
    return f"{__package__}.{module}"


def _positionals(parser: argparse.ArgumentParser) -> str:
    names = [
        f"[{action.metavar} ...]" if action.nargs == "*" else str(action.metavar)
        for action in parser._actions
        if not action.option_strings
    ]
    return "".join(f" {name}" for name in names)
