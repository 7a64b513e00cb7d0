"""Values in JSON that come back as they were: what `meta` and `cb_kwargs` may hold."""

from __future__ import annotations

import dataclasses
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from functools import cache
from importlib import import_module
from typing import Any
from zoneinfo import ZoneInfo

from itemadapter import ItemAdapter

TAG = "="
"""The key of a JSON object that stands for a value of another type: its type's name, or a class."""
VALUE = "v"
PLAIN = (str, int, float)  # a value of a subclass comes back as one of these

TYPES: Mapping[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    tuple: (list, tuple),
    set: (list, set),
    frozenset: (list, frozenset),
    bytes: (lambda value: b64encode(value).decode(), b64decode),
    datetime: (
        lambda value: [value.replace(tzinfo=None).isoformat(), _zone(value), value.fold],
        lambda parts: datetime.fromisoformat(parts[0]).replace(tzinfo=parts[1], fold=parts[2]),
    ),
    timezone: (lambda value: value.utcoffset(None), timezone),
    ZoneInfo: (lambda value: value.key, ZoneInfo),
    date: (date.isoformat, date.fromisoformat),
    time: (time.isoformat, time.fromisoformat),
    timedelta: (
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda parts: timedelta(*parts),
    ),
    Decimal: (str, Decimal),
    dict: (lambda value: list(map(list, value.items())), dict),
    OrderedDict: (lambda value: list(map(list, value.items())), OrderedDict),
}
"""By type: what JSON has for a value, and the value from that."""
BY_NAME = {type_.__name__: read for type_, (_, read) in TYPES.items()}


def _zone(value: datetime) -> tzinfo | None:
    """A datetime's zone; of a class that is not known here, its offset at that time."""
    zone = value.tzinfo
    if zone is None or type(zone) in TYPES:
        return zone
    return timezone(value.utcoffset() or timedelta())


class Values:
    """Turns values into what JSON can hold, and back.

    `packages` are those whose items may be named in JSON: who can write to the server must not
    choose any class of any package.
    """

    def __init__(self, packages: Collection[str]) -> None:
        self._packages = frozenset(packages)

    def to_json(self, value: Any) -> Any:
        """What `json.dumps` takes. Raises `TypeError` for a value that would not come back."""
        kind = type(value)
        if value is None or kind is bool or kind in PLAIN:
            return value
        if kind is list:
            return [self.to_json(one) for one in value]
        if kind is dict and TAG not in value and all(type(key) is str for key in value):
            return {key: self.to_json(one) for key, one in value.items()}
        if kind in TYPES:
            write, _ = TYPES[kind]
            return {TAG: kind.__name__, VALUE: self.to_json(write(value))}
        for base in PLAIN:
            if isinstance(value, base):
                return base.__str__(value) if base is str else base(value)
        if ItemAdapter.is_item(value) and not isinstance(value, dict):
            return self._item_to_json(value)
        raise TypeError(f"{value!r} is of a type that JSON cannot hold, {kind.__qualname__}")

    def from_json(self, value: Any) -> Any:
        """The value from what `json.loads` has made. Raises anything for what is none of ours."""
        if isinstance(value, list):
            return [self.from_json(one) for one in value]
        if not isinstance(value, dict):
            return value
        if TAG not in value:
            return {key: self.from_json(one) for key, one in value.items()}
        name, inner = value[TAG], self.from_json(value[VALUE])
        if name in BY_NAME:
            return BY_NAME[name](inner)
        return _made(self._class_of(name), inner)

    def _item_to_json(self, item: Any) -> Any:
        cls = type(item)
        path = f"{cls.__module__}:{cls.__qualname__}"
        if self._class_of(path) is not cls:
            raise TypeError(f"{path} cannot be found by this name")
        fields = dict(ItemAdapter(item))
        _made(cls, fields)  # raises an error here, where the spider's author sees it
        return {TAG: path, VALUE: self.to_json(fields)}

    def _class_of(self, path: str) -> type:
        module, _, qualified_name = path.partition(":")
        if module.partition(".")[0] not in self._packages:
            allowed = ", ".join(sorted(self._packages))
            raise TypeError(f"{path} is of none of the project's packages ({allowed})")
        return _item_class(module, qualified_name)


@cache
def _item_class(module: str, qualified_name: str) -> type:
    found: Any = import_module(module)
    for name in qualified_name.split("."):
        found = getattr(found, name, None)
    if not (isinstance(found, type) and ItemAdapter.is_item_class(found)):
        raise TypeError(f"{module}:{qualified_name} is no class of items")
    return found


def _made(cls: type, fields: dict[str, Any]) -> Any:
    """An item with these fields. Those that its `__init__` does not take are set afterwards."""
    taken = {name: value for name, value in fields.items() if _is_argument(cls, name)}
    item = cls(**taken)
    for name in fields.keys() - taken.keys():
        ItemAdapter(item)[name] = fields[name]
    return item


@cache
def _is_argument(cls: type, name: str) -> bool:
    if dataclasses.is_dataclass(cls):
        return any(field.name == name and field.init for field in dataclasses.fields(cls))
    return True
