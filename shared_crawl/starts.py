"""Start requests from users: URLs, or JSON objects."""

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
"""The fields of a JSON object, with their types."""
METHODS = ("callback", "errback")


def stripped(line: str) -> str:
    """A line without blanks around it, and without a byte order mark."""
    return line.removeprefix("\ufeff").strip()


def request_of(text: str, spider: object) -> tuple[Request, dict[str, str]]:
    """The request in a line, and the names of its `METHODS`. `spider`, an object or a class, must
    have these methods.

    Raises `ValueError`, with a message for the user.
    """
    text = stripped(text)
    fields: dict[str, Any] = {"url": text}
    if fields["url"].startswith("{"):
        try:
            fields = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{_short(text)} is not JSON: {error}") from None
        fields = {name: _checked(name, value) for name, value in fields.items()}
    methods = {name: fields.pop(name) for name in METHODS if name in fields}
    for name, method in methods.items():
        if not callable(getattr(spider, method, None)):
            raise ValueError(f"{name} {method!r} is not a method of the spider")
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
        allowed = " or ".join(type_.__name__ for type_ in types)
        raise ValueError(f"{name} = {value!r}: allowed is {allowed}")
    return value


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
