"""Which crawl a node takes part in: its spider, the arguments, and the version of the code."""

from __future__ import annotations

import inspect
import json
import re
import sys
from hashlib import sha256
from typing import Any

from scrapy import Spider

LONGEST_VALUE = 200  # characters; of a longer value, a hash stands for it
NOT_ARGUMENTS = ("name", "crawler", "settings")


def identity_of(spider: Spider) -> dict[str, str]:
    """What must be the same on all nodes of a crawl: texts, by their names."""
    cls = type(spider)
    version = spider.settings.get("CRAWL_VERSION") or _source_hash(cls)
    return {"spider": spider.name, "CRAWL_VERSION": str(version), **_arguments(spider)}


def differences(own: dict[str, str], other: dict[str, str]) -> str:
    """How this node differs from the crawl, in one line."""
    names = [name for name in {**other, **own} if own.get(name) != other.get(name)]
    return "; ".join(
        f"{name} is {own.get(name, 'not set')}, that of the crawl is {other.get(name, 'not set')}"
        for name in names
    )


def _arguments(spider: Spider) -> dict[str, str]:
    """The spider's own attributes that are texts, numbers or lists of these: its arguments, and
    what it has made of them. Those whose names begin with `_` do not count.
    """
    values = {name: _plain(value) for name, value in vars(spider).items()}
    return {
        name: _short(json.dumps(value))
        for name, value in sorted(values.items())
        if value is not None and not name.startswith("_") and name not in NOT_ARGUMENTS
    }


def _plain(value: Any) -> Any:
    """The value, if it is one that an argument may become; else None."""
    if isinstance(value, re.Pattern):
        return value.pattern if isinstance(value.pattern, str) else None
    if isinstance(value, list | tuple | set | frozenset):
        is_plain = all(isinstance(item, str | int) for item in value)
        ordered = sorted(value, key=str) if isinstance(value, set | frozenset) else list(value)
        return ordered if is_plain else None
    return value if isinstance(value, str | int) else None


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_VALUE else _hash(text)


def _source_hash(cls: type) -> str:
    """Of the modules of the spider's class and of its bases, as far as they are not Scrapy's."""
    names = {base.__module__ for base in cls.__mro__}
    own = sorted(name for name in names if name.split(".")[0] not in ("scrapy", "builtins"))
    return _hash("".join(map(_source, own)))


def _source(module: str) -> str:
    try:
        return inspect.getsource(sys.modules[module])
    except (KeyError, OSError, TypeError):  # compiled, or typed in
        return module


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
