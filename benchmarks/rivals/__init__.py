"""The semaphores on PyPI, and npm's, each as its own documentation uses it."""

from __future__ import annotations

import json
import shutil
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from benchmarks.harness.contender import Contender
from benchmarks.harness.contest import Join, by_command

MODULES = {
    "steindamm": "steindamm",
    "py-redis-semaphore": "redis_semaphore",
    "redis-rate-limiters": "limiters",
}
"""Distributions to what they are imported as; the extra `bench` installs them."""


def missing() -> list[str]:
    return [name for name, module in MODULES.items() if find_spec(module) is None]


def check_installed() -> None:
    if names := missing():
        raise SystemExit(f"{', '.join(names)} not installed; `make bench` does that")


def versions() -> str:
    return ", ".join(f"{name} {metadata.version(name)}" for name in MODULES)


def contenders() -> list[Contender]:
    from benchmarks.rivals.owners import Owners
    from benchmarks.rivals.tokens import RateLimiters, Steindamm

    steindamm, owners, rate_limiters = MODULES
    return [
        Contender.of(steindamm, Steindamm),
        Contender.of(owners, Owners),
        Contender.of(rate_limiters, RateLimiters),
    ]


# npm's ------------------------------------------------------------------------------------------

NPM = Path(__file__).parent / "npm"
NPM_NAME = "redis-semaphore (npm)"


def npm() -> Join | None:
    """npm's redis-semaphore, which takes part in contests only; None: it is not installed."""
    node = shutil.which("node")
    if node is None or not (NPM / "node_modules" / "redis-semaphore").is_dir():
        return None
    return by_command(node, str(NPM / "contest.mjs"))


def npm_versions() -> str:
    """What runs, or why nothing does."""
    wanted = json.loads((NPM / "package.json").read_text("utf-8"))["dependencies"]
    versions = ", ".join(f"{name} {version}" for name, version in wanted.items())
    if npm() is None:
        return f"{NPM_NAME} is left out: no node, or no npm install --prefix benchmarks/rivals/npm"
    return f"{NPM_NAME}: {versions}; it asks again every 10 ms"
