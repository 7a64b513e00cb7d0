"""The identity of a crawl: its spider, the arguments, and the version of the code."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from typing import Any

from scrapy import Spider

from semaphore_middleware.shared_crawl.settings import CrawlSettings

LONGEST_VALUE = 200  # characters; a longer value is replaced by a hash


def identity_of(
    spider: Spider, arguments: Mapping[str, Any], settings: CrawlSettings
) -> dict[str, str]:
    """The texts that all nodes of a crawl must share, by name. `arguments` are the user's, not the
    spider's attributes: one of these may be a start time.
    """
    return {
        "spider": spider.name,
        "CRAWL_VERSION": settings.version or _source_hash(type(spider)),
        **_texts(arguments),
    }


def differences(own: Mapping[str, object], other: Mapping[str, object]) -> str:
    """The differences between this node and the crawl, in one line."""
    names = [name for name in {**other, **own} if own.get(name) != other.get(name)]
    return "; ".join(
        f"{name} is {own.get(name, 'not set')}, that of the crawl is {other.get(name, 'not set')}"
        for name in names
    )


def other_work(own: dict[str, str], ended: dict[str, str]) -> str:
    """The differences in spider and arguments between this node and an ended crawl, in one line;
    empty if there are none. Versions may differ: the crawl is done anyway.
    """
    if not ended:
        return ""
    named = [
        {name: value for name, value in identity.items() if not name.startswith("CRAWL_")}
        for identity in (own, ended)
    ]
    return differences(*named)


def _texts(arguments: Mapping[str, Any]) -> dict[str, str]:
    """The arguments as JSON, without those that JSON cannot hold. Names that begin with `_` do not
    count: Scrapyd gives each job its own `_job`. An argument may have any name,
    even `spider` or that of a setting.
    """
    texts = {}
    for name, value in sorted(arguments.items()):
        if not name.startswith("_"):
            with suppress(TypeError, ValueError):
                texts[f"argument {name}"] = _short(json.dumps(value, sort_keys=True))
    return texts


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_VALUE else _hash(text)


def _source_hash(cls: type) -> str:
    """A hash of the modules of the spider's class and of its bases, without Scrapy's own."""
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
