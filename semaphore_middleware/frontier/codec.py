"""Requests as they are stored on the server."""

from __future__ import annotations

import scrapy_redis.dupefilter
import scrapy_redis.queue
from scrapy import Request, Spider

from semaphore_middleware.frontier.client import NewRequest


class Codec(scrapy_redis.queue.Base):  # type: ignore[misc]  # untyped
    """Encodes, decodes and fingerprints requests the way scrapy-redis does.

    Requests are pickled, and unpickling runs code that the pickle names: whoever can write to the
    server can run code on every node.
    """

    def __init__(self, spider: Spider) -> None:
        super().__init__(server=None, spider=spider, key="")
        debug = spider.settings.getbool("DUPEFILTER_DEBUG")
        self._filter = scrapy_redis.dupefilter.RFPDupeFilter(None, key="", debug=debug)

    def encode(self, place: bytes, request: Request) -> NewRequest:
        """The request as it is sent to the server."""
        return NewRequest(
            place=place,
            data=self._encode_request(request),
            fingerprint="" if request.dont_filter else self._filter.request_fingerprint(request),
        )

    def decode(self, data: bytes) -> Request:
        """The request from a server's data. Raises anything if the spider has changed since."""
        request: Request = self._decode_request(data)
        return request

    def log_duplicate(self, request: Request) -> None:
        """Log it as Scrapy's filter does: the first one, or with `DUPEFILTER_DEBUG` all."""
        self._filter.log(request, self.spider)
