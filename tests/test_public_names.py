"""The package from outside: what is public, and what importing it loads."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.metadata import entry_points, version

import semaphore_middleware
from semaphore_middleware import SemaphoreError
from tests.support.paths import REPOSITORY, SOURCES
from tests.support.public_api import FILE, public_api

PUBLIC = {
    *("AcquireTimeoutError", "Admin", "Backoff", "ClosedError", "FairSemaphore", "HostDownError"),
    *("Inspection", "Limit", "LimitDict", "Member", "Permit", "PermitLostError", "PermitSet"),
    *("Rule", "SemaphoreError", "ServerRefusedError", "ServerState", "ServerUnreachableError"),
    *("SettingsError", "SemaphoreAddon", "SemaphoreMiddleware"),
    "SyncSemaphore",
    "Scheduler",  # feature: shared_crawl
    "SiteBlockedError",  # feature: blocked
}


def test_the_public_names_are_these_and_all_errors_are_of_one_kind() -> None:
    assert list(semaphore_middleware.__all__) == sorted(PUBLIC)
    for name in PUBLIC:
        thing = getattr(semaphore_middleware, name)
        assert issubclass(thing, SemaphoreError) == name.endswith("Error")
    assert semaphore_middleware.__version__ == version("scrapy-semaphore")


def test_the_public_api_is_that_of_the_report() -> None:
    reported = FILE.read_text("utf-8").splitlines()
    again = "if the change is meant, `python -m tests.support.public_api` writes the report anew"
    assert public_api().splitlines() == reported, again


HEAVY = ("redis", "aiohttp", "rich")
KEPT_OUT = {  # each is imported beside those before it
    "semaphore_middleware": ("scrapy", "twisted", *HEAVY),
    # Scrapy imports the one for each of its commands, the other at the start of each crawl.
    "semaphore_middleware.operators.verbs": HEAVY,
    "semaphore_middleware.shared_crawl.frontier": HEAVY,  # feature: shared_crawl
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


def test_scrapys_own_commands_load_no_more_than_they_need() -> None:
    verbs = {
        point.module
        for group in ("semaphore_middleware.verbs", "semaphore_middleware.frontier_verbs")
        for point in entry_points(group=group)
    }
    assert len(verbs) > 1
    script = (
        "import atexit, sys\nfrom scrapy.cmdline import execute\n"
        f"atexit.register(lambda: print("
        f"sorted(sys.modules.keys() & {sorted(verbs | {'redis', 'rich', 'aiohttp'})})))\n"
        "execute(['scrapy', 'version'])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[1:] == ["[]"]


MOST_ATTRIBUTES = 20


def attributes(cls: ast.ClassDef) -> set[str]:
    """The names that a class assigns to `self`."""
    return {
        node.attr
        for node in ast.walk(cls)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def test_no_class_has_more_attributes_than_a_reader_can_keep_in_mind() -> None:
    counts = {
        f"{path.relative_to(REPOSITORY)}: {cls.name}": len(attributes(cls))
        for path in SOURCES
        for cls in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(cls, ast.ClassDef)
    }
    assert len(counts) > 100
    assert not [name for name, count in counts.items() if count > MOST_ATTRIBUTES]
