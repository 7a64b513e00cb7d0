"""How a crawl starts. If it cannot: one line in the log, and exit status 1."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request

from semaphore_middleware.errors import SettingsError
from tests.support.certificates import Authority
from tests.support.crawls import ADD_ON, Crawl, asyncio_test, both, scrapy
from tests.support.scrapy_process import ScrapyProcess
from tests.support.servers import RedisServer, SentinelServer, free_port
from tests.support.site import Site
from tests.support.tls import tls_in_front_of

Options = tuple[str, ...]

SHARED = "shares its limits with all nodes"
SELECT_REACTOR = "twisted.internet.selectreactor.SelectReactor"


async def refusal(crawl: ScrapyProcess, site: Site) -> str:
    """The only error in the log of a crawl that could not start, and fetched nothing."""
    assert await crawl.ended() == 1
    assert site.arrivals == []
    assert "Traceback" not in crawl.log
    assert len(crawl.errors) == 1, crawl.log
    return crawl.errors[0]


# Versions ---------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    ("library", "version", "needed"),
    [("scrapy", "2.18.0", ">=2.19"), ("redis", "8.0.0", "!=8.0.0,>=6.4")],
)
@asyncio_test
async def test_library_that_is_too_old_ends_a_crawl_with_one_line(
    site: Site,
    tmp_path: Path,
    by: Mapping[str, Any],
    library: str,
    version: str,
    needed: str,
) -> None:
    told = tmp_path / f"{library}-{version}.dist-info"
    told.mkdir()
    (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {library}\nVersion: {version}\n")
    async with scrapy(tmp_path, Request(site.url("/page/")), **by) as crawl:
        error = await refusal(crawl, site)
    assert f"{library} {version} is installed; scrapy-semaphore " in error
    assert error.endswith(f" needs {library} {needed}")


# Bad settings -----------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SEMAPHORE_LIMITS", {"example.com": 0}),
        ("SEMAPHORE_LIMITS", {"example.com": -1}),
        ("SEMAPHORE_LIMITS", {"example.com": 1.5}),
        ("SEMAPHORE_LIMITS", {"example.com": "2"}),
        ("SEMAPHORE_LIMITS", {"example.com": True}),
        ("SEMAPHORE_LIMITS", {"example.com": {"concurrency": 0}}),
        ("SEMAPHORE_LIMITS", {"example.com": {"delay": -1}}),
        ("SEMAPHORE_LIMITS", {"example.com": {"jitter": 2}}),
        ("SEMAPHORE_LIMITS", {"example.com": {"rate": "60"}}),
        ("SEMAPHORE_LIMITS", {"example.com": {"burst": 5}}),
        ("SEMAPHORE_LIMITS", {"example.com": {"speed": 2}}),
        ("SEMAPHORE_LIMITS", {"": 2}),
        ("SEMAPHORE_LIMITS", {"*": 2}),
        ("SEMAPHORE_LIMITS", {"www.*": 2}),
        ("SEMAPHORE_LIMITS", "example.com=2"),
        ("SEMAPHORE_SCOPES", "hosts"),
        ("SEMAPHORE_LEASE", 0),
        ("SEMAPHORE_LEASE", "soon"),
        ("SEMAPHORE_LEASE", float("inf")),
        ("SEMAPHORE_TURN", 5),
        ("SEMAPHORE_RECOVERY_WAIT", -1),
        ("SEMAPHORE_ACQUIRE_TIMEOUT", -1),
        ("SEMAPHORE_START_TIMEOUT", 0),
        ("SEMAPHORE_PREFIX", "a{b}"),
        ("SEMAPHORE_REDIS_URL", "localhost:6379"),
        ("SEMAPHORE_REDIS_URL", "redis://localhost:port/0"),
        ("CONCURRENT_REQUESTS_PER_DOMAIN", 0),
        ("DOWNLOAD_DELAY", -1),
        ("DOWNLOAD_SLOTS", {"example.com": {"concurrency": 0}}),
    ],
)
@asyncio_test
async def test_bad_settings_end_a_crawl_before_the_first_request(
    server: RedisServer,
    site: Site,
    caplog: pytest.LogCaptureFixture,
    by: Mapping[str, Any],
    name: str,
    value: object,
) -> None:
    bad: dict[str, Any] = {name: value}
    crawl = Crawl(server, Request(site.url("/page/")), by=by, **bad)

    with pytest.raises(SettingsError, match=name):
        await crawl.finished()

    assert site.arrivals == []
    [error] = [line for line in caplog.records if line.levelno == logging.ERROR]
    assert name in error.getMessage()
    assert re.search("allowed|check its|may only", error.getMessage())


@both
@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (("-s", 'SEMAPHORE_LIMITS={"example.com": 0}'), {}),
        (("-s", "SEMAPHORE_LEASE=soon"), {}),
        ((), {"SEMAPHORE_LIMITS": {"example.com": 1.5}}),
        ((), {"SEMAPHORE_SCOPES": "hosts"}),
    ],
    ids=["typed limit", "typed lease", "spider's limit", "spider's scope"],
)
@asyncio_test
async def test_bad_settings_end_a_process_with_status_1(
    site: Site,
    tmp_path: Path,
    by: Mapping[str, Any],
    options: Options,
    settings: Mapping[str, Any],
) -> None:
    name = next(iter(settings), None) or options[1].partition("=")[0]

    async with scrapy(
        tmp_path, Request(site.url("/page/")), options=options, **by, **settings
    ) as crawl:
        line = await refusal(crawl, site)

    assert name in line
    assert "allowed is" in line


@both
@asyncio_test
async def test_other_reactors_than_asyncio_are_refused(
    server: RedisServer, site: Site, tmp_path: Path, by: Mapping[str, Any]
) -> None:
    options = ("-s", f"TWISTED_REACTOR={SELECT_REACTOR}")

    settings = {**by, "SEMAPHORE_REDIS_URL": server.url}

    async with scrapy(tmp_path, Request(site.url("/page/")), options=options, **settings) as crawl:
        assert await crawl.ended() == 1

    # Scrapy adds a traceback of its own: without asyncio nothing can keep it from that.
    assert "TWISTED_REACTOR: the semaphore needs asyncio; allowed is" in crawl.errors[0]
    assert site.arrivals == []


@both
@asyncio_test
async def test_semaphore_enabled_must_be_true_or_false(
    site: Site, tmp_path: Path, by: Mapping[str, Any]
) -> None:
    options = ("-s", "SEMAPHORE_ENABLED=maybe")
    async with scrapy(tmp_path, Request(site.url("/page/")), options=options, **by) as crawl:
        assert await crawl.ended() == 1

    assert "SEMAPHORE_ENABLED = 'maybe': allowed is True or False" in crawl.errors[0]
    assert site.arrivals == []


@both
@asyncio_test
async def test_semaphore_enabled_false_turns_everything_off(
    site: Site, tmp_path: Path, by: Mapping[str, Any]
) -> None:
    off: dict[str, Any] = {"SEMAPHORE_ENABLED": False, "SEMAPHORE_REDIS_URL": "unix:///nowhere"}

    async with scrapy(tmp_path, Request(site.url("/page/")), **by, **off) as crawl:
        assert await crawl.ended() == 0

    assert "SEMAPHORE_ENABLED is off" in crawl.log
    assert "semaphore/" not in crawl.log
    assert site.arrivals == ["/page/"]


# A server that is not there yet -----------------------------------------------------------------


@pytest.fixture(params=["unix socket", "TCP port"])
def later(request: pytest.FixtureRequest) -> Iterator[tuple[RedisServer, str]]:
    """A server that the test has yet to start, and its address."""
    server = RedisServer(tcp_port=free_port())
    yield server, server.url if request.param == "unix socket" else server.tcp_url
    server.remove()


@both
@asyncio_test
async def test_a_crawl_waits_for_its_server(
    later: tuple[RedisServer, str], site: Site, tmp_path: Path, by: Mapping[str, Any]
) -> None:
    server, url = later
    # The crawl may be there before it can be known that this server has nothing to recover.
    waits = {**by, "SEMAPHORE_REDIS_URL": url, "SEMAPHORE_RECOVERY_WAIT": 0}

    async with scrapy(tmp_path, Request(site.url("/page/")), **waits) as crawl:
        await crawl.says(f"cannot reach {url}")
        assert site.arrivals == []
        assert SHARED not in crawl.log
        server.start()
        await crawl.says(f"Reached {url}")
        assert await crawl.ended() == 0

    assert SHARED in crawl.log

    assert "Traceback" not in crawl.log
    assert site.arrivals == ["/page/"]
    assert server.members() == {}


@both
@asyncio_test
async def test_a_crawl_gives_up_its_server_after_the_start_timeout(
    site: Site, tmp_path: Path, by: Mapping[str, Any]
) -> None:
    nowhere: dict[str, Any] = {
        "SEMAPHORE_REDIS_URL": "unix:///nowhere",
        "SEMAPHORE_START_TIMEOUT": 0.1,
    }
    async with scrapy(tmp_path, Request(site.url("/page/")), **by, **nowhere) as crawl:
        line = await refusal(crawl, site)

    assert "cannot use unix:///nowhere (for longer than SEMAPHORE_START_TIMEOUT, 0.1 s)" in line
    assert SHARED not in crawl.log


@both
@asyncio_test
async def test_sigint_ends_a_crawl_that_waits_for_its_server(
    site: Site, tmp_path: Path, by: Mapping[str, Any]
) -> None:
    async with scrapy(
        tmp_path, Request(site.url("/page/")), **by, SEMAPHORE_REDIS_URL="unix:///nowhere"
    ) as crawl:
        await crawl.says("cannot reach unix:///nowhere")
        crawl.send(signal.SIGINT)
        await crawl.ended()

    assert "Traceback" not in crawl.log
    assert site.arrivals == []


# Servers that are refused -----------------------------------------------------------------------


@asynccontextmanager
async def old_server(version: str) -> AsyncIterator[str]:
    """The address of something that speaks Redis's protocol and says that it is of this version."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while count := (await reader.readline()).removeprefix(b"*"):
            words = []
            for _ in range(int(count)):
                await reader.readline()
                words.append((await reader.readline()).strip().upper())
            info = f"redis_version:{version}\r\nrole:master\r\n"
            reply = f"${len(info)}\r\n{info}\r\n" if words[0] == b"INFO" else "+OK\r\n"
            writer.write(reply.encode())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"


@asyncio_test
async def test_a_server_older_than_6_2_is_refused(site: Site, tmp_path: Path) -> None:
    async with (
        old_server("6.0.16") as url,
        scrapy(tmp_path, Request(site.url("/page/")), **ADD_ON, SEMAPHORE_REDIS_URL=url) as crawl,
    ):
        line = await refusal(crawl, site)

    assert "is version 6.0.16; version 6.2 or newer is needed" in line


@asyncio_test
async def test_a_server_that_does_not_speak_the_protocol_is_refused(
    site: Site, tmp_path: Path
) -> None:
    url = f"redis://127.0.0.1:{site.port}/0"

    async with scrapy(
        tmp_path, Request(site.url("/page/")), **ADD_ON, SEMAPHORE_REDIS_URL=url
    ) as crawl:
        line = await refusal(crawl, site)

    assert f"{url} does not speak the Redis protocol" in line


@both
@asyncio_test
async def test_a_read_only_replica_is_refused(
    site: Site, tmp_path: Path, by: Mapping[str, Any]
) -> None:
    replica = RedisServer("--replicaof", "127.0.0.1", str(free_port()), started_empty=False).start()
    try:
        async with scrapy(
            tmp_path, Request(site.url("/page/")), **by, SEMAPHORE_REDIS_URL=replica.url
        ) as crawl:
            line = await refusal(crawl, site)
    finally:
        replica.remove()

    assert f"{replica.url} is a read-only replica" in line


@both
@asyncio_test
async def test_a_sentinel_s_own_address_is_refused(
    site: Site, tmp_path: Path, by: Mapping[str, Any]
) -> None:
    sentinel = SentinelServer().start()
    url = f"redis://127.0.0.1:{sentinel.tcp_port}/0"
    try:
        async with scrapy(
            tmp_path, Request(site.url("/page/")), **by, SEMAPHORE_REDIS_URL=url
        ) as crawl:
            line = await refusal(crawl, site)
    finally:
        sentinel.remove()

    assert f"{url} is a sentinel" in line


@both
@asyncio_test
async def test_tls_that_cannot_work_ends_a_crawl(
    server: RedisServer, site: Site, tmp_path: Path, by: Mapping[str, Any]
) -> None:
    authority, other = Authority(tmp_path, "authority"), Authority(tmp_path, "other")
    with tls_in_front_of(server, authority.issue("server")) as port:
        url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={other.certificate}"
        async with scrapy(
            tmp_path, Request(site.url("/page/")), **by, SEMAPHORE_REDIS_URL=url
        ) as crawl:
            line = await refusal(crawl, site)

    assert f"is not confirmed by ssl_ca_certs={other.certificate}: " in line


@both
@asyncio_test
async def test_a_right_that_is_missing_ends_a_crawl(
    server: RedisServer, site: Site, tmp_path: Path, by: Mapping[str, Any]
) -> None:
    rights = ("on", ">p", "~*", "&*", "+@all", "-zadd")  # none of which the first request needs
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "node", *rights)
    url = f"unix://node:p@{server.path}"
    async with scrapy(
        tmp_path, Request(site.url("/page/")), **by, SEMAPHORE_REDIS_URL=url
    ) as crawl:
        line = await refusal(crawl, site)

    assert f"unix://{server.path} does not permit this user what is needed: ZADD" in line
