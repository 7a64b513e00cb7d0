"""Which semaphore a request takes: one for all spellings of a host, and what meta says of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response

from semaphore_middleware.scrapy.scopes import drop_scope_of_other_host, scope_finder
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
@pytest.mark.parametrize("mark", MARKS, ids=["skip", "scope"])
@pytest.mark.parametrize("way", ["redirect", "refresh"])
@asyncio_test
async def test_what_is_said_of_one_host_does_not_hold_for_the_one_it_redirects_to(
    server: RedisServer, site: Site, by: Mapping[str, Any], way: str, mark: dict[str, Any]
) -> None:
    urls = [site.url(f"/{way}//{OTHER}:{site.port}/slow/{n}", FIRST) for n in range(4)]
    requests = [Request(url, meta=mark) for url in urls]
    crawl = Crawl(server, *requests, by=by, SEMAPHORE_LIMITS={"another": 4})

    await until(lambda: site.hosts[OTHER].now and waiting(server))
    site.let_go()
    await crawl.finished()
    assert len(crawl.spider.responses) == 4
    assert site.hosts[OTHER].most == 1
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
@pytest.mark.parametrize("path", ["/status-once/503", "/redirect/page/"])
@asyncio_test
async def test_a_retry_and_a_redirect_on_the_same_host_keep_what_meta_says(
    server: RedisServer, site: Site, by: Mapping[str, Any], path: str
) -> None:
    request = Request(site.url(path), meta={"semaphore_skip": True})
    crawl = Crawl(server, request, by=by, SEMAPHORE_BACKOFF_CODES=[])

    await crawl.gave_back(0, site)
    assert len(site.arrivals) == 2


# What is not allowed ----------------------------------------------------------------------------

TEXT = "a text of 1 to 1000 characters"
BAD: list[tuple[dict[str, Any], str]] = [
    ({"semaphore_scope": 5}, f"meta['semaphore_scope'] = 5: allowed is {TEXT}"),
    ({"semaphore_scope": ""}, f"meta['semaphore_scope'] = '': allowed is {TEXT}"),
    ({"semaphore_scope": ["a", "b"]}, f"meta['semaphore_scope'] = ['a', 'b']: allowed is {TEXT}"),
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


@both
@asyncio_test
async def test_the_longest_scope_and_odd_ones_are_names(
    server: RedisServer, site: Site, by: Mapping[str, Any]
) -> None:
    names = ["x" * 1000, "a.b." * 250, " ", "\0\n", "\ud800", "😀" * 1000]
    requests = [
        Request(site.url(f"/page/{n}"), meta={"semaphore_scope": name})
        for n, name in enumerate(names)
    ]
    crawl = Crawl(server, *requests, by=by)
    await crawl.finished()
    assert crawl.stat("semaphore/acquired") == len(names)
    assert server.members() == {}


# Without a crawl --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "meta", "scope"),
    [
        ("http://A.Example.:8080/page", {}, "a.example"),
        ("http://a.example/", {"download_slot": "of the request before"}, "a.example"),
        ("http://a.example/", {"semaphore_scope": "any text"}, "any text"),
        ("http://a.example/", {"semaphore_skip": True}, None),
        ("http://a.example/", {"semaphore_skip": True, "semaphore_scope": "any text"}, None),
        ("data:,text", {}, None),
    ],
)
def test_a_request_s_scope_is_its_host_unless_its_meta_names_one(
    url: str, meta: dict[str, Any], scope: str | None
) -> None:
    assert scope_finder("host")(Request(url, meta=meta)) == scope


def test_hosts_of_one_registered_domain_share_a_scope_if_they_are_to() -> None:
    scope_of = scope_finder("registered_domain")
    assert scope_of(Request("http://www.example.co.uk/")) == "example.co.uk"
    assert scope_of(Request("http://127.1/")) == FIRST


@pytest.mark.parametrize("mark", MARKS, ids=["skip", "scope"])
def test_only_what_was_said_of_another_host_is_dropped(mark: dict[str, Any]) -> None:
    request = Request("http://a.example/", meta=mark)
    for url, meta, kept in (
        ("http://b.example/", mark, {}),
        ("http://a.example/other", mark, mark),
        ("http://b.example/", {"semaphore_scope": "chosen"}, {"semaphore_scope": "chosen"}),
    ):
        result = Request(url, meta=meta)
        assert drop_scope_of_other_host(result, request) is result
        assert result.meta == kept
    response = Response("http://b.example/")
    assert drop_scope_of_other_host(response, request) is response
