"""Tries mutants, each in forks of a process that has imported nothing of ours."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from compileall import compile_dir
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from py_compile import PycInvalidationMode
from tempfile import mkdtemp
from typing import NamedTuple

import pytest
from hypothesis import Phase, settings

from lab.copies import copy_tree
from lab.mutants.generate import Mutant

WARM = (
    *("aiohttp.web", "hypothesis.stateful", "lupa.lua51", "redis.asyncio", "tldextract", "valkey"),
    *("scrapy.core.downloader.handlers.http11", "scrapy.core.engine", "scrapy.crawler"),
    *("pytest_timeout", "scrapy.pipelines.files", "xdist.plugin"),
)
WORLDS = {
    "core": "semaphore",
    "link": "semaphore",
    "model": "semaphore",
    "operators": "semaphore",
    "shared_crawl": "shared_crawl",
}
"""Which simulation runs a package."""
TEST_PACKAGES = {
    "core": ("core", "report"),
    "link": ("link", "core"),
    "model": ("model", "core", "scrapy"),
}
"""Which packages of tests see a package, nearest first; others: that of the same name."""
FIRST_SEEDS, MORE_SEEDS = range(1, 41), range(41, 301)  # the latter for what no test has seen
SIMULATION_TIMEOUT_S, TEST_TIMEOUT_S, TESTS_TIMEOUT_S = 300, 60, 1800
PYTEST = (
    *("-x", "-q", "-n", "0", "-m", "not slow and not compose", "-p", "no:randomly"),
    *("--hypothesis-seed=0", "--hypothesis-profile=mutants"),
    "-Wignore:Module already imported:pytest.PytestAssertRewriteWarning",  # by `WARM`
    *(f"--timeout={TEST_TIMEOUT_S}", "--timeout-method=thread"),
)
CONVICTED = 2  # the exit status of what came to an end and saw a mistake
MARK = "MUTANT_IN"  # the variable that tells the processes of a copy from all others
SIMULATION, TESTS, TIME_OUT, SURVIVED = HOWS = ("simulation", "tests", "time-out", "survived")


class Result(NamedTuple):
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
        copy_tree(self._copy)
        # Bytecode that goes by the source's hash, not by its time: each mutant is seen.
        compile_dir(self._copy, quiet=1, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
        for module in WARM:
            import_module(module)
        phases = [Phase.explicit, Phase.generate]  # nobody reads what is convicted: not shrunk
        settings.register_profile("mutants", settings.get_profile("ci"), phases=phases)
        self._last_test = self._copy / "last_test"
        self._kills = Counter[tuple[str, str]]()  # by place and test
        self._passes: dict[str, bool] = {}  # by test: whether it passes without a mutant

    def try_out(self, mutant: Mutant) -> Result:
        """Show the mutant to the simulation, then to the tests."""
        path, began = self._copy / mutant.file, time.monotonic()
        source, package = path.read_text("utf-8"), package_of(mutant.file)
        packages = [f"tests/{name}" for name in TEST_PACKAGES.get(package, (package,))]
        while True:
            path.write_text(mutant.apply(source), "utf-8")
            how, by = (
                self._simulate(package, FIRST_SEEDS)
                or self._test(mutant, packages)
                or self._simulate(package, MORE_SEEDS)
                or (SURVIVED, "")
            )
            path.write_text(source, "utf-8")
            if how == SURVIVED or self._passes_without(by):
                break
        self._kills.update([(mutant.file, by), (mutant.place, by)])
        return Result(mutant, how, by, time.monotonic() - began)

    def _simulate(self, package: str, seeds: range) -> tuple[str, str] | None:
        if package not in WORLDS or not self._passes.get(WORLDS[package], True):
            return None
        status = self._fork(partial(_simulate, WORLDS[package], seeds), SIMULATION_TIMEOUT_S)
        return _verdict(status, SIMULATION, WORLDS[package])

    def _test(self, mutant: Mutant, packages: list[str]) -> tuple[str, str] | None:
        """The tests that have convicted its neighbours come first, then those whose names share
        words with its place.
        """

        def rank(item: pytest.Item) -> tuple[int, int, int]:
            file, _, name = item.nodeid.partition("::")
            kills = 4 * self._kills[mutant.place, item.nodeid]
            near = 4 * len(_words(file) & words) + len(_words(name) & words)
            package = next(
                i for i, package in enumerate(packages) if file.startswith(f"{package}/")
            )
            return -kills - self._kills[mutant.file, item.nodeid], package, -near

        class Plugin:
            @staticmethod
            def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
                items[:] = [item for item in items if self._passes.get(item.nodeid, True)]
                items.sort(key=rank)

            @staticmethod
            def pytest_runtest_logstart(nodeid: str) -> None:
                self._last_test.write_text(nodeid)

        words = _words(mutant.place)
        self._last_test.write_text("")
        status = self._fork(partial(pytest.main, [*PYTEST, *packages], [Plugin]), TESTS_TIMEOUT_S)
        return _verdict(status, TESTS, self._last_test.read_text())

    def _passes_without(self, test: str) -> bool:
        """Check that the test passes without a mutant; otherwise leave it out from now on."""
        if test not in self._passes:
            alone = [test] if test else ["--collect-only", "tests"]
            is_world = test in WORLDS.values()
            work = (
                partial(_simulate, test, FIRST_SEEDS)
                if is_world
                else partial(pytest.main, [*PYTEST, *alone])
            )
            self._passes[test] = self._fork(work, SIMULATION_TIMEOUT_S) == 0
            if not self._passes[test]:
                output = (self._copy / "output").read_text()
                print(f"fails without any mutant: {test}\n{output}", flush=True)
        assert self._passes[test] or test, "the tests cannot be collected"
        return self._passes[test]

    def _fork(self, work: Callable[[], object], timeout: float) -> int | None:
        """Do it in a process of its own, in the copy, and end all that it leaves behind. Returns
        0 or `CONVICTED`; if it did not come to an end, something else.
        """
        if (pid := os.fork()) == 0:
            try:
                self._enter_copy()
                os._exit(CONVICTED if work() else 0)
            except BaseException:
                traceback.print_exc()
                os._exit(CONVICTED)
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
        os.dup2(output, 1)
        os.dup2(output, 2)
        ours = re.compile(r"(tests|lab|semaphore_middleware)\b")
        for name in [name for name in sys.modules if ours.match(name)]:
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


def package_of(file: str) -> str:
    """The folder of the package that a file is in."""
    parts = Path(file).parts
    return parts[1]


def _simulate(world: str, seeds: range) -> bool:
    """Whether a seed breaks a promise."""
    from lab.simulation.__main__ import WORLDS  # the copy's

    plan_for, run = WORLDS[world]
    return any(run(plan_for(seed)).violations for seed in seeds)


def _verdict(status: int | None, how: str, by: str) -> tuple[str, str] | None:
    if status == 0:
        return None
    return how if status == CONVICTED else TIME_OUT, by


def _words(text: str) -> set[str]:
    return {word.lower() for word in re.findall("[A-Z]?[a-z]{2,}", text)}
