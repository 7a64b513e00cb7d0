"""`scrapy` in a process that is forked from one which has imported it: it starts in no time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping
from multiprocessing.context import ForkServerContext
from pathlib import Path

IMPORTED = [  # of these nothing may import a reactor, or read the environment
    "crawler.output",
    "crawler.spiders.site",
    "scrapy.cmdline",
    "scrapy.commands.crawl",
    "scrapy.commands.runspider",
    "scrapy.core.downloader.handlers.http11",
    "scrapy.core.engine",
    "scrapy.crawler",
    "scrapy.downloadermiddlewares.robotstxt",
    "scrapy.extensions.feedexport",
    "semaphore_middleware.addon",
    "semaphore_middleware.frontier",
    "semaphore_middleware.middleware",
    "tests.support.scrapy_process",
    "twisted.internet.asyncioreactor",
]
TIMEOUT_S = 60.0  # after that a test has failed

_context: ForkServerContext = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(IMPORTED)


class ScrapyProcess:
    """`scrapy <arguments>` in `directory`; what it prints and logs is in `log_file`."""

    def __init__(
        self,
        *arguments: str,
        directory: Path,
        log_file: Path,
        environment: Mapping[str, str],
    ) -> None:
        self.log_file = log_file
        log_file.touch()
        self._process = _context.Process(
            target=_run, args=(arguments, directory, log_file, dict(environment))
        )
        self._process.start()

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    @property
    def running(self) -> bool:
        return self._process.is_alive()

    def wait(self) -> int:
        """Wait for its end, and return its exit status."""
        self._process.join(TIMEOUT_S)
        assert self._process.exitcode is not None, "the process has not ended"
        return self._process.exitcode

    def send(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()
        self.wait()


def _run(
    arguments: tuple[str, ...], directory: Path, log_file: Path, environment: dict[str, str]
) -> None:
    """Be like a new process, whatever state the one that was forked is in."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    with log_file.open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sys.argv = ["scrapy", *arguments]
    sys.path.insert(0, str(directory))

    from scrapy.cmdline import execute

    execute()
