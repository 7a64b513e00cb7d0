"""The public API as text. `python -m tests.support.public_api` writes tests/public_api.txt anew."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from importlib import import_module
from typing import Any

from tests.docs.pages import page
from tests.support.paths import REPOSITORY

FILE = REPOSITORY / "tests" / "public_api.txt"


class _Type:
    """An annotation, to be shown as it stands in the source."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def public_api() -> str:
    """A line for each class, function and member in docs/api.rst, with its parameters and types.

    What Scrapy and Python add to them is left out, so the text is the same with all their versions.
    """
    things: dict[str, Any] = {}
    module = ""
    text = page("docs/api.rst")
    hidden = re.findall(r":exclude-members: (.*)", text)[0].split(", ")
    rows = re.findall(r"^\.\. (currentmodule|auto\w+):: (\S+)$", text, re.MULTILINE)
    for kind, name in rows:
        if kind == "currentmodule":
            module = name
        elif kind == "automodule":
            classes = filter(inspect.isclass, vars(import_module(name)).values())
            own = {cls.__name__: cls for cls in classes if cls.__module__ == name}
            things |= {f"{name}.{cls}": own[cls] for cls in own if cls not in hidden}
        else:
            place, _, last = (name if "." in name else f"{module}.{name}").rpartition(".")
            things[f"{place}.{last}"] = getattr(import_module(place), last)
    return "".join(f"{line}\n" for name in sorted(things) for line in _lines_of(name, things[name]))


def _lines_of(name: str, thing: Any) -> Iterator[str]:
    if not inspect.isclass(thing):
        yield f"{name}{_signature(thing)}"
        return
    own = [
        cls for cls in reversed(thing.__mro__) if cls.__module__.startswith("semaphore_middleware")
    ]
    is_made = is_dataclass(thing) or any("__init__" in vars(cls) for cls in own)
    signature = _signature(thing) if is_made and not hasattr(thing, "_is_protocol") else ""
    yield f"{name}{signature}: {', '.join(base.__name__ for base in thing.__bases__)}"
    members: dict[str, str] = {}
    for cls in own:
        types = inspect.get_annotations(cls)
        members |= {member: f": {_shown(of)}" for member, of in types.items()}
        members |= {member: text for member, it in vars(cls).items() if (text := _member(it))}
    yield from (f"    {member}{members[member]}" for member in sorted(members) if member[0] != "_")


def _member(value: Any) -> str:
    """What follows the name of a method or a property; empty for anything else."""
    if isinstance(value, property):
        return f": {_shown(inspect.signature(value.fget).return_annotation)}"  # type: ignore[arg-type]
    function = getattr(value, "__func__", value)  # of a class method
    return _signature(function) if inspect.isfunction(function) else ""


def _signature(function: Any) -> str:
    signature = inspect.signature(function)
    parameters = [
        part.replace(annotation=_shown(part.annotation)) for part in signature.parameters.values()
    ]
    returned = _shown(signature.return_annotation)
    text = str(signature.replace(parameters=parameters, return_annotation=returned))
    text = re.sub(r"<function (\S+) at 0x\w+>", r"\1", text)
    return f" async{text}" if inspect.iscoroutinefunction(function) else text


def _shown(annotation: Any) -> Any:
    text = getattr(annotation, "__forward_arg__", annotation)  # of a TypedDict
    return _Type(text) if isinstance(text, str) else text


if __name__ == "__main__":
    FILE.write_text(public_api(), "utf-8")
