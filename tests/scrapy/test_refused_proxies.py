"""A refusal through one proxy pauses the site through this proxy, and not through others."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from scrapy import Request
from scrapy.http import Response

from semaphore_middleware.scrapy.refused_proxies import REMEMBERED_S
from tests.support.crawls import Crawl, Log, more_hosts
from tests.support.servers import RedisServer
from tests.support.site import Site
from tests.support.visits import Visits

HOST = "shop.invalid"
STEP_BY_STEP: dict[str, Any] = {
    "SEMAPHORE_SCOPES": ["host", "proxy"],
    "SEMAPHORE_BACKOFF_START": 600,
    "SEMAPHORE_BACKOFF_MAX": 600,
    "RETRY_HTTP_CODES": [500],
    "HTTPERROR_ALLOW_ALL": True,
}


class StepByStep(Visits):
    """Makes one request after another, and gets refusals in its callback."""

    async def start(self) -> AsyncIterator[Any]:
        self.steps = iter(self.requests)
        yield next(self.steps)

    async def parse(self, response: Response) -> Any:
        await super().parse(response)
        for request in self.steps:
            yield request
            break


def pauses(caplog: Log) -> list[str]:
    """The scopes at which all nodes pause."""
    said = [text for text in caplog.messages if "all nodes pause there for 600 s" in text]
    return [text.partition(" answered ")[0] for text in said]


@pytest.mark.parametrize(
    ("steps", "headers", "paused"),
    [
        ("busy 1, page 2, page 2", {}, ["via 1"]),
        ("page 2, busy 1, busy 2", {}, ["via 1", "site"]),
        ("busy 1, page 2, busy 2", {}, ["via 1", "via 2"]),  # good answers contradict
        ("busy 1", {"Retry-After": "1000"}, ["site"]),
        ("busy 0", {}, ["site"]),  # without a proxy
    ],
)
async def test_the_scope_that_pauses(
    server: RedisServer,
    site: Site,
    caplog: Log,
    steps: str,
    headers: dict[str, str],
    paused: list[str],
) -> None:
    caplog.set_level(logging.INFO)
    proxies = [f"{host}:{site.port}" for host in await more_hosts(site, 3)]
    site.refusals, site.refusal_headers = None, headers
    requests = []
    for number, step in enumerate(steps.split(", ")):
        kind, proxy = step.split()
        url = site.url(f"/{kind}/{number}") if proxy == "0" else f"http://{HOST}/{kind}/{number}"
        meta = {} if proxy == "0" else {"proxy": f"http://{proxies[int(proxy)]}"}
        requests.append(Request(url, meta=meta))
    crawl = Crawl(server, *requests, spider=StepByStep, **STEP_BY_STEP)
    await crawl.finished()
    assert len(crawl.spider.responses) == len(requests), "none waits for another proxy's pause"
    name = "127.0.0.1" if steps == "busy 0" else HOST
    of = {"site": name} | {f"via {n}": f"via:{proxies[n]} {HOST}" for n in (1, 2)}
    assert pauses(caplog) == [of[scope] for scope in paused]
    assert server.members() == {}


async def test_none_starts_through_a_refused_proxy(server: RedisServer, site: Site) -> None:
    bad, good = [f"http://{host}:{site.port}" for host in await more_hosts(site, 2)]
    site.refusals = None
    requests = [
        Request(f"http://{HOST}/busy/{n}", meta={"proxy": bad}, priority=1) for n in range(9)
    ] + [Request(f"http://{HOST}/page/{n}", meta={"proxy": good}) for n in range(9)]
    crawl = Crawl(server, *requests, limit=2, **STEP_BY_STEP)
    await site.until(lambda: sum("page" in path for path in site.arrivals) == 9)
    assert len(site.refused_at) <= 2, "those that were open"
    await crawl.crawler.stop_async()
    await crawl.finished()
    assert server.members() == {}


async def test_another_node_s_proxy_is_a_second_one(
    server: RedisServer, site: Site, caplog: Log
) -> None:
    caplog.set_level(logging.INFO)
    proxies = [f"{host}:{site.port}" for host in await more_hosts(site, 2)]
    site.refusals = None
    for proxy in proxies:
        request = Request(f"http://{HOST}/busy/", meta={"proxy": f"http://{proxy}"})
        await Crawl(server, request, spider=StepByStep, **STEP_BY_STEP).finished()
    assert pauses(caplog) == [f"via:{proxies[0]} {HOST}", HOST]
    with server.client() as client:
        (key,) = client.keys("*:refused:*")
        assert REMEMBERED_S - 60 < client.ttl(key) <= REMEMBERED_S


@pytest.mark.parametrize("is_limited", [True, False])
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_407_is_the_proxy_s(
    server: RedisServer, caplog: Log, scheme: str, is_limited: bool
) -> None:
    caplog.set_level(logging.INFO)

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as proxy:
        address = f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        request = Request(f"{scheme}://{HOST}/", meta={"proxy": f"http://{address}"})
        settings = STEP_BY_STEP | {"RETRY_ENABLED": False}
        settings["SEMAPHORE_LIMITS"] = {"proxy:*": 2} if is_limited else {}
        crawl = Crawl(server, request, spider=StepByStep, **settings)
        await crawl.finished()
    assert len(crawl.spider.responses) == (scheme == "http")
    assert pauses(caplog) == [f"proxy:{address}" if is_limited else f"via:{address} {HOST}"]
