"""The scopes of a request: one for all spellings of a host, or the names in its meta."""

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from scrapy import Request

from semaphore_middleware import Limit, SettingsError
from semaphore_middleware.model.limits import LIMITLESS, parse_limits
from semaphore_middleware.scrapy.scopes import NO_SCOPES, ScopeFinder
from tests.support.crawls import Crawl, Log, waiting
from tests.support.nodes import eventually
from tests.support.servers import RedisServer
from tests.support.site import Site

FIRST, OTHER = "127.0.0.1", "localhost"

SPELLINGS = [
    *("127.0.0.1", "127.1", "0x7f000001", "2130706433", "0177.0.0.1", "127.0.0x1"),
    *("\uff11\uff12\uff17.0.0.1", "[::ffff:127.0.0.1]"),
]


async def test_spellings_of_an_address_are_one(server: RedisServer, site: Site) -> None:
    requests = [Request(site.url(f"/slow/{n}", host)) for n, host in enumerate(SPELLINGS)]
    # A limit holds for all spellings, too.
    crawl = Crawl(server, *requests, limit=8, SEMAPHORE_LIMITS={"127.1": 1})
    await eventually(lambda: server.members() == {"127.0.0.1": (1, 1)})
    await site.until(lambda: site.now == 1)
    assert len(site.arrivals) == 1
    await crawl.finished(site)
    assert len(site.arrivals) == len(SPELLINGS)
    assert crawl.stat("semaphore/acquired") == len(SPELLINGS)


async def test_a_redirect_to_another_host(server: RedisServer, site: Site) -> None:
    marks: list[dict[str, Any]] = [{"semaphore_skip": True}, {"semaphore_scope": "another"}]
    ways = [(way, mark) for way in ("redirect", "refresh") for mark in marks]
    requests = [
        Request(site.url(f"/{way}//{OTHER}:{site.port}/slow/{n}", FIRST), meta=mark)
        for n, (way, mark) in enumerate(ways)
    ]
    crawl = Crawl(server, *requests, SEMAPHORE_LIMITS={"another": 4})
    await eventually(lambda: site.hosts[OTHER].now and waiting(server))
    await crawl.finished(site)
    assert len(crawl.spider.responses) == 4
    assert site.hosts[OTHER].most == 1
    assert crawl.stat(f"semaphore/scope/{OTHER}/acquired") == 4
    assert server.members() == {}


class MovesToOther:
    """Sends requests of the first host to the other, with a scope of its own."""

    def process_request(self, request: Request) -> Request | None:
        url = request.url.replace(FIRST, OTHER)
        if url == request.url:
            return None
        return request.replace(url=url, meta={**request.meta, "semaphore_scope": "new"})


async def test_a_middleware_may_choose_the_scope(server: RedisServer, site: Site) -> None:
    request = Request(site.url("/slow/"), meta={"semaphore_scope": "old"})
    crawl = Crawl(server, request, middlewares={MovesToOther: 10})
    await eventually(lambda: server.members() == {"new": (1, 0)})
    await crawl.finished(site)


async def test_the_same_host_keeps_its_meta(server: RedisServer, site: Site) -> None:
    paths = ["/status-once/503", "/redirect/page/"]
    requests = [Request(site.url(path), meta={"semaphore_skip": True}) for path in paths]
    crawl = Crawl(server, *requests, limit=9, SEMAPHORE_BACKOFF_CODES=[])
    await crawl.gave_back(0, site)
    assert len(site.arrivals) == 4


TEXT = "a text of 1 to 1000 characters, no control characters, or a list of 1 to 10 of them"
BAD: list[tuple[dict[str, Any], str]] = [
    ({"semaphore_scope": 5}, f"meta['semaphore_scope'] = 5: allowed is {TEXT}"),
    ({"semaphore_scope": ""}, f"meta['semaphore_scope'] = '': allowed is {TEXT}"),
    ({"semaphore_scope": []}, f"meta['semaphore_scope'] = []: allowed is {TEXT}"),
    ({"semaphore_scope": ["a", 5]}, f"meta['semaphore_scope'] = ['a', 5]: allowed is {TEXT}"),
    ({"semaphore_scope": list("abcdefghijk")}, f"'k']: allowed is {TEXT}"),
    ({"semaphore_scope": "x" * 1001}, f"xxx': allowed is {TEXT}"),
    ({"semaphore_scope": "a\nb"}, f"'a\\nb': allowed is {TEXT}"),
    ({"semaphore_scope": "https://a.example/x"}, "give only the host: 'a.example'"),
    (
        {"semaphore_scope": ["API-A", "Example.COM"]},
        "'Example.COM': it looks like a host; write 'example.com'",
    ),
    ({"semaphore_skip": "False"}, "meta['semaphore_skip'] = 'False': allowed is True or False"),
]


DEFAULT = Limit(8, 1.0, 0.5)


def finder(*kinds: Any, limits: Mapping[str, Any] = MappingProxyType({})) -> ScopeFinder:
    return ScopeFinder(kinds, parse_limits(limits, {}, DEFAULT, kinds))


def names(request: Request, *kinds: Any, **limits: Any) -> tuple[str, ...]:
    scopes = finder(*(kinds or ("host",)), limits=limits).find_scopes(request).limits
    return tuple(name for name, _ in scopes)


def test_a_request_s_scope_is_its_host_unless_its_meta_names_one() -> None:
    scope, skip = {"semaphore_scope": "x" * 1000}, {"semaphore_skip": True}
    page = "http://A.Example.:80/page"
    for meta in ({}, {"download_slot": ""}):
        assert names(Request(page, meta=meta)) == ("a.example",)
    assert names(Request(page, meta=scope)) == ("x" * 1000,)
    assert names(Request(page, meta=skip)) == names(Request(page, meta={**skip, **scope})) == ()
    assert names(Request("data:,text")) == names(Request("file://localhost/etc/hosts")) == ()
    assert names(Request("http://www.example.co.uk/"), "domain") == ("domain:example.co.uk",)
    assert names(Request("http://127.1/"), "domain") == (f"domain:{FIRST}",)


@pytest.mark.parametrize(("meta", "said"), BAD)
def test_meta_that_is_not_allowed_fails_the_request(meta: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(said)):
        finder("host").find_scopes(Request("http://a/", meta=meta))


def test_a_limit_of_a_host_that_does_not_hold_below_it_is_a_warning(caplog: Log) -> None:
    limits = {"b.example": 2, "api.c.example": 1, "c.example": 3, "*.d.example": 4, "d.example": 4}
    asked = finder("host", limits={**limits, "x.b.example": 5})
    for host in (
        *("b.example", "x.b.example", "www.b.example", "a.b.b.example", "example", "b.c"),
        *("c.example", "api.c.example", "www.d.example", "d.example"),
    ):
        asked.find_scopes(Request(f"http://{host}/"))
    (line,) = caplog.messages
    assert line == (
        "www.b.example has the default limit: SEMAPHORE_LIMITS['b.example'] is for that host "
        "alone. Name '*.b.example', too, for all hosts below it, or 'www.b.example' for this one."
    )


EVERY = {"domain:*": 5, "proxy:*": 4, "all": {"rate": "100/s"}, "shop": 2, "a.example.org": 3}


def by_path(request: Request) -> list[str] | None:
    return ["shop", "a.example.org"] if request.url.endswith("/shop") else None


def test_scopes_are_taken_in_one_order_whatever_the_settings_say() -> None:
    request = Request("http://A.Example.org./shop", meta={"proxy": "http://u:p@Proxy.Example:3128"})
    for kinds in (("host", "domain", "proxy", "all", by_path), (by_path, "all", "host", "domain")):
        asked = finder(*kinds, limits=EVERY)
        via, proxy = "via:proxy.example:3128 a.example.org", "proxy:proxy.example:3128"
        order = [via, "shop", "a.example.org", "domain:example.org", proxy, "all"]
        found = [name for name, _ in asked.find_scopes(request).limits]
        assert found == [name for name in order if "proxy" in kinds or "proxy" not in name]
    mixed = Request("http://b/", meta={"semaphore_scope": ["all", "domain:x", "b.c", "x y", "b.a"]})
    every = {**EVERY, "domain:x": 1}
    found = [name for name, _ in finder("all", limits=every).find_scopes(mixed).limits]
    assert found == ["x y", "b.a", "b.c", "domain:x", "all"]


def test_the_default_limit_is_that_of_the_first_kind() -> None:
    def found(request: Request, *kinds: Any) -> dict[str, Limit]:
        return dict(finder(*kinds).find_scopes(request).limits)

    page = Request("http://www.example.org/shop")
    assert found(page, "host", "domain", "all", by_path) == {"www.example.org": DEFAULT}
    assert found(page, "domain", "host") == {"domain:example.org": DEFAULT}
    assert found(page, by_path, "host") == {"shop": DEFAULT, "a.example.org": DEFAULT}
    in_meta = page.replace(meta={"semaphore_scope": ("my own", "domain:example.org", "all")})
    assert found(in_meta, "host", "all") == {"my own": DEFAULT}
    assert found(in_meta, "all", "host") == {"my own": DEFAULT, "all": DEFAULT}


def test_of_limits_of_other_kinds_parts_that_are_left_out_are_open() -> None:
    limits = {"all": {"rate": "10/s"}, "domain:Example.org": 5, "domain:*": {"delay": 2}}
    every = finder("host", "domain", "all", limits=limits)
    found = dict(every.find_scopes(Request("http://example.org")).limits)
    assert found["example.org"] == DEFAULT
    assert found["domain:example.org"] == Limit(5, 0.0, 0.5)
    assert found["all"] == Limit(LIMITLESS, 0.0, 0.5, rate="10/s")
    other = dict(
        finder("host", "domain", limits=limits).find_scopes(Request("http://a.example")).limits
    )
    assert other["domain:a.example"] == Limit(LIMITLESS, 2.0, 0.5)


def test_of_limits_of_names_and_hosts_parts_that_are_left_out_are_the_default_s() -> None:
    limits = {"shop": {"rate": "10/m"}, "a.example.org": {"delay": 2}}
    every = finder("all", "host", by_path, limits=limits)
    found = dict(every.find_scopes(Request("http://a.example.org/shop")).limits)
    assert found["shop"] == replace(DEFAULT, rate="10/m")
    assert found["a.example.org"] == replace(DEFAULT, delay=2.0)


def test_a_proxy_is_its_host_and_port() -> None:
    proxies = {
        "http://user:secret@10.0.0.1:3128": "10.0.0.1:3128",
        "10.0.0.1:3128": "10.0.0.1:3128",
        "https://Proxy.Example": "proxy.example:443",
        "http://proxy.example/": "proxy.example:80",
        "socks5://[::1]": "[::1]:1080",
    }
    for proxy, scope in proxies.items():
        request = Request("http://a.example/", meta={"proxy": proxy})
        assert names(request, "proxy") == (f"proxy:{scope}",)
    for nonsense in ("http://proxy.example:port", None, "", 7):
        assert names(Request("http://a.example/", meta={"proxy": nonsense}), "proxy") == ()


@pytest.mark.parametrize("given", [5, "", ["a", None], b"a", ["x"] * 11, ["x" * 1001], [["a"]]])
def test_a_function_that_returns_nonsense_fails_the_request(given: Any) -> None:
    def returns(_: Request) -> Any:
        return given

    request = Request("http://a.example/1")
    with pytest.raises(SettingsError, match=r"returns in SEM.*allowed"):
        finder("host", returns).find_scopes(request)
    assert finder("host", returns).scopes_of(request) == NO_SCOPES
