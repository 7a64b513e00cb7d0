"""The verb `check` of `scrapy semaphore`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from semaphore_middleware.operators.verbs import Verb

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings


def _add_options(parser: argparse.ArgumentParser) -> None:
    text = "shows the limits that hold for it, and where each part comes from"
    parser.add_argument("url", metavar="URL", nargs="?", help=text)


def _run(settings: BaseSettings, options: argparse.Namespace) -> None:
    from semaphore_middleware.scrapy.check import run  # imports what a crawl does

    run(settings, options)


CHECK = Verb(
    "check that a crawl could start, and show the limits of a URL",
    _run,
    _add_options,
    "Check that a crawl with these settings could start: its settings, the server and the rights "
    "there. With a URL also show the limits that hold for it, and where each part comes from. It "
    "changes nothing, and waits 5 s for a server at most. Exit status 1: no crawl could start.",
)
