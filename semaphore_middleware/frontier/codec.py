"""Requests as they are stored on the server."""

from __future__ import annotations

import json
import pickle
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any

from scrapy import Request, Spider
from scrapy.dupefilters import RFPDupeFilter
from scrapy.utils.request import request_from_dict

from semaphore_middleware.frontier.client import NewRequest

Fields = dict[str, Any]
"""A request's, as `Request.to_dict` gives them."""


class Codec:
    """Encodes and decodes a spider's requests, and tells which are duplicates of each other: those
    that `REQUEST_FINGERPRINTER_CLASS` gives the same fingerprint.

    `serializer` is `"json"` or `"pickle"`. Pickle can store more than JSON, but unpickling runs
    code that the pickle names: whoever can write to the server can run code on every node.
    """

    def __init__(self, spider: Spider, serializer: str = "json") -> None:
        self._spider = spider
        self._dumps, self._loads = SERIALIZERS[serializer]
        fingerprinter = spider.crawler.request_fingerprinter
        assert fingerprinter is not None, "a crawler has one before its spider is opened"
        self._fingerprint = fingerprinter.fingerprint
        debug = spider.settings.getbool("DUPEFILTER_DEBUG")
        self._filter = RFPDupeFilter(debug=debug, fingerprinter=fingerprinter)

    def encode(self, place: bytes, request: Request) -> NewRequest:
        """The request as it is sent to the server.

        Raises any error for a request that cannot be stored, such as one whose callback is not a
        method of the spider.
        """
        return NewRequest(
            place=place,
            data=self._dumps(request.to_dict(spider=self._spider)),
            fingerprint=b"" if request.dont_filter else self._fingerprint(request),
        )

    def decode(self, data: bytes) -> Request:
        """The request from a server's data. Raises anything if the spider has changed since."""
        return request_from_dict(self._loads(data), spider=self._spider)

    def log_duplicate(self, request: Request) -> None:
        """Log it as Scrapy's filter does: the first one, or with `DUPEFILTER_DEBUG` all."""
        self._filter.log(request, self._spider)


def _dumps_json(fields: Fields) -> bytes:
    plain = {
        **fields,
        "body": b64encode(fields["body"]).decode(),
        "headers": {
            name.decode("latin-1"): [value.decode("latin-1") for value in values]
            for name, values in fields["headers"].items()
        },
    }
    text = json.dumps(plain)
    read = json.loads(text)
    for name, value in plain.items():
        if read[name] != value:  # such as a tuple, which would come back as a list
            raise TypeError(f"{name} = {value!r} is not plain JSON")
    return text.encode()


def _loads_json(data: bytes) -> Fields:
    plain: Fields = json.loads(data)
    headers = {
        name.encode("latin-1"): [value.encode("latin-1") for value in values]
        for name, values in plain["headers"].items()
    }
    return {**plain, "body": b64decode(plain["body"]), "headers": headers}


def _dumps_pickle(fields: Fields) -> bytes:
    return pickle.dumps(fields, protocol=4)


SERIALIZERS: dict[str, tuple[Callable[[Fields], bytes], Callable[[bytes], Fields]]] = {
    "json": (_dumps_json, _loads_json),
    "pickle": (_dumps_pickle, pickle.loads),
}
"""By their names in `CRAWL_SERIALIZER`: how to write a request's fields, and to read them."""
