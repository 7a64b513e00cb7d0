"""The package from outside: what is public, and what importing it loads."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import semaphore_middleware
from tests.support.paths import PACKAGE

PUBLIC = {
    "AcquireTimeoutError",
    "Admin",
    "Backoff",
    "ClosedError",
    "FairSemaphore",
    "HostDownError",
    "Inspection",
    "Limit",
    "Member",
    "Permit",
    "PermitLostError",
    "PermitSet",
    "Rule",
    "SemaphoreError",
    "ServerRefusedError",
    "ServerUnreachableError",
    "SettingsError",
}


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            for alias in node.names:
                yield f"{node.module}.{alias.name}"


@pytest.mark.parametrize(
    ("imported", "kept_out"),
    [
        ("semaphore_middleware", ("scrapy", "twisted", "redis", "aiohttp", "rich")),
        # Scrapy imports the one for each of its commands, the other at the start of each crawl.
        ("semaphore_middleware.console.cli.semaphore", ("redis", "aiohttp", "rich")),
        ("semaphore_middleware.addon", ("redis.asyncio", "aiohttp", "rich", "tldextract")),
    ],
)
def test_an_import_loads_no_more_than_it_needs(imported: str, kept_out: tuple[str, ...]) -> None:
    script = (
        f"import sys, {imported}\nprint([name for name in {kept_out!r} if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


# What is public ---------------------------------------------------------------------------------


def test_the_public_names_are_these() -> None:
    assert set(semaphore_middleware.__all__) == PUBLIC
    assert list(semaphore_middleware.__all__) == sorted(PUBLIC)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_what_is_public_is_typed_and_explained(name: str) -> None:
    thing = getattr(semaphore_middleware, name)
    assert inspect.getdoc(thing)
    for method_name, method in inspect.getmembers(thing, inspect.isfunction):
        if method_name.startswith("_") or method.__module__.split(".")[0] != PACKAGE.name:
            continue
        signature = inspect.signature(method)
        assert signature.return_annotation is not inspect.Signature.empty, f"{name}.{method_name}"
        untyped = [
            parameter
            for parameter in list(signature.parameters.values())[1:]
            if parameter.annotation is inspect.Parameter.empty
        ]
        assert not untyped, f"{name}.{method_name}"
    assert (PACKAGE / "py.typed").exists()


# Files ------------------------------------------------------------------------------------------


def test_every_script_begins_with_what_it_is_for_and_what_it_takes() -> None:
    for path in PACKAGE.rglob("*.lua"):
        head = re.match(r"(--[^\n]*\n)+", path.read_text("utf-8"))
        assert head, path
        if path.parent.name == "shared":
            assert re.match("-- (Shared by|Part of|Sent in front of)", head[0]), path
        else:
            assert all(f"{part}:" in head[0] for part in ("KEYS", "ARGV", "Reply")), path
