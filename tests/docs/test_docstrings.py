"""Docstrings, the reference for programs without Scrapy, name units, errors and sources."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import semaphore_middleware
from semaphore_middleware import Admin, FairSemaphore, SemaphoreError
from semaphore_middleware.addon import SemaphoreAddon
from semaphore_middleware.middleware import SemaphoreMiddleware

PUBLIC: dict[str, Any] = {
    name: getattr(semaphore_middleware, name) for name in semaphore_middleware.__all__
}
FOR_SETTINGS = {thing.__name__: thing for thing in (SemaphoreAddon, SemaphoreMiddleware)}
TIMES = {"timeout", "latency", "retry_after", "lease", "recovery_wait", "turn", "delay", "backoff"}
SOURCES = {
    "FairSemaphore": (
        *("Bertsekas", "Gallager", "1987"),
        *("Dice", "Marathe", "Shavit", "2012"),
        *("Gray", "Cheriton", "1989"),
    ),
    "Limit": ("Chiu", "Jain", "1989", "Brakmo", "Peterson", "1995", "ITU-T", "I.371", "2004"),
    "Permit": ("Gray", "Cheriton", "1989"),
    "Member": ("Gray", "Cheriton", "1989"),
}
# Text in a method's body -> the error that its docstring must name.
ERRORS = {
    "_opened(": "ClosedError",
    "_do(": "ServerUnreachableError",
    "_change(": "ServerUnreachableError",
    "RuleChange.": "SettingsError",
    "parse_name(": "SettingsError",
    "AcquireTimeoutError(": "AcquireTimeoutError",
    "embedded.start_or_join": "ServerRefusedError",
}


def tree_of(thing: Any) -> ast.ClassDef:
    file = inspect.getsourcefile(thing)
    assert file is not None
    tree = ast.parse(Path(file).read_text("utf-8"))
    (found,) = [
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == thing.__name__
    ]
    return found


def methods() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Public methods and properties of all public classes."""
    for name, thing in (PUBLIC | FOR_SETTINGS).items():
        for node in tree_of(thing).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[0] != "_":
                yield f"{name}.{node.name}", node


def said_of_fields(tree: ast.ClassDef) -> dict[str, str]:
    """The docstring below each field of a dataclass."""
    said = {}
    for field, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            text = after.value if isinstance(after, ast.Expr) else None
            is_text = isinstance(text, ast.Constant) and isinstance(text.value, str)
            said[field.target.id] = str(text.value) if is_text else ""  # type: ignore[union-attr]
    return said


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_public_names_have_docstrings(name: str) -> None:
    assert len(PUBLIC[name].__doc__ or "") > 40
    assert not (PUBLIC[name].__doc__ or "").startswith(f"{name}("), "a dataclass's own"


@pytest.mark.parametrize(("name", "method"), [*methods()], ids=[name for name, _ in methods()])
def test_public_methods_have_docstrings_with_units(
    name: str, method: ast.FunctionDef | ast.AsyncFunctionDef
) -> None:
    text = ast.get_docstring(method)
    assert text, name
    arguments = {argument.arg for argument in (*method.args.args, *method.args.kwonlyargs)}
    if arguments & TIMES:
        assert re.search(r"\b(milli)?seconds\b|what `acquire` raises", text), f"{name}: which unit?"


@pytest.mark.parametrize(
    ("name", "thing"),
    [(name, thing) for name, thing in PUBLIC.items() if dataclasses.is_dataclass(thing)],
)
def test_fields_have_docstrings_with_units(name: str, thing: Any) -> None:
    said = said_of_fields(tree_of(thing))
    assert set(said) == {field.name for field in dataclasses.fields(thing)}
    assert [field for field, text in said.items() if not text] == [], name
    of_all = "in seconds" in thing.__doc__
    for field in dataclasses.fields(thing):
        if "float" in str(field.type):
            unit = re.search(r"\b[Ss]econds\b|\b[Ss]hare of\b", said[field.name])
            assert unit or of_all, f"{name}.{field.name}: which unit?"


@pytest.mark.parametrize(
    ("name", "method"),
    [pair for pair in methods() if pair[0].startswith(("FairSemaphore.", "Admin."))],
)
def test_methods_name_their_errors(
    name: str, method: ast.FunctionDef | ast.AsyncFunctionDef
) -> None:
    text = ast.get_docstring(method) or ""
    body = ast.unparse(method.body[1:])  # type: ignore[arg-type]  # a list will do
    for what, error in ERRORS.items():
        if what in body:
            assert error in text or "what `acquire` raises" in text, f"{name}: {error}"
    assert "SettingsError" in (FairSemaphore.__doc__ or "")
    for error in ("SettingsError", "ServerUnreachableError", "ServerRefusedError", "ClosedError"):
        assert error in (Admin.__doc__ or "")


def test_errors_are_in_one_tree() -> None:
    errors = {name for name in PUBLIC if name.endswith("Error")}
    assert all(issubclass(PUBLIC[name], SemaphoreError) for name in errors)
    for name in errors - {"SemaphoreError"}:
        bases = {base.__name__ for base in PUBLIC[name].__bases__} - {"SemaphoreError"}
        assert all(base in (PUBLIC[name].__doc__ or "") for base in bases), name


@pytest.mark.parametrize("name", SOURCES)
def test_sources_in_the_literature_are_named(name: str) -> None:
    text = PUBLIC[name].__doc__ or ""
    assert [word for word in SOURCES[name] if word not in text] == []
