"""`scrapy semaphore gate`: permits that last as long as a connection."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import aiohttp
import pytest
from aiohttp.web import TCPSite
from scrapy.settings import Settings

from semaphore_console.auth import OwnNames
from semaphore_console.gate import Gate
from semaphore_middleware import FairSemaphore
from semaphore_middleware.commands.verbs import node_of
from tests.docs.pages import Block, blocks
from tests.support.cli import listening
from tests.support.nodes import TIMEOUT_S, eventually
from tests.support.servers import RedisServer, wait_until
from tests.support.site import Site

HOST = "a.example"
REQUEST = b"GET /permit/a.example HTTP/1.1\r\nHost: localhost\r\n\r\n"
GRANTED = b"granted\n"
GATE = ("gate", "-s", 'SEMAPHORE_LIMITS={"a.example": 1, "127.0.0.1": 1}')


class Clients:
    """What connects to a gate in this process."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._port = port

    async def connect(self, request: bytes = REQUEST) -> tuple[asyncio.StreamReader, Client]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(request)
        return reader, writer

    async def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, self.url + path, headers=named) as answer,
        ):
            return answer.status, (await answer.content.readline()).decode()


Client = asyncio.StreamWriter


async def granted(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(TIMEOUT_S):
        head = await reader.readuntil(b"\r\n\r\n")
        assert re.match(rb"HTTP/1\.[01] 200 OK\r\n", head), head
        return GRANTED in await reader.readuntil(GRANTED)


@asynccontextmanager
async def gate(server: RedisServer, lease: float = 15.0, **settings: Any) -> AsyncIterator[Clients]:
    given = {"SEMAPHORE_REDIS_URL": server.url, "SEMAPHORE_LEASE": lease, **settings}
    semaphore, limits_of = node_of(Settings({"SEMAPHORE_LIMITS": {HOST: 1}, **given}), "gate")
    async with semaphore:
        runner = Gate(semaphore, limits_of, OwnNames("127.0.0.1")).make_runner()
        await runner.setup()
        try:
            await TCPSite(runner, "127.0.0.1", 0).start()
            yield Clients(runner.addresses[0][1])
        finally:
            await runner.cleanup()


def of_scope(server: RedisServer, held: int, waiting: int) -> bool:
    return server.members() == ({HOST: (held, waiting)} if held or waiting else {})


async def test_a_permit_is_held_until_the_connection_closes(server: RedisServer) -> None:
    async with gate(server) as clients:
        first, holder = await clients.connect()
        assert await granted(first)
        second, waiter = await clients.connect()
        _, gone = await clients.connect()
        await eventually(lambda: of_scope(server, 1, 2))
        gone.close()
        await eventually(lambda: of_scope(server, 1, 1))
        assert not second._buffer  # type: ignore[attr-defined]
        holder.close()
        assert await granted(second)
        third, last = await clients.connect(REQUEST.replace(b"1.1", b"1.0"))
        waiter.write_eof()
        assert await granted(third), "half a connection is none"
        last.transport.abort()
        await eventually(lambda: of_scope(server, 0, 0))


async def test_what_a_client_sends_behind_its_request_does_not_hide_its_end(
    server: RedisServer,
) -> None:
    async with gate(server) as clients:
        for body in (b"", b"Content-Length: 10000000\r\n"):
            reader, holder = await clients.connect(REQUEST[:-2] + body + b"\r\n")
            assert await granted(reader)
            for _ in range(100):
                holder.write(20 * REQUEST)
                await asyncio.sleep(0)
            holder.transport.abort()
            await eventually(lambda: of_scope(server, 0, 0))
        # So much at once that newer versions of aiohttp would stop to read: that is refused.
        reader, holder = await clients.connect(100 * REQUEST)
        assert await reader.readline()
        holder.transport.abort()
        await eventually(lambda: of_scope(server, 0, 0))


async def test_a_request_without_a_host_header_is_refused(server: RedisServer) -> None:
    async with gate(server) as clients:
        reader, _ = await clients.connect(b"GET /permit/a.example HTTP/1.0\r\n\r\n")
        assert b" 403 " in await reader.readline()


async def test_a_lost_permit_cuts_the_connection(server: RedisServer) -> None:
    async with (
        gate(server, lease=0.5) as clients,
        aiohttp.ClientSession() as session,
        session.get(f"{clients.url}/permit/{HOST}") as answer,
    ):
        assert await answer.content.readline() == GRANTED
        server.kill()
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.content.read()


@pytest.mark.parametrize(
    ("path", "headers", "status", "text"),
    [
        ("/permit/a.example?limit=0", {}, 400, "limit = '0': allowed is an integer >= 1"),
        ("/permit/https:%2F%2Fa.example%2F", {}, 400, "give only the host: 'a.example'"),
        (f"/permit/{1001 * 'x'}", {}, 400, "allowed is a text of 1 to 1000 characters"),
        ("/permit/a", {"Host": "evil.example"}, 403, "for its own machine, not for 'evil.exam"),
        ("/permit/a", {"Origin": "https://evil.example"}, 403, "this is not for web pages"),
        ("/permit/a", {"Sec_Fetch_Site": "cross-site"}, 403, "this is not for web pages"),
        ("/", {}, 404, "Not Found; there is GET /permit/<host>"),
    ],
)
async def test_what_hinders_a_permit_is_one_line(
    server: RedisServer, path: str, headers: dict[str, str], status: int, text: str
) -> None:
    async with gate(server) as clients:
        told, said = await clients.get(path, **headers)
        assert told == status
        assert text in said
        assert (await clients.get("/permit/a", "HEAD"))[0] == 405
    assert server.members() == {}


@pytest.mark.parametrize(
    ("path", "scopes"),
    [
        ("WWW.Example.org", {"www.example.org": 8, "domain:example.org": 5, "all": 9}),
        ("example.org:8080?limit=2", {"example.org": 2, "domain:example.org": 5, "all": 9}),
        ("[::1]", {"::1": 8, "all": 9}),
        ("Shop", {"Shop": 8}),
        ("free.example?limit=3", {"free.example": 3, "all": 9}),
        ("free.example", {"all": 9}),
    ],
)
async def test_a_host_has_the_scopes_and_limits_of_a_crawl(
    server: RedisServer, path: str, scopes: dict[str, int]
) -> None:
    settings: dict[str, Any] = {
        "SEMAPHORE_SCOPES": ["host", "domain", "all"],
        "SEMAPHORE_LIMITS": {"domain:example.org": 5, "all": 9, "free.example": None},
    }
    async with (
        gate(server, **settings) as clients,
        aiohttp.ClientSession() as session,
        session.get(f"{clients.url}/permit/{path}") as answer,
        FairSemaphore(server.url) as looks,
    ):
        assert await answer.content.readline() == GRANTED
        assert set(server.members()) == set(scopes)
        seen = [await looks.admin.inspect(scope) for scope in scopes]
        assert {one.scope: one.limit for one in seen} == scopes


# As people run it -------------------------------------------------------------------------------


@contextmanager
def curl(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["curl", "-sfN", *arguments], stdout=PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


with_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on PATH")


@with_curl
def test_a_killed_curl_frees_its_permit_and_the_gate_s_end_frees_all(
    server: RedisServer, tmp_path: Path
) -> None:
    options = ("--port", "0", "-s", "SEMAPHORE_HISTORY=0", "-s", "SEMAPHORE_JOB=tools")
    with listening(server, tmp_path, *GATE, *options) as (process, address):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", address), process.log
        url = f"{address}/permit/{HOST}"
        with curl(url) as holder:
            assert line(holder) == GRANTED
            with server.client() as redis:  # its node is as the project's crawls are
                assert redis.keys("*:history*") == []
                assert b"tools" in redis.hget(f"{{semaphore}}:scope:{HOST}", "state")
            with curl(url) as waiter:
                wait_until(lambda: of_scope(server, 1, 1))
                holder.send_signal(signal.SIGKILL)
                assert line(waiter) == GRANTED
                wait_until(lambda: of_scope(server, 1, 0))  # nobody waits, until the next one does
                with curl("-w", "%{http_code}", url) as third:
                    wait_until(lambda: of_scope(server, 1, 1))
                    process.send(signal.SIGTERM)
                    assert process.wait() == 0
                    assert (third.wait(), line(third)) == (22, b"503")
                assert waiter.wait() == 18, "a part of the body is missing"
        assert process.log.count("\n") == 1
    assert server.members() == {}


@with_curl
def test_a_unix_socket_is_one_gate_s(server: RedisServer, tmp_path: Path) -> None:
    path = tmp_path / "gate"
    arguments = (*GATE, "--socket", str(path))
    with listening(server, tmp_path, *arguments, "--port", "0") as (process, _):
        assert process.wait() == 2
        assert process.log.endswith("give --port or --socket, not both\n")
    with listening(server, tmp_path, *arguments) as (process, address):
        assert address == str(path)
        assert path.stat().st_mode & 0o777 == 0o600
        with curl("--unix-socket", address, f"http://any/permit/{HOST}") as client:
            assert line(client) == GRANTED
            (tmp_path / "other").mkdir()
            with listening(server, tmp_path / "other", *arguments) as (other, _):
                assert other.wait() == 2
                assert other.log.endswith(f"cannot listen on {path}: it is in use\n")
        process.kill()
        process.wait()
    with listening(server, tmp_path, *arguments) as (_, address):  # what is left of it is no gate
        assert address == str(path)


def test_a_server_that_is_away_is_told_at_the_start_and_later(
    server: RedisServer, tmp_path: Path
) -> None:
    brief = (*GATE, "-s", "SEMAPHORE_LEASE=3", "--port", "0")
    with listening(server, tmp_path, *brief) as (process, address):
        server.kill()
        host, _, port = address.removeprefix("http://").rpartition(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(REQUEST)
            wait_until(lambda: process.log.count("\n") > 1)
        # What it says depends on whether a call was under way.
        said = ("cannot reach", "lost", "lost the connection to")
        assert any(f"{words} {server.url}" in process.log for words in said)
        process.send(signal.SIGINT)
        assert process.wait() == 0
    with listening(server, tmp_path, *brief) as (process, _):
        assert process.wait() == 3
        assert f"scrapy semaphore: cannot reach {server.url}: " in process.log


PROGRAMS = [
    block for block in blocks() if block.page == "docs/commands.md" and block.kind in ("bash", "js")
]


@pytest.mark.parametrize("block", PROGRAMS, ids=["curl", "bash", "node"])
async def test_the_programs_of_the_page_hold_the_limit(
    server: RedisServer, site: Site, tmp_path: Path, block: Block
) -> None:
    program = {"bash": ("bash", "-euc"), "js": ("node", "--input-type=module", "-e")}[block.kind]
    if shutil.which(program[0]) is None or shutil.which("curl") is None:
        pytest.skip(f"no {program[0]} or curl on PATH")
    with listening(server, tmp_path, *GATE, "--port", "0") as (_, address):
        text = block.text.replace("127.0.0.1:8380", address.removeprefix("http://"))
        text = text.replace("/127.0.0.1/8380", f"/127.0.0.1/{address.rpartition(':')[2]}")
        text = text.replace("https://example.com/report.csv", site.url("/take/0.05/report.csv"))
        text = text.replace("/permit/example.com", "/permit/127.0.0.1")
        processes = [
            await asyncio.create_subprocess_exec(*program, text, cwd=tmp_path, stdout=DEVNULL)
            for _ in range(4)
        ]
        try:
            async with asyncio.timeout(TIMEOUT_S):
                assert [await process.wait() for process in processes] == [0] * 4
        finally:
            for process in processes:
                with suppress(ProcessLookupError):
                    process.kill()
        assert (site.most, len(site.visits)) == (1, 4)
        wait_until(lambda: server.members() == {})
