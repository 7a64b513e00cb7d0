"""Nodes of a chaos run: `scrapy crawl pages` as a process, and the signals that it gets."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.chaos.history import Event, History, What
from tests.chaos.proxy import Proxy
from tests.support.paths import REPOSITORY


class Node:
    """One node of a run: a process that crawls, with its proxy, its log and its history."""

    def __init__(self, name: str, directory: Path, proxy: Proxy) -> None:
        self.name = name
        self.proxy = proxy
        self.history = directory / f"{name}.jsonl"
        self.ended = asyncio.Event()
        self.status: int | None = None
        self.was_told_to_end = False
        self._log = directory / f"{name}.log"
        self._process: Process

    async def start(
        self,
        urls: Sequence[str],
        settings: Mapping[str, Any],
        environment: Mapping[str, str],
        prefix: Sequence[str],
    ) -> None:
        ours = {
            "CHAOS_NODE": self.name,
            "SEMAPHORE_NODE": self.name,
            "CHAOS_HISTORY": self.history,
        }
        options = [f"-s{name}={value}" for name, value in {**ours, **settings}.items()]
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(*prefix, sys.executable, "-m", "scrapy", "crawl", "pages"),
                *(f"-aurls={' '.join(urls)}", *options),
                cwd=REPOSITORY,
                env={
                    **os.environ,
                    "PYTHONPATH": str(REPOSITORY),
                    "SCRAPY_SETTINGS_MODULE": "tests.chaos.settings",
                    **environment,
                },
                stdin=DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the run, which ends its nodes
            )
        self._waiting = asyncio.create_task(self._wait())

    async def _wait(self) -> None:
        self.status = await self._process.wait()
        self.ended.set()

    @property
    def runs(self) -> bool:
        return not self.ended.is_set()

    @property
    def pid(self) -> int:
        return self._process.pid

    def noted(self, what: What) -> list[Event]:
        """What it has written down so far, of this kind."""
        history = History()
        history.read(self.history)
        return [event for event in history if event.what == what]

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def errors(self) -> list[str]:
        """What a user would be alarmed by, but for what Scrapy logs when it was interrupted twice:
        it takes the spider away from callbacks that still run.
        """
        log = self.log.partition("forcing unclean shutdown")[0]
        return re.findall(r"^.*\] (?:ERROR|CRITICAL): .*$", log, re.MULTILINE)

    def send(self, number: signal.Signals) -> None:
        if self.runs:
            self._process.send_signal(number)

    async def end(self) -> None:
        """At once, whatever it is doing: the run is over."""
        self.send(signal.SIGKILL)
        await self._waiting
