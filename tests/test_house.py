"""The package from outside: what is public, and what importing it loads."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import semaphore_middleware
from tests.support.paths import PACKAGE, REPOSITORY

PUBLIC = {
    "AcquireTimeoutError",
    "Admin",
    "Backoff",
    "ClosedError",
    "FairSemaphore",
    "Inspection",
    "Limit",
    "Member",
    "Permit",
    "PermitLostError",
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
        if path.parent.name == "shared" or path.name == "common.lua":
            assert re.match("-- (Shared by|Part of|Sent in front of)", head[0]), path
        else:
            assert all(f"{part}:" in head[0] for part in ("KEYS", "ARGV", "Reply")), path


# What is published ------------------------------------------------------------------------------


def test_the_wheel_and_the_sources_hold_the_whole_package(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=REPOSITORY, capture_output=True, check=True)
    package = {
        path.relative_to(REPOSITORY).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {Path(path).suffix for path in package} >= {".py", ".lua", ".html", ".js", ".css"}
    (wheel_file,), (sources_file,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    with zipfile.ZipFile(wheel_file) as wheel:
        in_wheel = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert in_wheel == package
    with tarfile.open(sources_file) as sources:
        in_sources = {name.partition("/")[2] for name in sources.getnames()}
    beside = {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "PKG-INFO", ".gitignore"}
    assert in_sources == package | beside


def test_the_lowest_constraints_are_the_floors_of_the_dependencies() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    users = ("embedded", "commands", "frontier", "crawler", "metrics")
    floors = {
        (canonicalize_name(needed.name), Version(specifier.version))
        for text in (*project["dependencies"], *(text for extra in users for text in extras[extra]))
        for needed in [Requirement(text)]
        for specifier in needed.specifier
        if specifier.operator == ">="
    }
    pins = (REPOSITORY / "constraints-lowest.txt").read_text("utf-8").splitlines()
    lowest = {
        (canonicalize_name(name), Version(version))
        for name, _, version in (pin.partition("==") for pin in pins if "==" in pin)
    }
    assert floors <= lowest, floors - lowest
