"""The semaphores on PyPI, each as its own documentation uses it."""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec

from benchmarks.harness.contest import Contender

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
        raise SystemExit(f"{', '.join(names)} not installed: pip install -e '.[bench]'")


def versions() -> str:
    return ", ".join(f"{name} {metadata.version(name)}" for name in MODULES)


def contenders() -> list[Contender]:
    from benchmarks.rivals.owners import Owners
    from benchmarks.rivals.tokens import RateLimiters, Steindamm

    steindamm, owners, rate_limiters = MODULES
    return [
        Contender(steindamm, Steindamm),
        Contender(owners, Owners),
        Contender(rate_limiters, RateLimiters),
    ]
