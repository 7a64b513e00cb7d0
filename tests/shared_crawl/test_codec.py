"""Requests as they are stored: what comes back, and what cannot be stored."""

from __future__ import annotations

import json
import re
import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from scrapy import Field, FormRequest, Item, Request, Spider
from scrapy.downloadermiddlewares.cookies import CookiesMiddleware
from scrapy.downloadermiddlewares.httpproxy import HttpProxyMiddleware
from scrapy.dupefilters import BaseDupeFilter, RFPDupeFilter
from scrapy.http import JsonRequest, Response, XmlRpcRequest
from scrapy.utils.misc import build_from_crawler

from semaphore_middleware.shared_crawl.codec import Codec
from semaphore_middleware.shared_crawl.engine import CrawlEngine
from semaphore_middleware.shared_crawl.serializer import Serializer, UnknownClassError
from semaphore_middleware.shared_crawl.settings import CrawlSettings
from tests.support.crawls import ready_crawler


class Books(Spider):
    name = "books"

    def parse_book(self, response: Response) -> None: ...


@pytest.mark.parametrize("chosen", ["by Scrapy", "by the spider", "by a middleware since"])
def test_the_proxy_of_a_node_s_environment_does_not_travel(
    chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, f"http://user:secret@{name.replace('_', '-')}:3128")
    request = Request("http://a/", headers={"X": "1"}, meta={"depth": 1})
    books = codec()
    proxies: Any = build_from_crawler(HttpProxyMiddleware, books._spider.crawler)
    books._spider.crawler.get_downloader_middleware = lambda _: proxies  # type: ignore[assignment, method-assign]
    if chosen == "by the spider":
        request.meta["proxy"] = "http://me:mine@proxy:3128"
    proxies.process_request(request)
    if chosen == "by a middleware since":
        request.meta["proxy"] = "http://me:mine@proxy:3128"
        proxies.process_request(request)
    sent = dict(request.meta), request.headers.copy()
    stored = books.decode(books.encode(b"", request).data)
    assert (request.meta, request.headers) == sent
    if chosen == "by Scrapy":
        assert (stored.meta, stored.headers) == ({"depth": 1}, {b"X": [b"1"]})
    else:
        assert (stored.meta, stored.headers) == sent
        assert stored.meta["proxy"] == "http://proxy:3128"
        assert stored.headers["Proxy-Authorization"] == b"Basic bWU6bWluZQ=="


class ByPath:
    """A fingerprinter that ignores hosts."""

    def fingerprint(self, request: Request) -> bytes:
        return request.url.partition("//")[2].partition("/")[2].encode()


def codec(**settings: Any) -> Codec:
    crawler = ready_crawler(Books, **settings)
    ours = CrawlSettings("redis://unused")
    return Codec(crawler._create_spider(), CrawlEngine(crawler), ours)


class PageMethod:
    """The part of scrapy-playwright's `PageMethod` that is stored."""

    __module__ = "scrapy_playwright.page"

    def __init__(self, method: Any, *args: Any, **kwargs: Any) -> None:
        self.method = method
        self.args = args
        self.kwargs = kwargs
        self.result: Any = None


def test_methods_of_pages_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, PageMethod.__module__, sys.modules[__name__])
    books = codec()
    methods = [PageMethod("click", "#more", timeout=5), PageMethod("wait_for_selector", "h1")]
    methods[0].result = object()
    request = Request("http://a/", meta={"playwright_page_methods": methods})
    copies = books.decode(books.encode(b"", request).data).meta["playwright_page_methods"]
    assert [(each.method, each.args, each.kwargs) for each in copies] == [
        ("click", ("#more",), {"timeout": 5}),
        ("wait_for_selector", ("h1",), {}),
    ]
    data = books.encode(b"", request).data
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, PageMethod.__module__)
        with pytest.raises(UnknownClassError, match="PageMethod is stored, and scrapy_playwright"):
            books.decode(data)
    methods[0].method = print
    with pytest.raises(TypeError, match="calls a function"):
        books.encode(b"", request)


def test_what_comes_back_is_the_request() -> None:
    books = codec()
    request = FormRequest(
        "http://a/b?c=\xe9",
        method="POST",
        callback=getattr(books._spider, "parse_book"),  # noqa: B009 - the class says Spider
        formdata={"d": "e"},
        headers={"X": ["1", "\xff"]},
        cookies={"f": "g"},
        meta={"depth": 2, "tags": ["h", None, 1.5, {"i": True}]},
        cb_kwargs={"j": "k"},
        priority=3,
        dont_filter=True,
        flags=["l"],
    )
    back = books.decode(books.encode(b"place", request).data)
    assert type(back) is FormRequest
    assert back.to_dict(spider=books._spider) == request.to_dict(spider=books._spider)
    assert back.callback == request.callback


class Book(Item):
    title = Field()
    pages = Field()


@dataclass
class Author:
    name: str
    born: date | None = None
    books: list[Book] = field(default_factory=list)
    key: str = field(default="", init=False)


class Kind(StrEnum):
    NOVEL = "novel"


BERLIN = ZoneInfo("Europe/Berlin")
VALUES = [
    *((1, 2), {1: "2", None: {"=": 3}}, {"=": 4}, {1, 2}, frozenset("a"), b"\xff", Decimal("1.50")),
    *(
        datetime(2026, 11, 24, 12, tzinfo=UTC),
        datetime(2026, 10, 25, 2, tzinfo=BERLIN, fold=1),
        date(2026, 11, 24),
        time(12, 5),
        time(2, 30, tzinfo=BERLIN, fold=1),
        timedelta(1, 2, 3),
    ),
    *(OrderedDict(b=1, a=2), Book(title="t", pages=(1, [b"2"])), Author("n", books=[Book()])),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_what_meta_may_hold_comes_back_as_it_was(value: Any) -> None:
    books = codec()
    request = Request("http://a/", meta={"value": [value]}, cb_kwargs={"value": {"in": value}})
    back = books.decode(books.encode(b"", request).data)
    for (found,) in (back.meta["value"], back.cb_kwargs["value"].values()):
        assert (type(found), found) == (type(value), value)
        if isinstance(value, OrderedDict):
            assert list(found) == list(value)
        if isinstance(value, datetime | time):
            assert (found.tzinfo, found.fold) == (value.tzinfo, value.fold)


def test_a_value_of_a_subclass_comes_back_as_a_plain_one() -> None:
    books = codec()
    back = books.decode(books.encode(b"", Request("http://a/", meta={"kind": Kind.NOVEL})).data)
    assert (type(back.meta["kind"]), back.meta["kind"]) == (str, "novel")


class Point(NamedTuple):
    x: int


def local_item() -> object:
    class Local(Item):
        pass

    return Local()


class NoOffset(tzinfo):
    def utcoffset(self, _: object) -> None:
        return None

    dst = tzname = utcoffset


REFUSED = {
    "object": object(),
    "tuple": Point(1),
    "function": open,
    "item": local_item(),
    "time": time(2, tzinfo=NoOffset()),
    "datetime": datetime(2026, 11, 24, tzinfo=NoOffset()),
}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_what_json_cannot_hold_is_refused_with_its_key(value: Any) -> None:
    books = codec()
    by_place: dict[str, dict[str, Any]] = {
        f"meta['value'] = {value!r}: ": {"meta": {"depth": 1, "value": value}},
        f"cb_kwargs['value'] = {value!r}: ": {"cb_kwargs": {"value": value}},
        f"flags = [{value!r}]: ": {"flags": [value]},
    }
    for named, fields in by_place.items():
        with pytest.raises(TypeError, match="^" + re.escape(named)):
            books.encode(b"", Request("http://a/", **fields))


class Search(Request):
    """A request with an attribute of its own, which Scrapy does not store."""

    def __init__(self, url: str, term: str = "", **fields: Any) -> None:
        super().__init__(url, **fields)
        self.term = term


class Page(Request):
    """A request whose constructor has other arguments."""

    def __init__(self, number: int) -> None:
        super().__init__(f"http://a/{number}")


@pytest.mark.parametrize("request_", [Search("http://a/", "b"), Page(1)], ids=["lost", "other"])
def test_a_class_of_requests_that_would_not_come_back_is_refused(request_: Request) -> None:
    with pytest.raises(TypeError, match=r"'term' is not among|unexpected keyword"):
        codec().encode(b"", request_)
    assert codec().decode(codec().encode(b"", Search("http://a/")).data).url == "http://a/"


class Api(Request):
    """A request with a default of its own."""

    def __init__(self, url: str, method: str = "POST", **fields: Any) -> None:
        super().__init__(url, method=method, **fields)


def test_only_what_a_request_has_of_its_own_is_stored() -> None:
    books = codec()
    plain = Request("http://a/", meta={"depth": 1}, callback=getattr(books._spider, "parse_book"))  # noqa: B009
    data = books.encode(b"", plain).data
    assert list(books._serializer.loads(data)) == ["url", "callback", "meta"]
    complete = books._serializer.dumps(plain.to_dict(spider=books._spider))
    for stored in (data, complete):
        copy = books.decode(stored)
        assert copy.to_dict(spider=books._spider) == plain.to_dict(spider=books._spider)
    assert books.decode(books.encode(b"", Api("http://a/", "GET")).data).method == "GET"


class Lazy(ModuleType):
    """A module that computes its attributes when they are read."""

    made: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        self.made.append(name)
        raise AttributeError(name)


UNKNOWN = (
    *("os.system", "subprocess.Popen", "builtins.eval", "scrapy.spiders.Spider"),
    *("antigravity.Request", "lazy.Request", "Request", "", "."),
    "tests.shared_crawl.test_codec.Search.__init__",
    "scrapy.http.request.form.FormRequest.attributes",
    "tests.shared_crawl.test_codec.Request",  # of another module
)


@pytest.mark.parametrize("path", UNKNOWN)
def test_nothing_is_imported_or_called_for_a_stored_class(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lazy", Lazy("lazy"))
    codec().decode(json.dumps({"url": "http://a/"}).encode())  # imports what any request needs
    before = set(sys.modules)
    stored = json.dumps({"url": "http://a/", "_class": path}).encode()
    with pytest.raises(UnknownClassError, match=re.escape(repr(path))):
        codec().decode(stored)
    assert set(sys.modules) == before
    assert "Request" not in Lazy.made


@pytest.mark.parametrize("of_class", [FormRequest, JsonRequest, XmlRpcRequest, Search])
def test_a_request_of_an_imported_class_comes_back(of_class: type[Request]) -> None:
    request = of_class("http://a/", meta={"value": 1})
    back = codec().decode(codec().encode(b"", request).data)
    assert (type(back), back.meta) == (of_class, {"value": 1})


def test_nothing_is_imported_for_a_stored_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "unimported").mkdir()
    (tmp_path / "unimported" / "items.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    stored = {"meta": {"item": {"=": "unimported.items:Book", "v": {}}}}
    with pytest.raises(UnknownClassError, match=r"'unimported\.items:Book' names no"):
        Serializer({"unimported"}).loads(json.dumps(stored).encode())


NO_METHODS = ("__init__", "__class__", "crawler", "logger.info", "parse_nothing", "3")


@pytest.mark.parametrize("field", ["callback", "errback"])
@pytest.mark.parametrize("name", NO_METHODS)
def test_a_stored_callback_is_a_method_of_the_spider(field: str, name: str) -> None:
    stored = json.dumps({"url": "http://a/", field: name}).encode()
    with pytest.raises(ValueError, match=f"{field} '{name}' is not a method of the spider"):
        codec().decode(stored)


OTHERS = ("scrapy.http:Request", "os:system", "tests.shared_crawl.test_codec:Kind")


@pytest.mark.parametrize("path", OTHERS)
def test_json_makes_no_other_objects_than_items_of_the_project(path: str) -> None:
    books = codec()
    data = books.encode(b"", Request("http://a/", meta={"value": Book()})).data
    ours = b"tests.shared_crawl.test_codec:Book"
    assert ours in data
    with pytest.raises(TypeError, match=re.escape(path)):
        books.decode(data.replace(ours, path.encode()))


def start_of(fields: dict[str, Any]) -> Request:
    return codec().start_of(json.dumps({"url": "http://a/find?old=1", **fields}))


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({"q": "red shoes", "page": 2}, "GET http://a/find?q=red+shoes&page=2 "),
        (
            {"method": "post", "q": "ü", "size": ["40", 41.5]},
            "POST http://a/find?old=1 q=%C3%BC&size=40&size=41.5",
        ),
    ],
)
def test_start_requests_in_users_key_have_forms_as_for_scrapy_redis(
    fields: dict[str, Any], sent: str
) -> None:
    request = start_of(fields)
    assert f"{request.method} {request.url} {request.body.decode()}" == sent
    assert (b"Content-Type" in request.headers) == (request.method == "POST")
    assert isinstance(request, FormRequest)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"q": {"nested": 1}}, "q = {'nested': 1}: allowed in a form are texts, numbers, lists"),
        ({"q": None}, "q = None: allowed in a form are texts, numbers, lists of them"),
        ({"q": "shoes", "body": "b"}, "}': 'body' and form fields (q) exclude each other"),
        ({"priority": 1.5}, "priority = 1.5: allowed is int"),
    ],
)
def test_a_field_that_a_start_request_cannot_have_is_named(
    fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        start_of({"method": "POST", **fields})


def test_duplicates_are_what_scrapy_takes_for_them() -> None:
    own = codec(REQUEST_FINGERPRINTER_CLASS=ByPath)
    urls = ("http://a/1", "http://b/1", "http://b/2")
    assert [own.encode(b"", Request(url)).fingerprint for url in urls] == [b"1", b"1", b"2"]


def test_the_class_of_a_filter_counts_if_it_is_scrapy_s(caplog: pytest.LogCaptureFixture) -> None:
    nothing = codec(DUPEFILTER_CLASS=BaseDupeFilter)
    assert nothing.encode(b"", Request("http://a/")).fingerprint == b""
    assert nothing.encode(b"", Request("http://a/"), is_listed=True).of_run
    assert not caplog.messages
    assert codec(DUPEFILTER_CLASS=OwnFilter).encode(b"", Request("http://a/")).fingerprint
    assert ["DUPEFILTER_CLASS" in line for line in caplog.messages] == [True]


class OwnFilter(RFPDupeFilter):
    """A project's own duplicate filter."""


OWN_JAR = {"meta": {"cookiejar": "s"}}


@pytest.mark.parametrize("begins", [{"method": "POST"}, {"cookies": {"id": "7"}}, OWN_JAR, {}])
def test_a_session_that_the_spider_begins_is_all_nodes_s(begins: dict[str, Any]) -> None:
    (one, here), (other, there) = ((each, cookies_of(each)) for each in (codec(), codec()))
    login = one.decode(one.encode(b"", Request("http://www.a.test/login", **begins)).data)
    here.process_request(login)
    here.process_response(login, Response(login.url, headers={"Set-Cookie": "id=7; Path=/"}))
    for url, is_of_session in {"http://www.a.test/in": True, "http://b.test/": False}.items():
        link = Request(url, meta=begins.get("meta"))
        request = other.decode(one.encode(b"", link).data)
        there.process_request(request)
        expected = b"id=7" if begins and is_of_session else None
        assert request.headers.get("Cookie") == expected


def cookies_of(books: Codec) -> CookiesMiddleware:
    crawler = books._spider.crawler
    middleware = build_from_crawler(CookiesMiddleware, crawler)
    crawler.get_downloader_middleware = lambda _: middleware  # type: ignore[assignment, method-assign, return-value]
    return middleware
