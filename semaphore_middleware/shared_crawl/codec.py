"""Requests as they are stored on the server."""

from __future__ import annotations

import inspect
import logging
from collections import Counter

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.dupefilters import BaseDupeFilter, RFPDupeFilter
from scrapy.http.cookies import potential_domain_matches
from scrapy.settings import BaseSettings
from scrapy.spiderloader import get_spider_loader
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.request import request_from_dict

from semaphore_middleware.model.validation import shown
from semaphore_middleware.scrapy.versions import REQUEST_FIELDS
from semaphore_middleware.shared_crawl.client import NewRequest
from semaphore_middleware.shared_crawl.engine import CrawlEngine
from semaphore_middleware.shared_crawl.keys import Places
from semaphore_middleware.shared_crawl.serializer import (
    Fields,
    Serializer,
    UnknownClassError,
    loaded_class,
)
from semaphore_middleware.shared_crawl.settings import CrawlSettings
from semaphore_middleware.shared_crawl.starts import METHODS, request_of

logger = logging.getLogger(__name__)

JAR = "jar"
"""The field that is added for the cookies of the request's session."""
DEFAULTS = {**Request("data:,").to_dict(), "url": None}
"""The fields of a plain request, which are not stored."""


def stored(fields: Fields) -> Fields:
    """Leave out a request's defaults. A subclass may have others, so it keeps all fields."""
    if "_class" in fields:
        return fields
    return {
        name: value
        for name, value in fields.items()
        if name not in DEFAULTS or value != DEFAULTS[name]
    }


class StartEncoder:
    """Encodes start requests in a process that does not run the crawl's spider.

    `spider` is a name. The site of a request is its host.
    """

    def __init__(self, settings: BaseSettings, spider: str) -> None:
        loader = get_spider_loader(settings)
        try:
            self._spider = loader.load(spider)
        except KeyError:  # another project's; it may have any methods
            self._spider = Spider
        self._dumps = Serializer(()).dumps
        self._places = Places()
        crawler = Crawler(self._spider, settings.copy_to_dict())
        of_class = load_object(crawler.settings["REQUEST_FINGERPRINTER_CLASS"])
        self._fingerprint = build_from_crawler(of_class, crawler).fingerprint

    def encode(self, line: str) -> NewRequest:
        """The request in a line. Raises `ValueError`, with a message for the user."""
        request, methods = request_of(line, self._spider)
        site = urlparse_cached(request).hostname or ""
        return NewRequest(
            place=self._places.new_place(site, -request.priority, is_start=True),
            data=self._dumps(stored({**request.to_dict(), **methods})),
            fingerprint=b"" if request.dont_filter else self._fingerprint(request),
        )


class Codec:
    """Encodes and decodes a spider's requests, with their fingerprints: requests with the same
    fingerprint by `REQUEST_FINGERPRINTER_CLASS` are duplicates.

    Start requests get their own fingerprints even if Scrapy would not filter them: each node makes
    them, and one of them is queued. A spider may make several for one page, so the fingerprints
    contain a number.
    """

    def __init__(self, spider: Spider, engine: CrawlEngine, settings: CrawlSettings) -> None:
        self._spider = spider
        self._engine = engine
        self._settings = settings
        modules = [*spider.settings.getlist("SPIDER_MODULES"), type(spider).__module__]
        packages = {name.partition(".")[0] for name in modules}
        self._serializer = Serializer(packages)
        fingerprinter = spider.crawler.request_fingerprinter
        assert fingerprinter is not None, "a crawler has one before its spider is opened"
        self._fingerprint = fingerprinter.fingerprint
        filter_class = load_object(spider.settings["DUPEFILTER_CLASS"])
        self._is_filtered = filter_class is not BaseDupeFilter
        if filter_class not in (BaseDupeFilter, RFPDupeFilter):
            logger.warning(
                "DUPEFILTER_CLASS = %s is not used: a shared crawl filters by "
                "REQUEST_FINGERPRINTER_CLASS, or with scrapy.dupefilters.BaseDupeFilter not at "
                "all",
                spider.settings["DUPEFILTER_CLASS"],
            )
        debug = spider.settings.getbool("DUPEFILTER_DEBUG")
        self._filter = RFPDupeFilter(debug=debug, fingerprinter=fingerprinter)
        self._session_domains: set[str] = set()  # of the default session
        self._starts: Counter[bytes] = Counter()  # by fingerprint: how many were made

    def encode(
        self, place: bytes, request: Request, is_listed: bool = False, reservation: bytes = b""
    ) -> NewRequest:
        """The request as it is sent to the server; `is_listed`: each node makes it.

        Raises any error for a request that cannot be stored, such as one whose callback is not a
        method of the spider.
        """
        try:
            fields = request.to_dict(spider=self._spider)
        except ValueError as error:
            raise ValueError(
                f"{error}; allowed as callback and errback are the spider's methods"
            ) from None
        if type(request) is not Request:
            _check_copy(request, self._request_of(fields))
        self._engine.leave_out_own_proxy(fields)
        if cookies := self._cookies_for(request):
            fields[JAR] = cookies
        data = self._serializer.dumps(stored(fields))
        is_filtered = self._is_filtered and not request.dont_filter
        # A run that keeps the fingerprints of earlier runs still makes its start requests.
        is_unknown = not is_filtered or self._settings.recrawl_after > 0
        once_a_run = is_listed and is_unknown
        fingerprint = self._fingerprint(request) if once_a_run or is_filtered else b""
        if once_a_run:
            self._starts[fingerprint] += not is_filtered
            fingerprint = b"start %d %b" % (self._starts[fingerprint], fingerprint)
        return NewRequest(place, data, fingerprint, reservation, of_run=once_a_run)

    def is_repeated(self, request: Request) -> bool:
        """True if the spider has made this start request more than once."""
        return self._starts[self._fingerprint(request)] > 1

    def start_of(self, text: str) -> Request:
        """The start request in a user's line. Raises `ValueError`, with a message for users."""
        request, methods = request_of(text, self._spider, of_key=True)
        for name, method in methods.items():
            setattr(request, name, getattr(self._spider, method))
        return request

    def begin_anew(self) -> None:
        """Prepare for the spider to make its start requests once more."""
        self._starts.clear()

    def decode(self, data: bytes) -> Request:
        """The request in a server's data. Puts its session's cookies into this node's jar.

        Raises `UnknownClassError`, and any error if the spider has changed since.
        """
        fields = self._serializer.loads(data)
        cookies = fields.pop(JAR, ())
        request = self._request_of(fields)
        jar = request.meta.get("cookiejar")
        if cookies:
            self._engine.add_cookies(jar, cookies)
        if jar is None and (cookies or request.cookies or request.method != "GET"):
            self._session_domains.update(_domains_of(request))
        return request

    def _request_of(self, fields: Fields) -> Request:
        """The request with these fields. They may come from whoever can write to the server: they
        choose among imported classes of requests, and among the spider's methods.
        """
        if "_class" in fields:
            module, _, name = fields["_class"].rpartition(".")
            found = loaded_class(module, name)
            if found is None or not issubclass(found, Request):
                raise UnknownClassError(
                    f"{shown(fields['_class'])} names no subclass of scrapy.Request in an imported "
                    "module"
                )
        for field in METHODS:
            name = str(fields.get(field) or "")
            is_method = inspect.ismethod(getattr(self._spider, name, None))
            if name and (name.startswith("__") or not is_method):
                raise ValueError(f"{field} {name!r} is not a method of the spider")
        return request_from_dict(fields, spider=self._spider)

    def _cookies_for(self, request: Request) -> list[Fields]:
        """The cookies to store with a request: all of its `cookiejar`. Of the default session only
        those of the request's site, and only if this node has sent a form or the spider's cookies
        there, as for a login. Others come from visits, and each node has its own.
        """
        jar = request.meta.get("cookiejar")
        if jar is not None:
            return self._engine.cookies_of(jar)
        domains = _domains_of(request)
        if self._session_domains.isdisjoint(domains):
            return []
        return [cookie for cookie in self._engine.cookies_of(None) if cookie["domain"] in domains]

    def log_duplicate(self, request: Request) -> None:
        """Log it as Scrapy's filter does: the first one, or with `DUPEFILTER_DEBUG` all."""
        self._filter.log(request, self._spider)


def _domains_of(request: Request) -> list[str]:
    """The possible domains of a request's cookies."""
    host = urlparse_cached(request).hostname or ""
    return potential_domain_matches(host if "." in host else f"{host}.local")


def _check_copy(request: Request, copy: Request) -> None:
    """Raise `TypeError` if the copy lacks an attribute added by the request's class."""
    for name, value in getattr(request, "__dict__", {}).items():
        if name not in REQUEST_FIELDS and getattr(copy, name, None) != value:
            raise TypeError(
                f"{name!r} is not among the `attributes` of {type(request).__qualname__}"
            )
