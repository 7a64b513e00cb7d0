"""`scrapy semaphore check`: whether a crawl could start, and the limits of a URL."""

import json
import zlib
from typing import Any

import pytest

from semaphore_middleware.link import embedded
from semaphore_middleware.model.feedback import FeedbackSummary
from semaphore_middleware.model.limits import Limit
from semaphore_middleware.operators.admin import Admin
from tests.support.cli import SITE, Ran, semaphore
from tests.support.crawls import Patch
from tests.support.nodes import KEYS, Caller, Outside
from tests.support.servers import RedisServer

ERROR = "scrapy semaphore: "
JITTER = "Scrapy's default of DOWNLOAD_DELAY_JITTER"


async def check(server: RedisServer | str | None, *words: str, **settings: Any) -> Ran:
    given = [text for name, value in settings.items() for text in ("-s", f"{name}={value}")]
    return await semaphore(server, "check", *words, *given)


async def test_each_part_of_a_limit_has_its_source_and_nothing_changes(
    server: RedisServer, outside: Outside
) -> None:
    other = await Caller.join(server, "strict-0123456789ab")
    await other.take(SITE, limit=Limit(4, rate="30/m"))
    async with Admin(server.url, name="alice@desk") as operator:
        await operator.configure("*.org", {"concurrency": 2})
        await operator.pause("*.museum")
    limits = json.dumps({f"*.{SITE.partition('.')[2]}": {"concurrency": 3, "adaptive": True}})
    before = outside.dump()
    ran = await check(server, f"https://{SITE}/page", SEMAPHORE_LIMITS=limits, DOWNLOAD_DELAY=1.5)
    pattern = f"SEMAPHORE_LIMITS['*.{SITE.partition('.')[2]}']"
    assert (ran.status, ran.err) == (0, "")
    assert ran.lines == [
        f"server: {server.url} (from SEMAPHORE_REDIS_URL in the environment)",
        "  reachable, and permits what a crawl needs",
        "",
        f"https://{SITE}/page",
        f"  {SITE}",
        "    limit 2            rule for *.org, set by alice@desk",
        f"    delay 1.5 s ±50 %  DOWNLOAD_DELAY on the command line; ±: {JITTER}",
        f"    adaptive           {pattern}",
        "    rate 30/m          asked for by strict",
    ]
    assert outside.dump() == before
    ran = await check(server, "a.museum")
    assert ran.lines[-1] == "    paused   rule for *.museum, set by alice@desk"


async def test_what_a_site_asks_for_is_named(server: RedisServer) -> None:
    caller = await Caller.join(server, "one")
    await caller.take(SITE)
    await caller.give_back(SITE, feedback=FeedbackSummary(refused=1, retry_after=60))
    file = b'[200, "", 0]\n' + zlib.compress(b"User-agent: *\nCrawl-delay: 7")
    with server.client() as client:
        client.set(KEYS.cached(f"robotstxt:http://{SITE}"), file, ex=1000)
    ran = await check(server, f"http://{SITE}/", ROBOTSTXT_OBEY=True)
    assert "    delay 7 s  Crawl-delay in its robots.txt" in ran.lines
    assert ran.lines[-1].startswith("    backoff    The site refused a request, ")


async def test_it_ends_as_a_crawl_does_with_status_1(
    server: RedisServer, monkeypatch: Patch
) -> None:
    limits = '{"a.example": {"concurency": 3}}'
    wrong = f"{ERROR}SEMAPHORE_LIMITS['a.example']: unknown key 'concurency'; did you mean"
    ran = await check(server, SEMAPHORE_LIMITS=limits)
    assert (ran.status, ran.err.startswith(wrong)) == (1, True)
    ran = await check(server, CONCURRENT_REQUESTS_PER_IP=1)
    assert (ran.status, ran.err.startswith(f"{ERROR}CONCURRENT_REQUESTS_PER_IP")) == (1, True)
    with monkeypatch.context() as patch:
        patch.setattr("semaphore_middleware.scrapy.check.SERVER_TIMEOUT_S", 0.1)
        ran = await check("unix:///nowhere")
    assert (ran.status, ran.err.startswith(f"{ERROR}cannot reach unix:///nowhere: ")) == (1, True)
    with server.client() as client:
        rights = ["+@all", "-hset"]
        client.acl_setuser(
            "poor", enabled=True, nopass=True, keys="*", channels="*", commands=rights
        )
        assert (await check(server)).status == 0
    ran = await check(server.url.replace("unix://", "unix://poor:any@"))
    denied = "does not permit the user 'poor' what is needed: HSET in scripts"
    assert (ran.status, denied in ran.err) == (1, True)
    await (await Caller.join(server, "other")).take(SITE)
    with server.client() as client:
        client.hset(KEYS.epoch, "version", "9")
    ran = await check(server)
    assert (ran.status, "nodes of another version of this package" in ran.err) == (1, True)


@pytest.mark.parametrize("url", ["htp://a.example/", "https://exa mple.com/", "http://["])
async def test_what_is_no_url_is_refused(url: str) -> None:
    ran = await check(None, url)
    assert (ran.status, f"{url!r} is no URL like https://" in ran.err) == (2, True)


@pytest.mark.parametrize("url", ["data:,a page", "file:///page", "file://localhost/", "ftp:///x"])
async def test_a_url_whose_request_takes_no_permit_is_refused(url: str) -> None:
    refused = f"{ERROR}a request for {url!r} takes no permit, as it goes to no site\n"
    assert await check(None, url) == (2, "", refused)


async def test_a_server_that_evicts_or_is_new_is_a_warning(
    server: RedisServer, outside: Outside
) -> None:
    with server.client() as client:
        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", "allkeys-lru")
        client.delete(KEYS.epoch)
        before = outside.dump()
        ran = await check(server, SEMAPHORE_RECOVERY_WAIT=9)
        assert outside.dump() == before
    assert ran.status == 0
    evicts, new = ran.lines[-2:]
    assert evicts.endswith("for 9.0 s afterwards: set its maxmemory-policy to noeviction.")
    assert new.startswith(f"warning: {server.url} is new, or may have lost its data (prefix")


@pytest.mark.parametrize("scheme", ["http", "ftp", "s3"])
async def test_an_embedded_server_is_not_started(monkeypatch: Patch, scheme: str) -> None:
    monkeypatch.setattr(embedded, "find", lambda: None)
    ran = await check(None, f"{scheme}://a.example/")
    assert ran.lines == [
        "server: the embedded one, which a crawl starts",
        "",
        f"{scheme}://a.example/",
        "  a.example",
        "    limit 8  Scrapy's default of CONCURRENT_REQUESTS_PER_DOMAIN",
    ]
