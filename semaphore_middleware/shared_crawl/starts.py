"""Start requests from users: URLs, or JSON objects."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from scrapy import FormRequest, Request

from semaphore_middleware.model.validation import check_priority

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


def request_of(text: str, spider: object, of_key: bool = False) -> tuple[Request, dict[str, str]]:
    """The request in a line, and the names of its `METHODS`. `spider`, an object or a class, must
    have these methods. In a line `of_key`, as in scrapy-redis, further fields are those of a form,
    and `dont_filter` is true by default.

    Raises `ValueError`, with a message for the user.
    """
    text = stripped(text)
    try:
        return _request_of(text, spider, of_key)
    except (TypeError, ValueError) as error:
        shown = repr(text if len(text) <= 80 else text[:77] + "...")
        raise ValueError(f"{shown}: {error}") from None


def _request_of(text: str, spider: object, of_key: bool) -> tuple[Request, dict[str, str]]:
    fields: dict[str, Any] = {"url": text}
    if text.startswith("{"):
        try:
            fields = json.loads(text)
        except ValueError as error:
            raise ValueError(f"not JSON: {error}") from None
    others = [name for name in fields if name not in FIELDS]
    if others and not of_key:
        raise ValueError(f"{others[0]!r} is not a field; allowed are {', '.join(FIELDS)}")
    form = {name: _texts(name, fields.pop(name)) for name in others}
    fields = {name: _checked(name, value) for name, value in fields.items()}
    fields.setdefault("dont_filter", of_key)
    methods = {name: fields.pop(name) for name in METHODS if name in fields}
    for name, method in methods.items():
        if not callable(getattr(spider, method, None)):
            raise ValueError(f"{name} {method!r} is not a method of the spider")
    if "url" not in fields:
        raise ValueError("the field 'url' is missing")
    if form and "body" in fields:
        raise ValueError(f"'body' and form fields ({', '.join(form)}) exclude each other")
    if form:
        request: Request = FormRequest(**{"method": "GET", **fields}, formdata=form)
    else:
        request = Request(**fields)
    parts = urlsplit(request.url)  # Scrapy looks for a colon only
    if not parts.scheme or (parts.scheme in ("http", "https") and not parts.hostname):
        raise ValueError(f"no scheme or no host in request url: {request.url}")
    return request, methods


def _texts(name: str, value: Any) -> list[str]:
    """The values of a form's field."""
    values = value if isinstance(value, list) else [value]
    if not all(type(each) in (str, int, float) for each in values):
        raise ValueError(f"{name} = {value!r}: allowed in a form are texts, numbers, lists of them")
    return list(map(str, values))


def _checked(name: str, value: Any) -> Any:
    types = FIELDS[name]
    if isinstance(value, str) and str not in types:  # as in the entry of a stream
        with suppress(ValueError):
            value = json.loads(value)
    if not isinstance(value, types):
        allowed = " or ".join(type_.__name__ for type_ in types)
        raise ValueError(f"{name} = {value!r}: allowed is {allowed}")
    if name == "priority":
        check_priority(value, name)
    return value
