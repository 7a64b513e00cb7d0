"""Tries mutants, each in forks of a process that has imported nothing of ours."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from compileall import compile_dir
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from py_compile import PycInvalidationMode
from tempfile import mkdtemp

import pytest

from tests.mutants.generate import Mutant
from tests.support.paths import REPOSITORY

FILES = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
WARM = (
    *("aiohttp.web", "hypothesis.stateful", "pytest_timeout", "redis.asyncio", "tldextract"),
    *("scrapy.core.downloader.handlers.http11", "scrapy.core.engine", "scrapy.crawler"),
    *("scrapy.pipelines.files", "valkey", "xdist.plugin"),
)
TEST_ROOMS = {"redis": ("redis", "core"), "model": ("model", "redis", "scrapy")}
"""Which rooms of tests see a room of the package, nearest first; others: that of the same name."""
SIMULATED = ("core", "redis", "frontier")
SEEDS = 40
SIMULATION_TIMEOUT_S, TEST_TIMEOUT_S, TESTS_TIMEOUT_S = 300, 60, 1800
PYTEST = (
    *("-x", "-q", "-n", "0", "-m", "not slow and not compose", "-p", "no:randomly"),
    *("--hypothesis-seed=0", f"--timeout={TEST_TIMEOUT_S}", "--timeout-method=thread"),
)
HAS_SIMULATION = (REPOSITORY / "tests/simulation/__main__.py").exists()
CONVICTED = 2  # the exit status of what ended and saw a mistake
MARK = "MUTANT_IN"  # the variable that tells the processes of a copy from all others
SIMULATION, TESTS, TIME_OUT, SURVIVED = HOWS = ("simulation", "tests", "time-out", "survived")


@dataclass(frozen=True)
class Result:
    """What became of a mutant: one of `HOWS`, and by which test."""

    mutant: Mutant
    how: str
    by: str
    seconds: float


class Worker:
    """Tries one mutant after another in a copy of the tree, so that each process runs it that the
    tests start.
    """

    def __init__(self, folder: Path) -> None:
        self._copy = Path(mkdtemp(dir=folder))
        listed = subprocess.run(FILES, cwd=REPOSITORY, check=True, capture_output=True, text=True)
        for path in map(REPOSITORY.joinpath, filter(None, listed.stdout.split("\0"))):
            if path.exists():
                target = self._copy / path.relative_to(REPOSITORY)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)
        self._last_test = self._copy / "last_test"
        self._kills = Counter[tuple[str, str]]()  # by place and test
        self._passes: dict[str, bool] = {}  # by test: whether it passes without a mutant
        for module in WARM:
            import_module(module)
        # Bytecode that goes by the source's hash, not by its time: each mutant is seen.
        compile_dir(self._copy, quiet=1, invalidation_mode=PycInvalidationMode.CHECKED_HASH)

    def try_out(self, mutant: Mutant) -> Result:
        """Show the mutant to the simulation, then to the tests."""
        path, began = self._copy / "semaphore_middleware" / mutant.file, time.monotonic()
        source, room = path.read_text("utf-8"), mutant.file.partition("/")[0]
        rooms = [f"tests/{name}" for name in TEST_ROOMS.get(room, (room,))]
        while True:
            path.write_text(mutant.apply(source), "utf-8")
            how, by = self._judge(mutant, room, rooms)
            path.write_text(source, "utf-8")
            if how == SURVIVED or self._passes_without(by, rooms):
                break
        for place in (mutant.file, mutant.place):
            self._kills[place, by] += 1
        return Result(mutant, how, by, time.monotonic() - began)

    def _judge(self, mutant: Mutant, room: str, rooms: Sequence[str]) -> tuple[str, str]:
        """What convicts it: how, and by which test."""
        if room in SIMULATED and HAS_SIMULATION and self._passes.get(SIMULATION, True):
            status = self._fork(_simulate, SIMULATION_TIMEOUT_S)
            if status != 0:
                return (SIMULATION if status == CONVICTED else TIME_OUT), SIMULATION
        nearest = _NearestFirst(mutant, rooms, self._kills, self._passes, self._last_test)
        self._last_test.write_text("")
        status = self._fork(lambda: pytest.main([*PYTEST, *rooms], [nearest]), TESTS_TIMEOUT_S)
        if status == 0:
            return SURVIVED, ""
        return (TESTS if status == CONVICTED else TIME_OUT), self._last_test.read_text()

    def _passes_without(self, test: str, rooms: Sequence[str]) -> bool:
        """Whether the test passes without a mutant; else it is left out from now on."""
        if test not in self._passes:
            alone = [test] if test else ["--collect-only", *rooms]
            work = _simulate if test == SIMULATION else lambda: pytest.main([*PYTEST, *alone])
            self._passes[test] = self._fork(work, SIMULATION_TIMEOUT_S) == 0
            if not self._passes[test]:
                print(f"fails without any mutant: {test}", flush=True)
        if not (test or self._passes[test]):
            raise RuntimeError((self._copy / "output").read_text())
        return self._passes[test]

    def _fork(self, work: Callable[[], int], timeout: float) -> int | None:
        """Do it in a process of its own, in the copy, and end all that it leaves behind. Returns
        0 or `CONVICTED`; if it did not come to an end, something else.
        """
        if (pid := os.fork()) == 0:
            try:
                self._enter_copy()
                os._exit(CONVICTED if work() else 0)
            finally:
                os._exit(1)
        status, until = None, time.monotonic() + timeout
        try:
            while time.monotonic() < until and status is None:
                ended, code = os.waitpid(pid, os.WNOHANG)
                status = os.waitstatus_to_exitcode(code) if ended else None
                time.sleep(0.02)
        finally:
            self._end_leftovers(pid)
        return status

    def _enter_copy(self) -> None:
        os.setsid()
        os.chdir(self._copy)
        output = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(output, number)
        for name in [name for name in sys.modules if re.match(r"tests\b", name)]:
            del sys.modules[name]
        sys.path.insert(0, str(self._copy))
        sys.dont_write_bytecode = True
        os.environ |= {"PYTHONPATH": str(self._copy), "PYTHONDONTWRITEBYTECODE": "1"}
        os.environ[MARK] = str(self._copy)
        package = import_module("semaphore_middleware")
        assert Path(str(package.__file__)).is_relative_to(self._copy)

    def _end_leftovers(self, pid: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
        for environment in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if f"{MARK}={self._copy}".encode() in environment.read_bytes().split(b"\0"):
                    os.kill(int(environment.parent.name), signal.SIGKILL)


class _NearestFirst:
    """Plugin: the order of the tests. First those that have convicted the neighbours, then those
    whose names share words with the place.
    """

    def __init__(
        self,
        mutant: Mutant,
        rooms: Sequence[str],
        kills: Counter[tuple[str, str]],
        passes: Mapping[str, bool],
        last_test: Path,
    ) -> None:
        self._mutant, self._rooms, self._kills = mutant, rooms, kills
        self._passes, self._last_test = passes, last_test

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if self._passes.get(item.nodeid, True)]
        items.sort(key=lambda item: self._rank(item.nodeid))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._last_test.write_text(nodeid)

    def _rank(self, test: str) -> tuple[int, int, int]:
        file, _, name = test.partition("::")
        kills = 4 * self._kills[self._mutant.place, test] + self._kills[self._mutant.file, test]
        room = self._rooms.index(file.rpartition("/")[0])
        near = 4 * len(_words(file) & _words(self._mutant.place))
        return -kills, room, -near - len(_words(name) & _words(self._mutant.place))


def _words(text: str) -> set[str]:
    return {word.lower() for word in re.findall("[A-Z]?[a-z]{2,}", text)}


def _simulate() -> int:
    sys.argv[1:] = ["--seeds", str(SEEDS)]
    try:
        runpy.run_module("tests.simulation", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return bool(end.code)
    return 0
