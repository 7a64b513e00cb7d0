"""The package from outside: what is public, and what importing it loads."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import semaphore_middleware
from semaphore_middleware import SemaphoreError

PUBLIC = {
    *("AcquireTimeoutError", "Admin", "Backoff", "ClosedError", "FairSemaphore", "HostDownError"),
    *("Inspection", "Limit", "Member", "Permit", "PermitLostError", "PermitSet", "Rule"),
    *("SemaphoreError", "ServerRefusedError", "ServerState", "ServerUnreachableError"),
    *("SettingsError", "Scheduler", "SemaphoreAddon", "SemaphoreMiddleware"),
    "SyncSemaphore",
}


def test_the_public_names_are_these_and_all_errors_are_of_one_kind() -> None:
    assert list(semaphore_middleware.__all__) == sorted(PUBLIC)
    for name in PUBLIC:
        thing = getattr(semaphore_middleware, name)
        assert issubclass(thing, SemaphoreError) == name.endswith("Error")
    assert semaphore_middleware.__version__ == version("scrapy-semaphore")


KEPT_OUT = {  # each is imported beside those before it
    "semaphore_middleware": ("scrapy", "twisted", "redis", "aiohttp", "rich"),
    # Scrapy imports the one for each of its commands, the other at the start of each crawl.
    "semaphore_middleware.console.cli.commands": ("redis", "aiohttp", "rich"),
    "semaphore_middleware.addon": ("redis.asyncio", "aiohttp", "rich", "tldextract"),
    "semaphore_middleware.scrapy.crawl": ("prometheus_client",),
}


def test_an_import_loads_no_more_than_it_needs() -> None:
    script = (
        f"import importlib, sys\nfor module, kept_out in {KEPT_OUT}.items():\n"
        "    importlib.import_module(module)\n"
        "    print(*(f'{module}: {name}' for name in kept_out if name in sys.modules), end='')"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == ""
