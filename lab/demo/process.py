"""A crawling node as a child process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class NodeResult:
    """A node's stats, and its error if it failed."""

    name: str
    stats: Mapping[str, Any]
    error: str | None = None  # why it failed, in one line

    @property
    def pages(self) -> int:
        """Items scraped by the node: one for each page."""
        return int(self.stats.get("item_scraped_count", 0))

    @property
    def scopes(self) -> list[str]:
        """The scopes of the node's permits; if there are many, the busiest."""
        prefix, suffix = "semaphore/scope/", "/acquired"
        return [
            stat.removeprefix(prefix).removesuffix(suffix)
            for stat in self.stats
            if stat.startswith(prefix) and stat.endswith(suffix)
        ]

    def stat(self, name: str) -> float:
        """The stat `semaphore/<name>`, 0 if it is not there."""
        return float(self.stats.get(f"semaphore/{name}", 0))

    def counts(self, group: str) -> Counter[str]:
        """The stats `<group>/<name>`, by name."""
        prefix = f"{group}/"
        return Counter(
            {
                stat.removeprefix(prefix): count
                for stat, count in self.stats.items()
                if stat.startswith(prefix)
            }
        )


class NodeProcess:
    """A process for `scrapy crawl site`. Its log, pages and stats go to `directory`."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self._stats = directory / f"{name}.json"
        self._feed = directory / f"{name}.jsonl"
        self._process: asyncio.subprocess.Process | None = None

    @property
    def running(self) -> bool:
        """True from its start to its end."""
        return self._process is not None and self._process.returncode is None

    async def start(
        self,
        arguments: Mapping[str, Any],
        settings: Mapping[str, Any],
        environment: Mapping[str, str],
    ) -> None:
        """Start it with spider arguments, Scrapy settings and environment variables."""
        ours = {
            "EXTENSIONS": json.dumps({"lab.demo.stats_file.StatsFile": 500}),
            "FEEDS": json.dumps({str(self._feed): {"format": "jsonlines"}}),
            "STATS_FILE": self._stats,
        }
        command = [sys.executable, "-m", "scrapy", "crawl", "site"]
        command += _options("-a", arguments)
        command += _options("-s", {**settings, **ours})
        with self.log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                env={**os.environ, **environment},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a terminal's Ctrl-C must reach it only once, through us
            )

    async def wait(self) -> None:
        """Wait for its end."""
        if self._process is not None:
            await self._process.wait()

    def interrupt(self) -> None:
        """Ask the process to stop in order."""
        self._send(signal.SIGINT)

    def kill(self) -> None:
        """End it at once."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None and self.running:
            self._process.send_signal(number)

    def result(self) -> NodeResult:
        """The node's result. Call it when the process has ended."""
        try:
            stats = json.loads(self._stats.read_text())
        except (OSError, ValueError):
            stats = {}
        return NodeResult(self.name, stats, self._error(stats))

    def _error(self, stats: Mapping[str, Any]) -> str | None:
        status = self._process.returncode if self._process else None
        reason = stats.get("finish_reason", "left no stats")
        if status == 0 and reason == "finished":
            return None
        line = last_error(self.log.read_text(errors="replace"))
        return f"exit status {status}, {reason}: {line}"


def _options(flag: str, values: Mapping[str, Any]) -> Sequence[str]:
    return [part for name, value in values.items() for part in (flag, f"{name}={value}")]


def last_error(log: str) -> str:
    """The last error in a log, in one line; its last line if there is no error."""
    lines = [line for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if "ERROR: " in line or "CRITICAL: " in line]
    return (errors or lines or ["its log is empty"])[-1].strip()
