"""Start requests from outside: URLs, or JSON objects, as users write them."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from scrapy import Request

FIELDS = {
    "url": (str,),
    "method": (str,),
    "headers": (dict,),
    "body": (str,),
    "cookies": (dict, list),
    "meta": (dict,),
    "cb_kwargs": (dict,),
    "callback": (str,),
    "errback": (str,),
    "priority": (int,),
    "dont_filter": (bool,),
}
"""What a JSON object may have, and of which types."""
METHODS = ("callback", "errback")


def stripped(line: str) -> str:
    """A line without blanks around it, and without the mark that some editors begin files with."""
    return line.removeprefix("\ufeff").strip()


def request_of(text: str, spider: object) -> tuple[Request, dict[str, str]]:
    """The request that a line stands for, and the names of its `METHODS`, which the spider, or its
    class, must have.

    Raises `ValueError`, which says what is wrong.
    """
    text = stripped(text)
    fields: dict[str, Any] = {"url": text}
    if fields["url"].startswith("{"):
        try:
            fields = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{_short(text)} is no JSON: {error}") from None
        fields = {name: _checked(name, value) for name, value in fields.items()}
    methods = {name: fields.pop(name) for name in METHODS if name in fields}
    for name, method in methods.items():
        if not callable(getattr(spider, method, None)):
            raise ValueError(f"{name} {method!r} is no method of the spider")
    if "url" not in fields:
        raise ValueError(f"{_short(text)} has no url")
    try:
        request = Request(**fields)
        parts = urlsplit(request.url)  # Scrapy looks for a colon only
        if not parts.scheme or (parts.scheme in ("http", "https") and not parts.hostname):
            raise ValueError(f"no scheme or no host in request url: {request.url}")
    except (TypeError, ValueError) as error:
        raise ValueError(f"{_short(text)}: {error}") from None
    return request, methods


def _checked(name: str, value: Any) -> Any:
    if name not in FIELDS:
        raise ValueError(f"{name!r} is none of {', '.join(FIELDS)}")
    types = FIELDS[name]
    if isinstance(value, str) and str not in types:  # as in the entry of a stream
        with suppress(ValueError):
            value = json.loads(value)
    if not isinstance(value, types):
        allowed = " or ".join(one.__name__ for one in types)
        raise ValueError(f"{name} = {value!r}: allowed is {allowed}")
    return value


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
