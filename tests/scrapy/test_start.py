"""How a crawl starts, and what it logs. If it cannot: one line in the log, and exit status 1."""

import asyncio
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from scrapy import Request
from scrapy.crawler import Crawler

from semaphore_middleware.errors import ClosedError, SettingsError
from semaphore_middleware.scrapy.crawl import crawl_of as the_crawl_of
from tests.support.crawls import ADD_ON, ALONE, By, Crawl, Log, both, errors, scrapy
from tests.support.nodes import eventually
from tests.support.servers import RedisServer, free_port
from tests.support.site import Site
from tests.support.visits import Visits

SHARED = "shares its limits with all nodes"
NOWHERE = "unix:///nowhere"
SOON_S = 1.5  # long enough, even on a busy machine, to find no server
PASSWORD = "s3cr/t@w0rd"
ENCODED = "s3cr%2Ft%40w0rd"
PARTS = ("s3cr", "w0rd")  # of the password, however it is encoded


def assert_no_password(log: str) -> None:
    assert log
    assert not [part for part in PARTS if part in log]


@pytest.fixture
def locked() -> Iterator[RedisServer]:
    """A server that asks for the password."""
    server = RedisServer("--requirepass", PASSWORD, tcp_port=free_port()).start()
    yield server
    server.remove()


def crawl_of(server: RedisServer, site: Site, **settings: Any) -> Crawl:
    return Crawl(server, Request(site.url("/page/")), **settings)


@both
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SEMAPHORE_LIMITS", {"www.*": 2}),
        ("SEMAPHORE_ENABLED", "maybe"),
        ("SEMAPHORE_REDIS_URL", "redis://:2025/w0rd@localhost:6379/0"),  # as if port 2025
        ("SEMAPHORE_METRICS", "a..example:9410"),
        ("CONCURRENT_REQUESTS_PER_DOMAIN", 0),
    ],
)
async def test_bad_settings_end_a_crawl_before_the_first_request(
    server: RedisServer, site: Site, caplog: Log, by: By, name: str, value: object
) -> None:
    caplog.set_level("DEBUG")
    bad: dict[str, Any] = {name: value}
    with pytest.raises(SettingsError, match=name) as raised:
        await crawl_of(server, site, by=by, **bad).finished()
    assert site.arrivals == []
    assert_no_password(f"{raised.value!r}\n{caplog.text}")
    [error] = errors(caplog)
    assert re.search("allowed|check its|may only", error)


@both
@pytest.mark.parametrize("name", ["n" * 101, "line\nbreak"])
async def test_a_spider_whose_name_can_be_no_job(
    server: RedisServer, site: Site, caplog: Log, by: By, name: str
) -> None:
    named: dict[str, Any] = {"by": by, "spider": type("Named", (Visits,), {"name": name})}
    said = r"^the spider's name \(its job unless SEMAPHORE_JOB is set\) = '.*: allowed is a text"
    with pytest.raises(SettingsError, match=said):
        await crawl_of(server, site, **named).finished()
    [_] = errors(caplog)
    # The node is named after the spider, too.
    ours = {"SEMAPHORE_JOB": "one", "SEMAPHORE_NODE": "one"}
    await crawl_of(server, site, **named, **ours).finished()
    assert site.arrivals == ["/page/"]


SELECT = ("-s", "TWISTED_REACTOR=twisted.internet.selectreactor.SelectReactor")


@pytest.mark.parametrize(
    ("options", "settings", "said"),
    [
        ((), {**ADD_ON, "SEMAPHORE_LIMITS": {"a.example": 1.5}}, "SEMAPHORE_LIMITS.*allowed is"),
        ((), {**ADD_ON, "DOWNLOADER": "scrapy.Spider"}, "DOWNLOADER = 'scrapy.Spider': allowed is"),
        # Scrapy adds a traceback of its own: without asyncio nothing can keep it from that.
        (SELECT, ADD_ON, "TWISTED_REACTOR: the semaphore needs asyncio; allowed is"),
        *(((), by, "the embedded server cannot be used: ") for by in (ADD_ON, ALONE)),
    ],
    ids=["settings", "components", "reactor", "embedded server", "middleware alone"],
)
async def test_what_is_not_allowed_ends_a_process_with_status_1(
    site: Site,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    settings: dict[str, Any],
    said: str,
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SEMAPHORE_EMBEDDED_DIRECTORY", str(tmp_path / "file"))
    async with scrapy(tmp_path, Request(site.url("/page/")), options=options, **settings) as crawl:
        assert await crawl.ended() == 1
    assert re.search(said, crawl.errors[0])
    assert options or (len(crawl.errors) == 1 and "Traceback" not in crawl.log)
    assert site.arrivals == []


@both
async def test_everything_is_off(server: RedisServer, site: Site, caplog: Log, by: By) -> None:
    caplog.set_level("INFO")
    off: dict[str, Any] = {"SEMAPHORE_ENABLED": False, "SEMAPHORE_REDIS_URL": NOWHERE}
    crawl = crawl_of(server, site, by=by, **off)
    await crawl.finished()
    assert "SEMAPHORE_ENABLED is off" in caplog.text
    assert not [name for name in crawl.crawler.stats.get_stats() if "semaphore" in name]
    assert site.arrivals == ["/page/"]


async def test_the_log_names_a_prefix_of_its_own(
    server: RedisServer, site: Site, caplog: Log
) -> None:
    caplog.set_level("INFO")
    settings = {"SEMAPHORE_PREFIX": "other", "SEMAPHORE_RECOVERY_WAIT": 0}
    await crawl_of(server, site, **settings).finished()
    assert f"{SHARED} at {server.url}, prefix 'other'. " in caplog.text


async def test_the_log_names_mistakes(server: RedisServer, site: Site, caplog: Log) -> None:
    caplog.set_level("INFO")
    limits = {"127.0.0.1": 1, "text": 1, "proxy:*": 2, "domain:www.example.co.uk": 1}
    limits |= {"domain:co.uk": 1, "domain:example.org": 1, "domain:intranet": 1}
    mistakes = {"SEMAPHORE_LIMIT": 2, "SEMAPHORE_XYZ": 1, "SEMAPHORE_LIMITS": limits}
    mistakes |= {"SEMAPHORE_TOKEN": "secret", "SEMAPHORE_DELAY": 3, "SEMPHORE_LEASE": 9}
    crawl = crawl_of(server, site, SEMAPHORE_NODE="one", DOWNLOAD_DELAY=0.01, **mistakes)
    await crawl.gave_back(1, site)
    said = "\n".join(caplog.messages)
    assert re.search(rf"Node one-.* {SHARED} at {re.escape(server.url)}\. ", said)
    assert (
        "Default of a site: limit 1 (CONCURRENT_REQUESTS_PER_DOMAIN), delay 0.01 s "
        "(DOWNLOAD_DELAY), jitter 0.5 (Scrapy's default of DOWNLOAD_DELAY_JITTER)." in said
    )
    own = "127.0.0.1 (limit 1, delay 0.01 s, jitter 0.5), text (limit 1, delay 0.01 s, jitter 0.5)"
    assert f"Limits of their own: {own}, domain:" in said
    assert ", proxy:* (limit 2)." in said
    assert "SEMAPHORE_LIMIT: there is no such setting; did you mean SEMAPHORE_LIMITS?" in said
    assert "SEMAPHORE_DELAY: there is no such setting; did you mean DOWNLOAD_DELAY?" in said
    assert "SEMPHORE_LEASE: there is no such setting; did you mean SEMAPHORE_LEASE?" in said
    assert "SEMAPHORE_XYZ: there is no such setting\n" in said
    assert "SEMAPHORE_TOKEN: there is no such setting; set it in the environment" in said
    assert "limits of the kind 'proxy', but SEMAPHORE_SCOPES lacks 'proxy'" in said
    domains = re.findall(r": (\S+) is no registered domain, so no request has .*; (.*)", said)
    of_host = "write 'domain:example.co.uk', or 'www.example.co.uk' for the host"
    assert domains == [
        ("www.example.co.uk", of_host),
        ("co.uk", "write 'co.uk' for the host"),
    ]


@both
async def test_waiting_for_the_server(locked: RedisServer, site: Site, caplog: Log, by: By) -> None:
    caplog.set_level("DEBUG")
    locked.kill()
    scheme, place = "redis", f"127.0.0.1:{locked.tcp_port}"
    if by is ADD_ON:
        scheme, place = "unix", str(locked.path)
    # The crawl may start before the server is known to have nothing to recover.
    url = {"SEMAPHORE_REDIS_URL": f"{scheme}://:{ENCODED}@{place}", "SEMAPHORE_RECOVERY_WAIT": 0}
    crawl = crawl_of(locked, site, by=by, **url)
    await eventually(lambda: f"cannot reach {scheme}://{place}" in caplog.text)
    assert site.arrivals == []
    assert SHARED not in caplog.text
    locked.start()
    await crawl.finished()
    assert site.arrivals == ["/page/"]
    assert f"Reached {scheme}://{place}" in caplog.text
    assert SHARED in caplog.text
    assert errors(caplog) == []
    assert_no_password(caplog.text)


AWAY = {"SEMAPHORE_REDIS_URL": NOWHERE, "REDIS_URL": NOWHERE}
SHARED_TOO = {**ADD_ON, "SCHEDULER": "semaphore_middleware.Scheduler"}
NO_REACTOR = ("-s", "TWISTED_REACTOR_ENABLED=False")
in_processes = pytest.mark.processes


@pytest.mark.parametrize(
    ("by", "status", "options"),
    [
        pytest.param(ADD_ON, 0, (), id="own"),
        pytest.param(ADD_ON, 0, NO_REACTOR, id="own-no reactor", marks=pytest.mark.processes),
        pytest.param(SHARED_TOO, 1, (), id="shared", marks=pytest.mark.processes),
        pytest.param(
            SHARED_TOO, 1, NO_REACTOR, id="shared-no reactor", marks=pytest.mark.processes
        ),
    ],
)
async def test_a_process_that_is_stopped_while_it_waits_for_its_server_ends_in_order(
    tmp_path: Path, by: By, status: int, options: tuple[str, ...]
) -> None:
    timeout = {"CLOSESPIDER_TIMEOUT": 0.3}
    async with (
        scrapy(tmp_path, options=options, **by, **AWAY) as signalled,
        scrapy(tmp_path, options=options, **by, **AWAY, **timeout) as timed,
    ):
        await signalled.says("cannot reach")
        signalled.send(signal.SIGTERM)
        for crawl, reason in ((signalled, "shutdown"), (timed, "closespider_timeout")):
            assert await crawl.ended() == status
            assert crawl.stat("finish_reason") == reason
            assert f"Spider closed ({reason})" in crawl.log
            # Scrapy itself leaves these open, if a crawl ends before it begins.
            assert {line.partition("ERROR: ")[2] for line in crawl.errors} <= {
                "Unclosed client session"
            }
            assert "Traceback" not in crawl.log


async def test_who_closes_a_spider_that_waits_for_its_server_waits_for_its_end(
    server: RedisServer, site: Site, caplog: Log
) -> None:
    server.kill()
    crawl = crawl_of(server, site)
    await eventually(lambda: "cannot reach" in caplog.text)
    await crawl.crawler.engine.close_spider_async(reason="enough")
    assert crawl.stat("finish_reason") == "enough"
    await crawl.finished()
    assert errors(caplog) == []


class FetchesAtOnce:
    """An item pipeline that fetches the page in FIRST before the spider is open."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    async def open_spider(self) -> None:
        assert self._crawler.engine is not None
        # In Scrapy 2.14, the offsite middleware is ready only for an open spider.
        request = Request(self._crawler.settings["FIRST"], dont_filter=True)
        await self._crawler.engine.download_async(request)

    def process_item(self, item: Any) -> Any:
        return item


class Fails(FetchesAtOnce):
    """Fails to open once it `may_fail`, without waiting for its page."""

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self.may_fail = asyncio.Event()

    async def open_spider(self) -> None:
        self.fetching = asyncio.ensure_future(super().open_spider())
        await self.may_fail.wait()
        raise ValueError("it cannot be opened")


def fetches_at_once(
    server: RedisServer, site: Site, pipeline: type = FetchesAtOnce, **settings: Any
) -> Crawl:
    settings |= {"ITEM_PIPELINES": {pipeline: 1}, "FIRST": site.url("/page/first")}
    return crawl_of(server, site, **settings)


@both
async def test_a_pipeline_that_fetches_a_page_before_the_spider_is_open(
    server: RedisServer, site: Site, by: By
) -> None:
    crawl = fetches_at_once(server, site, by=by)
    await eventually(lambda: site.arrivals)
    admissions = the_crawl_of(crawl.crawler).downloads.admissions
    await crawl.gave_back(2, site)
    assert site.arrivals == ["/page/first", "/page/"]
    assert list(admissions) == []


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("has_begun", [True, False])
async def test_a_spider_that_another_component_keeps_from_opening(
    server: RedisServer, site: Site, caplog: Log, is_there: bool, has_begun: bool
) -> None:
    if not is_there:
        server.kill()
    crawl = fetches_at_once(server, site, Fails)
    await eventually(lambda: crawl.crawler.crawling)
    semaphore = the_crawl_of(crawl.crawler).semaphore
    if has_begun:
        await eventually(lambda: "/page/first" in site.arrivals or "cannot reach" in caplog.text)
    pipeline = crawl.crawler.get_item_pipeline(Fails)
    assert pipeline is not None
    pipeline.may_fail.set()
    with pytest.raises(ValueError, match="it cannot be opened"):
        await crawl.finished()
    await asyncio.gather(pipeline.fetching, return_exceptions=True)
    assert "closed" in repr(semaphore)
    assert not is_there or server.members() == {}


@pytest.mark.parametrize("ends_it", ["stop", "SEMAPHORE_START_TIMEOUT"])
async def test_a_pipeline_that_fetches_while_the_server_is_away(
    server: RedisServer, site: Site, caplog: Log, ends_it: str
) -> None:
    server.kill()
    settings: dict[str, Any] = {} if ends_it == "stop" else {ends_it: SOON_S}
    crawl = fetches_at_once(server, site, **settings)
    await eventually(lambda: "cannot reach" in caplog.text)
    if ends_it == "stop":
        await crawl.crawler.stop_async()
    with pytest.raises(ClosedError):
        await crawl.finished()
    assert ("gave up on" in caplog.text) == (ends_it != "stop")


Why = Callable[[RedisServer, Site], tuple[str, str]]  # an address, and its error


def not_there(*_: Any) -> tuple[str, str]:
    gave_up = f"gave up on {NOWHERE} after SEMAPHORE_START_TIMEOUT ({SOON_S:g} s)"
    return NOWHERE, f"{gave_up}: cannot reach {NOWHERE}"


def silent(server: RedisServer, _: Any) -> tuple[str, str]:
    server.freeze()
    url = f"unix://{server.path}"
    return url, f"gave up on {url} after SEMAPHORE_START_TIMEOUT ({SOON_S:g} s): no answer"


def no_redis(_: Any, site: Site) -> tuple[str, str]:
    url = f"redis://127.0.0.1:{site.port}/0"
    return url, f"{url} does not use the Redis protocol"


def not_permitted(server: RedisServer, _: Any) -> tuple[str, str]:
    rights = ("on", ">p", "~*", "&*", "+@all", "-zadd")  # the first request needs none of them
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "node", *rights)
    url = f"unix://node:p@{server.path}"
    return url, f"unix://{server.path} does not permit the user 'node' what is needed: ZADD"


def wrong_password(server: RedisServer, _: Any) -> tuple[str, str]:
    return (
        f"unix://node:{ENCODED}@{server.path}",
        "accept this user name and password, from SEMAPHORE_REDIS_URL",
    )


@both
@pytest.mark.parametrize("why", [not_there, silent, no_redis, not_permitted, wrong_password])
async def test_a_server_that_cannot_be_used_ends_a_crawl_with_one_line(
    server: RedisServer, site: Site, caplog: Log, by: By, why: Why
) -> None:
    caplog.set_level("DEBUG")
    url, said = why(server, site)
    timeout = {"SEMAPHORE_START_TIMEOUT": SOON_S} if why in (not_there, silent) else {}
    crawl = crawl_of(server, site, by=by, SEMAPHORE_REDIS_URL=url, **timeout)
    await crawl.finished()
    [error] = errors(caplog)
    assert said in error
    assert_no_password(caplog.text)
    assert site.arrivals == []
    assert crawl.crawler.spider is None, "by which Scrapy's commands exit with status 1"
