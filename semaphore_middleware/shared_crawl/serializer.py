"""A request's fields as JSON."""

from __future__ import annotations

import dataclasses
import json
import sys
from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from functools import cache
from types import ModuleType
from typing import Any
from zoneinfo import ZoneInfo

from itemadapter import ItemAdapter

from semaphore_middleware.model.validation import shown

Fields = dict[str, Any]
"""Fields of a request, as `Request.to_dict` returns them."""
TAG = "="
"""The key for the name of the type or class, in a JSON object for a value of another type."""
VALUE = "v"
PLAIN = (str, int, float)  # a value of a subclass comes back as one of these


def _with_zone(
    read: Callable[[str], Any],
) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """How a time is written with its zone, and how it is read."""
    return (
        lambda value: [value.replace(tzinfo=None).isoformat(), _zone(value), value.fold],
        lambda parts: read(parts[0]).replace(tzinfo=parts[1], fold=parts[2]),
    )


TYPES: Mapping[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    tuple: (list, tuple),
    set: (list, set),
    frozenset: (list, frozenset),
    bytes: (lambda value: b64encode(value).decode(), b64decode),
    datetime: _with_zone(datetime.fromisoformat),
    time: _with_zone(time.fromisoformat),
    timezone: (lambda value: value.utcoffset(None), timezone),
    ZoneInfo: (lambda value: value.key, ZoneInfo),
    date: (date.isoformat, date.fromisoformat),
    timedelta: (
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda parts: timedelta(*parts),
    ),
    Decimal: (str, Decimal),
    dict: (lambda value: list(map(list, value.items())), dict),
    OrderedDict: (lambda value: list(map(list, value.items())), OrderedDict),
}
"""By type: functions that convert a value to JSON, and back."""
PAGE_METHOD = "scrapy_playwright.page", "PageMethod"


def _page_method(parts: tuple[str, tuple[Any, ...], dict[str, Any]]) -> Any:
    method, arguments, named = parts
    page_method = loaded_class(*PAGE_METHOD)
    if page_method is None:
        raise UnknownClassError("PageMethod is stored, and scrapy_playwright.page is not imported")
    return page_method(method, *arguments, **named)


BY_NAME: Mapping[str, Callable[[Any], Any]] = {
    **{type_.__name__: read for type_, (_, read) in TYPES.items()},
    PAGE_METHOD[1]: _page_method,
}


def _zone(value: datetime | time) -> tzinfo | None:
    """The time's zone; instead of one of an unknown class, its offset at that time."""
    zone = value.tzinfo
    if zone is None or type(zone) in TYPES:
        return zone
    offset = value.utcoffset()
    if offset is None:
        raise TypeError(f"{shown(value)} has a zone without an offset at that time")
    return timezone(offset)


class UnknownClassError(TypeError):
    """A stored request names a class that this node does not take from the server."""


class Serializer:
    """Writes a request's fields as JSON. The values in `meta` and `cb_kwargs` come back unchanged.

    JSON may name item classes of these `packages` only: whoever can write to the server must not
    be able to choose other classes.
    """

    def __init__(self, packages: Collection[str]) -> None:
        self._packages = frozenset(packages)

    def dumps(self, fields: Fields) -> bytes:
        """The JSON. Raises `TypeError`, with the key, for a value that JSON would change."""
        try:
            return json.dumps(self._plain(fields), separators=(",", ":")).encode()
        except Exception:
            self._raise_for_key(fields)
            raise

    def _plain(self, fields: Fields) -> Fields:
        plain = {
            name: self._to_json(value)
            for name, value in fields.items()
            if name not in ("body", "headers")
        }
        if "headers" in fields:
            plain["headers"] = {
                name.decode("latin-1"): [value.decode("latin-1") for value in values]
                for name, values in fields["headers"].items()
            }
        if "body" in fields:
            plain["body"] = b64encode(fields["body"]).decode()
        return plain

    def _raise_for_key(self, fields: Fields) -> None:
        """Look for the key with a value that cannot be written, and raise `TypeError`."""
        for name, value in fields.items():
            has_keys = name in ("meta", "cb_kwargs")
            for key, part in value.items() if has_keys else [(name, value)]:
                try:
                    json.dumps(self._to_json({key: part}))
                except Exception as error:
                    where = f"{name}[{shown(key)}]" if has_keys else name
                    is_deep = isinstance(error, RecursionError)
                    reason = "its lists or dicts are nested too deeply" if is_deep else error
                    raise TypeError(f"{where} = {shown(part)}: {reason}") from None

    def loads(self, data: bytes) -> Fields:
        """The fields. Raises any error for data that `dumps` did not write."""
        plain: Fields = json.loads(data)
        special: Fields = {}
        if "headers" in plain:
            special["headers"] = {
                name.encode("latin-1"): [value.encode("latin-1") for value in values]
                for name, values in plain.pop("headers").items()
            }
        if "body" in plain:
            special["body"] = b64decode(plain.pop("body"))
        return {**self._from_json(plain), **special}

    def _to_json(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind is bool or kind in PLAIN:
            return value
        if kind is list:
            return [self._to_json(item) for item in value]
        if kind is dict and TAG not in value and all(type(key) is str for key in value):
            return {key: self._to_json(item) for key, item in value.items()}
        if kind in TYPES:
            write, _ = TYPES[kind]
            return {TAG: kind.__name__, VALUE: self._to_json(write(value))}
        for base in PLAIN:
            if isinstance(value, base):
                return base.__str__(value) if base is str else base(value)
        if (kind.__module__, kind.__qualname__) == PAGE_METHOD:
            return self._page_method_to_json(value)
        if ItemAdapter.is_item(value) and not isinstance(value, dict):
            return self._item_to_json(value)
        raise TypeError(f"JSON cannot hold values of the type {kind.__qualname__}")

    def _from_json(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._from_json(item) for item in value]
        if not isinstance(value, dict):
            return value
        if TAG not in value:
            return {key: self._from_json(item) for key, item in value.items()}
        name = value[TAG]
        inner = self._from_json(value[VALUE])
        if name in BY_NAME:
            return BY_NAME[name](inner)
        return _made(self._class_of(name), inner)

    def _page_method_to_json(self, method: Any) -> Any:
        """Without its result, as the page has still to be fetched."""
        if not isinstance(method.method, str):
            raise TypeError(f"{method!r} calls a function, and JSON can hold names of methods only")
        return {
            TAG: PAGE_METHOD[1],
            VALUE: self._to_json((method.method, method.args, method.kwargs)),
        }

    def _item_to_json(self, item: Any) -> Any:
        cls = type(item)
        path = f"{cls.__module__}:{cls.__qualname__}"
        if self._class_of(path) is not cls:
            raise TypeError(f"{path} cannot be found by this name")
        fields = dict(ItemAdapter(item))
        _made(cls, fields)  # raises an error here, where the spider's author sees it
        return {TAG: path, VALUE: self._to_json(fields)}

    def _class_of(self, path: str) -> type:
        module, _, qualified_name = path.partition(":")
        is_own = module.partition(".")[0] in self._packages
        found = loaded_class(module, qualified_name) if is_own else None
        if found is None or not ItemAdapter.is_item_class(found):
            raise UnknownClassError(
                f"{shown(path)} names no item class in an imported module of the project's "
                f"packages ({', '.join(sorted(self._packages))})"
            )
        return found


def loaded_class(module: str, qualified_name: str) -> type | None:
    """The class that an imported module defines. Nothing is imported, and no attribute is computed:
    whoever can write to the server must not choose code to run.
    """
    found: Any = sys.modules.get(module)
    for name in qualified_name.split("."):
        found = vars(found).get(name) if isinstance(found, ModuleType | type) else None
    names = (module, qualified_name)
    is_own = isinstance(found, type) and (found.__module__, found.__qualname__) == names
    return found if is_own else None


def _made(cls: type, fields: dict[str, Any]) -> Any:
    """An item with these fields. Fields that are not arguments of `__init__` are set afterwards."""
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
