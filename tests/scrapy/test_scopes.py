"""Which semaphore a request takes: one for all spellings of a host, and what meta says of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from scrapy import Request
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response

from semaphore_middleware import Limit, SettingsError
from semaphore_middleware.model.limits import LIMITLESS, parse_limits
from semaphore_middleware.scrapy.scopes import ScopeFinder
from tests.support.crawls import Crawl, asyncio_test, both, until, waiting
from tests.support.servers import RedisServer
from tests.support.site import Site
from tests.support.visits import Visits

FIRST, OTHER = "127.0.0.1", "localhost"

# Spellings --------------------------------------------------------------------------------------

SPELLINGS = [
    "127.0.0.1",
    "127.1",
    "0x7f000001",
    "2130706433",
    "0177.0.0.1",
    "127.0.0x1",
    "\uff11\uff12\uff17.0.0.1",
    "[::ffff:127.0.0.1]",
]


@asyncio_test
async def test_all_spellings_of_an_address_share_one_semaphore(
    server: RedisServer, site: Site
) -> None:
    requests = [Request(site.url(f"/slow/{n}", host)) for n, host in enumerate(SPELLINGS)]
    # A limit holds for all spellings, too.
    crawl = Crawl(server, *requests, limit=8, SEMAPHORE_LIMITS={"127.1": 1})

    await until(lambda: server.members() == {"127.0.0.1": (1, 1)})
    await site.until(lambda: site.now == 1)
    assert len(site.arrivals) == 1
    site.let_go()
    await crawl.finished()
    assert len(site.arrivals) == len(SPELLINGS)
    assert crawl.stat("semaphore/acquired") == len(SPELLINGS)


# Redirects --------------------------------------------------------------------------------------

MARKS: list[dict[str, Any]] = [{"semaphore_skip": True}, {"semaphore_scope": "another"}]


@both
@asyncio_test
async def test_what_is_said_of_one_host_does_not_hold_for_the_one_it_redirects_to(
    server: RedisServer, site: Site, by: Mapping[str, Any]
) -> None:
    ways = [(way, mark) for way in ("redirect", "refresh") for mark in MARKS]
    requests = [
        Request(site.url(f"/{way}//{OTHER}:{site.port}/slow/{n}", FIRST), meta=mark)
        for n, (way, mark) in enumerate(ways)
    ]
    crawl = Crawl(server, *requests, by=by, SEMAPHORE_LIMITS={"another": 4})

    await until(lambda: site.hosts[OTHER].now and waiting(server))
    site.let_go()
    await crawl.finished()
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


@both
@asyncio_test
async def test_a_middleware_may_choose_the_scope_of_the_request_that_it_returns(
    server: RedisServer, site: Site, by: Mapping[str, Any]
) -> None:
    request = Request(site.url("/slow/"), meta={"semaphore_scope": "old"})
    crawl = Crawl(server, request, by=by, middlewares={MovesToOther: 10})

    await until(lambda: server.members() == {"new": (1, 0)})
    site.let_go()
    await crawl.finished()


@both
@asyncio_test
async def test_a_retry_and_a_redirect_on_the_same_host_keep_what_meta_says(
    server: RedisServer, site: Site, by: Mapping[str, Any]
) -> None:
    paths = ["/status-once/503", "/redirect/page/"]
    requests = [Request(site.url(path), meta={"semaphore_skip": True}) for path in paths]
    crawl = Crawl(server, *requests, by=by, limit=9, SEMAPHORE_BACKOFF_CODES=[])

    await crawl.gave_back(0, site)
    assert len(site.arrivals) == 4


# What is not allowed ----------------------------------------------------------------------------

TEXT = "a text of 1 to 1000 characters, or a list of 1 to 10 of them"
BAD: list[tuple[dict[str, Any], str]] = [
    ({"semaphore_scope": 5}, f"meta['semaphore_scope'] = 5: allowed is {TEXT}"),
    ({"semaphore_scope": ""}, f"meta['semaphore_scope'] = '': allowed is {TEXT}"),
    ({"semaphore_scope": []}, f"meta['semaphore_scope'] = []: allowed is {TEXT}"),
    ({"semaphore_scope": ["a", 5]}, f"meta['semaphore_scope'] = ['a', 5]: allowed is {TEXT}"),
    ({"semaphore_scope": list("abcdefghijk")}, f"'k']: allowed is {TEXT}"),
    ({"semaphore_scope": "x" * 1001}, f"xxx': allowed is {TEXT}"),
    ({"semaphore_skip": "False"}, "meta['semaphore_skip'] = 'False': allowed is True or False"),
]


class Fetches(Visits):
    """Fetches its requests past the scheduler."""

    async def parse(self, response: Response) -> Any:  # noqa: ARG002 - a callback's
        for request in self.settings.get("FETCHED"):
            try:
                assert self.crawler.engine is not None
                await self.crawler.engine.download_async(request)
            except IgnoreRequest as error:
                self.failures.append(error)


@both
@asyncio_test
async def test_requests_whose_meta_is_not_allowed_fail_alone(
    server: RedisServer,
    site: Site,
    by: Mapping[str, Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad = [Request(site.url(f"/page/bad/{n}"), meta=meta) for n, (meta, _) in enumerate(BAD)]
    good = [Request(site.url(f"/page/{n}")) for n in range(2)]
    crawl = Crawl(
        server, good[0], *bad, good[1], by=by, spider=Fetches, FETCHED=bad, JOBDIR=tmp_path
    )

    await crawl.gave_back(2, site)
    assert sorted(site.arrivals) == ["/page/0", "/page/1"]
    failed = [str(failure) for failure in crawl.spider.failures]
    assert len(failed) == 3 * len(bad)  # by its errback, and in the two callbacks that fetch it
    for request, (_, text) in zip(bad, BAD, strict=True):
        lines = [line for line in failed if line.startswith(f"{request}: ")]
        assert len(lines) == 3
        assert all(text in line for line in lines)
    errors = [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert sorted(r.getMessage() for r in errors) == sorted(failed)
    assert not [r for r in errors if r.exc_info]


@asyncio_test
async def test_the_longest_scope_and_odd_ones_are_names(server: RedisServer, site: Site) -> None:
    names = ["x" * 1000, "a.b." * 250, " ", "\0\n", "\ud800", "😀" * 1000]
    requests = [
        Request(site.url(f"/page/{n}"), meta={"semaphore_scope": name})
        for n, name in enumerate(names)
    ]
    await Crawl(server, *requests, limit=len(names)).gave_back(len(names), site)


# Without a crawl --------------------------------------------------------------------------------


DEFAULT = Limit(8, 1.0, 0.5)


def finder(*kinds: Any, limits: Mapping[str, Any] = MappingProxyType({})) -> ScopeFinder:
    first = kinds[0] if isinstance(kinds[0], str) else "name"
    return ScopeFinder(kinds, parse_limits(limits, {}, DEFAULT, "SEMAPHORE_LIMITS", first))


def names(request: Request, *kinds: Any, **limits: Any) -> tuple[str, ...]:
    scopes = finder(*(kinds or ("host",)), limits=limits).find(request)
    return tuple(name for name, _ in scopes)


@pytest.mark.parametrize(
    ("url", "meta", "scope"),
    [
        ("http://A.Example.:8080/page", {}, "a.example"),
        ("http://a.example/", {"download_slot": "of the request before"}, "a.example"),
        ("http://a.example/", {"semaphore_scope": "any text"}, "any text"),
        ("http://a.example/", {"semaphore_skip": True}, None),
        ("http://a.example/", {"semaphore_skip": True, "semaphore_scope": "any text"}, None),
        ("data:,text", {}, None),
        ("file://localhost/etc/hosts", {}, None),
    ],
)
def test_a_request_s_scope_is_its_host_unless_its_meta_names_one(
    url: str, meta: dict[str, Any], scope: str | None
) -> None:
    assert names(Request(url, meta=meta)) == (() if scope is None else (scope,))


def test_hosts_of_one_registered_domain_share_a_scope_if_they_are_to() -> None:
    assert names(Request("http://www.example.co.uk/"), "domain") == ("domain:example.co.uk",)
    assert names(Request("http://127.1/"), "domain") == (f"domain:{FIRST}",)


# Several ----------------------------------------------------------------------------------------

EVERY = {"domain:*": 5, "proxy:*": 4, "all": {"rate": "100/s"}, "shop": 2, "a.example.org": 3}


def by_path(request: Request) -> list[str] | None:
    return ["shop", "a.example.org"] if request.url.endswith("/shop") else None


def test_scopes_are_taken_in_one_order_whatever_the_settings_say() -> None:
    request = Request("http://A.Example.org./shop", meta={"proxy": "http://u:p@Proxy.Example:3128"})
    for kinds in (("host", "domain", "proxy", "all", by_path), (by_path, "all", "host", "domain")):
        asked = finder(*kinds, limits=EVERY)
        order = ["shop", "a.example.org", "domain:example.org", "proxy:proxy.example:3128", "all"]
        found = [name for name, _ in asked.find(request)]
        assert found == [name for name in order if "proxy" in kinds or "proxy" not in name]
    mixed = Request("http://b/", meta={"semaphore_scope": ["all", "domain:x", "b.c", "x y", "b.a"]})
    every = {**EVERY, "domain:x": 1}
    found = [name for name, _ in finder("all", limits=every).find(mixed)]
    assert found == ["x y", "b.a", "b.c", "domain:x", "all"]


def test_the_default_limit_is_that_of_the_first_kind() -> None:
    page = Request("http://www.example.org/shop")
    assert dict(finder("host", "domain", "all", by_path).find(page)) == {"www.example.org": DEFAULT}
    assert dict(finder("domain", "host").find(page)) == {"domain:example.org": DEFAULT}
    assert dict(finder(by_path, "host").find(page)) == {"shop": DEFAULT, "a.example.org": DEFAULT}
    in_meta = page.replace(meta={"semaphore_scope": ("my own", "domain:example.org", "all")})
    assert dict(finder("host", "all").find(in_meta)) == {"my own": DEFAULT}
    assert dict(finder("all", "host").find(in_meta)) == {"my own": DEFAULT, "all": DEFAULT}


def test_of_limits_of_other_kinds_parts_that_are_left_out_are_open() -> None:
    limits = {"all": {"rate": "10/s"}, "domain:Example.org": 5, "domain:*": {"delay": 2}}
    found = dict(finder("host", "domain", "all", limits=limits).find(Request("http://example.org")))
    assert found["example.org"] == DEFAULT
    assert found["domain:example.org"] == Limit(5, 0.0, 0.5)
    assert found["all"] == Limit(LIMITLESS, 0.0, 0.5, rate="10/s")
    other = dict(finder("host", "domain", limits=limits).find(Request("http://a.example")))
    assert other["domain:a.example"] == Limit(LIMITLESS, 2.0, 0.5)


@pytest.mark.parametrize(
    ("proxy", "scope"),
    [
        ("http://user:secret@10.0.0.1:3128", "proxy:10.0.0.1:3128"),
        ("10.0.0.1:3128", "proxy:10.0.0.1:3128"),
        ("https://Proxy.Example", "proxy:proxy.example:443"),
        ("http://proxy.example/", "proxy:proxy.example:80"),
        ("socks5://[::1]", "proxy:[::1]:1080"),
        ("http://proxy.example:port", None),
        (None, None),
        ("", None),
        (7, None),
    ],
)
def test_a_proxy_is_its_host_and_port(proxy: Any, scope: str | None) -> None:
    request = Request("http://a.example/", meta={"proxy": proxy})
    assert names(request, "proxy") == (() if scope is None else (scope,))


@pytest.mark.parametrize("given", [5, "", ["a", None], b"a", ["x"] * 11, ["x" * 1001], [["a"]]])
def test_a_function_that_returns_nonsense_fails_the_request(given: Any) -> None:
    def returns(_: Request) -> Any:
        return given

    request = Request("http://a.example/1")
    with pytest.raises(
        SettingsError, match=r"^<GET http://a.example/1>: .*returns in SEM.*allowed"
    ):
        finder("host", returns).find(request)
    assert finder("host", returns).scopes_of(request) == ()
