"""The house is in order: who may know whom, what is public, and one place that grants."""

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
from semaphore_middleware.redis import store

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "semaphore_middleware"

FLOORS = [  # from the top; arrows only go down
    {"commands"},
    {"page"},
    {"addon"},
    {"middleware", "downloader", "queue"},
    {"gate"},
    {"engine", "watch"},
    {"long_waits", "metrics"},
    {
        "answers",
        "collector",
        "hands",
        "introduction",
        "robots",
        "scopes",
        "semaphore",
        "stats",
        "waiters",
    },
    {"node"},
    {"ledger", "steering"},
    {"store"},
    {"embedded", "messages", "permit", "rules", "settings"},
    {"connection", "endpoint", "keys", "outcome"},
    {"life", "limits"},
    {"errors", "lua"},
]
WITHOUT_SCRAPY = {
    *("semaphore", "node", "ledger", "steering", "permit", "store", "messages", "keys"),
    *("connection", "embedded", "errors", "life", "limits", "lua", "outcome", "rules"),
    *("endpoint", "long_waits"),
}
PUBLIC = {
    "AcquireTimeoutError",
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


def sources(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.suffix in (".py", ".lua")]


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            for alias in node.names:
                yield f"{node.module}.{alias.name}"


def rooms(path: Path) -> set[str]:
    """Of this package, what a file imports: the names of its modules."""
    return {name.split(".")[1] for name in imports(path) if name.startswith(f"{PACKAGE.name}.")}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


# Who knows whom ---------------------------------------------------------------------------------


def test_every_module_has_its_floor() -> None:
    floors = set().union(*FLOORS)
    assert {room_of(path) for path in sources(PACKAGE)} - {"__init__"} <= floors


def test_arrows_only_go_down() -> None:
    floor_of = {room: number for number, floor in enumerate(FLOORS) for room in floor}
    for path in PACKAGE.rglob("*.py"):
        room = room_of(path)
        if room == "__init__":
            continue
        up = {other for other in rooms(path) - {room} if floor_of[other] <= floor_of[room]}
        assert not up, f"{path.name} imports {up}"


def test_the_crawler_knows_the_root_and_the_errors_only() -> None:
    for path in (REPOSITORY / "crawler").rglob("*.py"):
        inside = {room for room in rooms(path) if room not in PUBLIC}
        assert inside <= {"errors"}, f"{path} imports {inside}"


def test_the_package_does_not_know_the_crawler() -> None:
    for path in PACKAGE.rglob("*.py"):
        assert not [name for name in imports(path) if name.split(".")[0] in ("crawler", "tests")]


def test_the_semaphore_knows_nothing_of_scrapy_or_twisted() -> None:
    for path in PACKAGE.rglob("*.py"):
        if room_of(path) in WITHOUT_SCRAPY:
            known = {name.split(".")[0] for name in imports(path)}
            assert not known & {"scrapy", "twisted"}, path


def test_only_commands_draw() -> None:
    """Crawls need no rich, nor do programs."""
    for path in PACKAGE.rglob("*.py"):
        known = {name.split(".")[0] for name in imports(path)}
        assert "rich" not in known or room_of(path) == "commands", path


def test_importing_the_package_loads_neither_scrapy_nor_twisted() -> None:
    script = (
        "import sys, semaphore_middleware\n"
        "print([name for name in ('scrapy', 'twisted') if name in sys.modules])"
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


def test_no_file_wants_a_second_room() -> None:
    for directory in ("semaphore_middleware", "crawler", "tests", "benchmarks"):
        for path in sources(REPOSITORY / directory):
            assert len(path.read_text("utf-8").splitlines()) <= 300, path


def test_every_script_begins_with_what_it_is_for_and_what_it_takes() -> None:
    for path in PACKAGE.rglob("*.lua"):
        head = re.match(r"(--[^\n]*\n){2,}", path.read_text("utf-8"))
        assert head, path
        own = "KEYS:" in head[0] and "ARGV:" in head[0]
        assert own or "Keys, arguments and reply: see the prelude." in head[0], path


def test_a_script_s_functions_know_keys_and_arguments_by_name() -> None:
    for name, body in shared_functions().items():
        if name not in ("", "for_each_scope"):  # these give them their names
            assert not re.search(r"KEYS\[|ARGV\[", body), name
    for verb in store.VERBS:
        assert not re.search(r"KEYS\[|ARGV\[", store._source(verb)), verb


# One rule ---------------------------------------------------------------------------------------


def functions(script: str) -> dict[str, str]:
    """A script's top-level functions, by name; what is left is the verb's own body, named ""."""
    found = dict(re.findall(r"^local function (\w+)(.*?^end$)", script, re.MULTILINE | re.DOTALL))
    found[""] = re.sub(r"^local function \w+.*?^end$", "", script, flags=re.MULTILINE | re.DOTALL)
    return found


def shared_functions() -> dict[str, str]:
    return functions("".join(store._source(part) for part in store.SHARED))


def test_promote_is_the_only_place_that_grants() -> None:
    shared = shared_functions()
    holding = "'ZADD', scope.held"
    assert [name for name, body in shared.items() if holding in body] == ["grant"]
    assert [
        name for name, body in shared.items() if re.search(r"\bgrant\(", body) and name != "grant"
    ] == ["promote"]
    # The verbs lengthen only what is held already, or was held when the server lost its data.
    lengthens = "lengthen(scope, 'held', "
    assert [name for name, body in shared.items() if lengthens in body] == []
    assert "ZADD" not in "".join(store._source(verb) for verb in store.VERBS)
    acquire, renew = store._source("acquire"), store._source("renew")
    assert store._source("release").count(lengthens) == 0
    assert acquire.count(lengthens) == acquire.count(f"{lengthens}to_hold)") == 1
    assert "if held[i] then\n      table.insert(to_hold, id)" in acquire
    assert renew.count(lengthens) == 2
    assert "> scope.now then\n      table.insert(alive, id)" in renew
    assert "scope.now < scope.from then\n      table.insert(claimed, id)" in renew


def test_every_verb_ends_in_promote() -> None:
    frame = shared_functions()["for_each_scope"]
    assert re.search(r"change\(scope\)\s+promote\(scope\)", frame)
    for verb in store.VERBS:
        assert "return for_each_scope(function(scope)" in store._source(verb)
