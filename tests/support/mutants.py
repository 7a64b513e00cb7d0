"""Mutants: the package's own code with one thing wrong, for as long as a test lasts.

A table of mutants says which test convicts each of them. `make mutants` counts (`mutant_table.py`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import cache, partial
from types import FunctionType, ModuleType
from typing import Any

import pytest
from scrapy.utils.defer import maybe_deferred_to_future

from semaphore_middleware.errors import SemaphoreError
from semaphore_middleware.redis import scripts

Mutant = tuple[str, str, str]
"""Which file, what it says, what it says instead."""
Test = Callable[..., object]

CONVICTIONS = (AssertionError, pytest.fail.Exception, KeyError, SemaphoreError)
"""What a test raises that convicts. KeyError: an account has no such permit."""
AREA, NAME, CONVICTED_BY = "area", "mutant", "convicted by"
"""Properties in the report of a mutant's test."""


def plant_in_lua(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch, module: ModuleType = scripts
) -> None:
    """Let this process send the mutant in place of the script; `module` has the scripts."""
    file, says, instead = mutant
    source: Callable[[str], str] = module.source_of
    if source(file).count(says) != 1:
        pytest.fail("the script has changed: so must its mutant")

    def mutated(name: str) -> str:
        return source(name).replace(says, instead) if name == file else source(name)

    monkeypatch.setattr(module, "source_of", mutated)
    monkeypatch.setattr(module, "script", cache(module.script.__wrapped__))


def plant_in_python(
    module: ModuleType, says: str, instead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Give the module's functions and methods the code of the mutant, and its constants the values.

    They stay the same objects, so that whoever has imported them runs the mutant, too.
    """
    source = inspect.getsource(module)
    if says not in source:
        pytest.fail("the module has changed: so must its mutant")
    mutated = ModuleType(module.__name__)
    exec(compile(source.replace(says, instead), str(module.__file__), "exec"), vars(mutated))
    for name, other in vars(mutated).items():
        own = getattr(module, name, None)
        if getattr(own, "__module__", None) == module.__name__:
            for function, other_function in _functions(own, other):
                for part in ("__code__", "__defaults__", "__kwdefaults__"):
                    monkeypatch.setattr(function, part, getattr(other_function, part))
        elif (
            not name.startswith("__")
            and isinstance(own, int | float | str | tuple)
            and own != other
        ):
            monkeypatch.setattr(module, name, other)


def _functions(own: Any, other: Any) -> Iterator[tuple[FunctionType, FunctionType]]:
    """Pairs of functions: of a function, a property, or all parts of a class."""
    if isinstance(own, type):
        for name, part in list(vars(own).items()):
            yield from _functions(part, vars(other).get(name))
    elif isinstance(own, property):
        yield from _functions(own.fget, other.fget)
    elif isinstance(own, classmethod | staticmethod):
        yield from _functions(own.__func__, other.__func__)
    elif isinstance(own, FunctionType) and isinstance(other, FunctionType):
        yield own, other
        if (wrapped := getattr(own, "__wrapped__", None)) is not None:
            yield from _functions(wrapped, other.__wrapped__)  # type: ignore[attr-defined]


def assert_convicted(area: str, name: str, test: Test, request: pytest.FixtureRequest) -> None:
    """Run a test, with the fixtures that it wants, and see it fail. Not for tests on the reactor's
    loop: see `assert_convicted_on_the_loop`.
    """
    values = _prepare(area, name, test, request)
    with pytest.raises(CONVICTIONS):
        test(**values)


async def assert_convicted_on_the_loop(
    area: str, name: str, test: Test, request: pytest.FixtureRequest
) -> None:
    """The same for a test on the reactor's loop, from another one there."""
    values = _prepare(area, name, test, request)
    with pytest.raises(CONVICTIONS):
        await maybe_deferred_to_future(test(**values))  # type: ignore[arg-type]


def _prepare(area: str, name: str, test: Test, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Report a mutant. Returns the fixtures that its test wants."""
    properties = request.node.user_properties
    inner = test.func if isinstance(test, partial) else test
    properties += [
        (AREA, area),
        (NAME, name),
        (CONVICTED_BY, inner.__module__.removeprefix("tests.")),
    ]
    wanted = [
        parameter.name
        for parameter in inspect.signature(test).parameters.values()
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
    ]
    return {fixture: request.getfixturevalue(fixture) for fixture in wanted}
