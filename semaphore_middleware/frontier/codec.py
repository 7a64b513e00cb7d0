"""Requests as they are stored on the server."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter, RFPDupeFilter
from scrapy.http.cookies import potential_domain_matches
from scrapy.settings import BaseSettings
from scrapy.spiderloader import get_spider_loader
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.request import request_from_dict

from semaphore_middleware.frontier.client import NewRequest
from semaphore_middleware.frontier.serializers import SERIALIZERS, Fields
from semaphore_middleware.frontier.settings import CrawlSettings
from semaphore_middleware.frontier.starts import request_of
from semaphore_middleware.scrapy.engine import Engine

logger = logging.getLogger(__name__)

JAR = "jar"
"""A field of ours: the cookies of the session that `cookiejar` in a request's meta names."""


class StartEncoder:
    """Encodes start requests from outside for a crawl whose spider does not run here.

    `spider` and `serializer` are names. The site of a request is its host.
    """

    def __init__(self, settings: BaseSettings, spider: str, serializer: str) -> None:
        loader = get_spider_loader(settings)
        try:
            self._spider = loader.load(spider)
        except KeyError:  # another project's; it may have any methods
            self._spider = Spider
        self._dumps = SERIALIZERS[serializer](()).dumps
        crawler = Crawler(self._spider, settings.copy_to_dict())
        of_class = load_object(crawler.settings["REQUEST_FINGERPRINTER_CLASS"])
        self._fingerprint = build_from_crawler(of_class, crawler).fingerprint

    def __call__(self, line: str, new_place: Callable[[str, float, bool], bytes]) -> NewRequest:
        """The request that a line stands for. Raises `ValueError`, which says what is wrong."""
        request, methods = request_of(line, self._spider)
        site = urlparse_cached(request).hostname or ""
        return NewRequest(
            place=new_place(site, -request.priority, True),
            data=self._dumps({**request.to_dict(), **methods}),
            fingerprint=b"" if request.dont_filter else self._fingerprint(request),
        )


class Codec:
    """Encodes and decodes a spider's requests, and tells which are duplicates of each other: those
    that `REQUEST_FINGERPRINTER_CLASS` gives the same fingerprint.

    Start requests that Scrapy would not filter are told apart, too, and from all others: each node
    makes them, and with `start_once` one of them is queued. A spider may make several of one page:
    so they are counted.
    """

    def __init__(self, spider: Spider, engine: Engine, settings: CrawlSettings) -> None:
        self._spider = spider
        self._engine = engine
        self._settings = settings
        modules = [*spider.settings.getlist("SPIDER_MODULES"), type(spider).__module__]
        packages = {name.partition(".")[0] for name in modules}
        self._serializer = SERIALIZERS[settings.serializer](packages)
        fingerprinter = spider.crawler.request_fingerprinter
        assert fingerprinter is not None, "a crawler has one before its spider is opened"
        self._fingerprint = fingerprinter.fingerprint
        filter_class = load_object(spider.settings["DUPEFILTER_CLASS"])
        self._is_filtered = filter_class is not BaseDupeFilter
        if filter_class not in (BaseDupeFilter, RFPDupeFilter):
            logger.warning(
                "DUPEFILTER_CLASS = %s is not used: a shared crawl goes by "
                "REQUEST_FINGERPRINTER_CLASS, or with scrapy.dupefilters.BaseDupeFilter filters "
                "nothing",
                spider.settings["DUPEFILTER_CLASS"],
            )
        debug = spider.settings.getbool("DUPEFILTER_DEBUG")
        self._filter = RFPDupeFilter(debug=debug, fingerprinter=fingerprinter)
        self._session_domains: set[str] = set()  # of the default session
        self._starts: Counter[bytes] = Counter()  # by fingerprint: how many were made

    def encode(
        self, place: bytes, request: Request, is_start: bool = False, claim: bytes = b""
    ) -> NewRequest:
        """The request as it is sent to the server.

        Raises any error for a request that cannot be stored, such as one whose callback is not a
        method of the spider.
        """
        try:
            fields = request.to_dict(spider=self._spider)
        except ValueError as error:
            raise ValueError(
                f"{error}; allowed as callback and errback is a method of it"
            ) from None
        if type(request) is not Request:
            _check_copy(request, request_from_dict(fields, spider=self._spider))
        if cookies := self._cookies_for(request):
            fields[JAR] = cookies
        data = self._serializer.dumps(fields)
        is_filtered = self._is_filtered and not request.dont_filter
        # A run that knows what earlier ones have seen makes its start requests all the same.
        is_unknown = not is_filtered or self._settings.recrawl_after > 0
        once_a_run = is_start and self._settings.start_once and is_unknown
        fingerprint = self._fingerprint(request) if once_a_run or is_filtered else b""
        if once_a_run:
            self._starts[fingerprint] += not is_filtered
            fingerprint = b"start %d %b" % (self._starts[fingerprint], fingerprint)
        return NewRequest(place, data, fingerprint, claim, of_run=once_a_run)

    def start_of(self, text: str) -> Request:
        """A start request as users write them. Raises `ValueError`, which says what is wrong."""
        request, methods = request_of(text, self._spider)
        for name, method in methods.items():
            setattr(request, name, getattr(self._spider, method))
        return request.replace(dont_filter=True)

    def begin_anew(self) -> None:
        """The spider's start requests are made once more."""
        self._starts.clear()

    def decode(self, data: bytes) -> Request:
        """The request from a server's data; its session's cookies are put into this node's jar.
        Raises anything if the spider has changed since.
        """
        fields = self._serializer.loads(data)
        cookies = fields.pop(JAR, ())
        request = request_from_dict(fields, spider=self._spider)
        jar = request.meta.get("cookiejar")
        if cookies:
            self._engine.add_cookies(jar, cookies)
        if jar is None and (cookies or request.cookies or request.method != "GET"):
            self._session_domains.update(_domains_of(request))
        return request

    def _cookies_for(self, request: Request) -> list[Fields]:
        """The cookies that are stored with a request: all of its `cookiejar`'s. Of the default
        session those of the request's site, if this node has sent a form there, as for a login, or
        cookies of the spider's own. Others come from visits, and each node has its own.
        """
        if (jar := request.meta.get("cookiejar")) is not None:
            return self._engine.cookies_of(jar)
        if self._session_domains.isdisjoint(domains := _domains_of(request)):
            return []
        return [one for one in self._engine.cookies_of(None) if one["domain"] in domains]

    def log_duplicate(self, request: Request) -> None:
        """Log it as Scrapy's filter does: the first one, or with `DUPEFILTER_DEBUG` all."""
        self._filter.log(request, self._spider)


def _domains_of(request: Request) -> list[str]:
    """The domains of cookies that may be sent with a request."""
    host = urlparse_cached(request).hostname or ""
    return potential_domain_matches(host if "." in host else f"{host}.local")


def _check_copy(request: Request, copy: Request) -> None:
    """Raises `TypeError` for what a class of requests has added, and its copy lacks."""
    for name, value in getattr(request, "__dict__", {}).items():
        if getattr(copy, name, None) != value:
            raise TypeError(
                f"{name!r} is not among the `attributes` of {type(request).__qualname__}"
            )
