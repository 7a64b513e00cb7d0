"""Requests as they are kept on the server."""

from __future__ import annotations

import scrapy_redis.dupefilter
import scrapy_redis.queue
from scrapy import Request, Spider

from semaphore_middleware.frontier.client import Entry


class Packing(scrapy_redis.queue.Base):  # type: ignore[misc]  # untyped
    """scrapy-redis's way to store requests and to tell them apart.

    They are pickled, and to unpickle is to run what the pickle says: who can write to the server
    can run code on every node.
    """

    def __init__(self, spider: Spider) -> None:
        super().__init__(server=None, spider=spider, key="")
        debug = spider.settings.getbool("DUPEFILTER_DEBUG")
        self._filter = scrapy_redis.dupefilter.RFPDupeFilter(None, key="", debug=debug)

    def pack(self, id: str, site: str, request: Request) -> Entry:
        return Entry(
            id=id,
            score=-request.priority,
            site=site,
            data=self._encode_request(request),
            fingerprint="" if request.dont_filter else self._filter.request_fingerprint(request),
        )

    def unpack(self, data: bytes) -> Request:
        request: Request = self._decode_request(data)
        return request

    def log_duplicate(self, request: Request) -> None:
        self._filter.log(request, self.spider)
