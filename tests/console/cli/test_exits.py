"""Exit statuses that scripts can use, and one clear line where something is wrong."""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from scrapy.cmdline import execute
from scrapy.settings import Settings

from semaphore_middleware import FairSemaphore
from semaphore_middleware.console.cli import limit
from semaphore_middleware.console.cli.semaphore import VERBS, Command
from semaphore_middleware.redis import embedded
from tests.support.cli import SITE, Terminal, command, semaphore, three_nodes
from tests.support.nodes import TIMEOUT_S, Outside, in_asyncio
from tests.support.servers import RedisServer, free_port

SAYS = "scrapy semaphore: "


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_its_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        execute(["scrapy", "semaphore", verb, "-h"], Settings())  # not those of a project
    out, err = capsys.readouterr()
    assert (end.value.code, err) == (0, "")
    assert out.splitlines()[2].startswith(f"  scrapy semaphore {verb} [options]")
    words = " ".join(out.split())
    assert "Exit status: 0 done; 1 asked whether to go on, and not told yes; 2 a value" in words


@in_asyncio
async def test_the_command_is_there_in_and_out_of_projects_and_lists_its_verbs() -> None:
    ran = await semaphore(None, "-h")
    assert ran.status == 0
    for verb in VERBS:
        assert f"    {verb} " in ran.out
    without_verb = await semaphore(None)
    assert (without_verb.status, without_verb.err) == (2, "")
    assert without_verb.out == ran.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("limit", "x", "0"), f"{SAYS}N = '0': allowed is an integer >= 1, or 'none'"),
        (("limit", "x", "-1"), f"{SAYS}N = '-1': allowed is an integer >= 1, or 'none'"),
        (("limit", "x", "1.5"), f"{SAYS}N = '1.5': allowed is an integer >= 1, or 'none'"),
        (
            ("limit", "x", "1", "--delay", "inf"),
            f"{SAYS}--delay inf: allowed is a number of seconds >= 0",
        ),
        (
            ("limit", "x", "1", "--rate", "60"),
            f"{SAYS}--rate 60: allowed is a number per s, m, h or d, like '60/m', at most 1e6 per",
        ),
        (
            ("limit", "x", "1", "--rate", "1/s", "--burst", "0"),
            f"{SAYS}--burst 0: allowed is an integer >= 1 and <= 1e6",
        ),
        (("limit", "a*", "1"), f"{SAYS}the limit of 'a*': a '*' may only stand first"),
        (("pause", ""), f"{SAYS}the limit of '': the host is empty"),
        (("reset", "*.*"), f"{SAYS}the limit of '*.*': allowed is a host, or '*.' and a host"),
        (("limit", "x"), "scrapy semaphore limit: the following arguments are required: N; see"),
        (("status", "--frob"), f"{SAYS}unexpected '--frob'; see scrapy semaphore status -h"),
        (("pause", "x", "y"), f"{SAYS}unexpected 'y'; see scrapy semaphore pause -h"),
        (("watch",), f"{SAYS}watch needs a terminal; see 'status'"),
        (
            ("status", "-s", "SEMAPHORE_REDIS_URL=nonsense"),
            f"{SAYS}SEMAPHORE_REDIS_URL: not a server's address; allowed is redis://",
        ),
        (("status", "-s", "SEMAPHORE_LEASE=0"), f"{SAYS}SEMAPHORE_LEASE = '0': allowed is"),
    ],
)
@in_asyncio
async def test_what_is_not_allowed_is_said_in_one_line(
    server: RedisServer, outside: Outside, arguments: tuple[str, ...], said: str
) -> None:
    before = outside.dump()
    ran = await semaphore(server, *arguments)
    assert (ran.status, ran.out) == (2, "")
    (line,) = ran.err.splitlines()
    assert line.startswith(said)
    assert outside.dump() == before


@in_asyncio
async def test_an_unknown_scope_is_said_in_one_line(server: RedisServer, outside: Outside) -> None:
    await three_nodes(server)
    before = outside.dump()
    for scope in ("www.exmaple.org", "*.museum"):
        ran = await semaphore(server, "status", SITE, scope)
        assert ran == (4, "", f"{SAYS}nothing is known of {scope!r}\n")
    assert outside.dump() == before


@pytest.mark.parametrize(
    "arguments",
    [("status",), ("pause", SITE), ("limit", SITE, "1"), ("reset", SITE), ("evict", "n", "--yes")],
)
@in_asyncio
async def test_a_server_that_cannot_be_reached_is_given_up(arguments: tuple[str, ...]) -> None:
    port = free_port()
    ran = await semaphore(f"redis://:secret@127.0.0.1:{port}/0", *arguments)
    assert (ran.status, ran.out) == (3, "")
    (line,) = ran.err.splitlines()
    assert line.startswith(f"{SAYS}cannot reach redis://127.0.0.1:{port}/0: ")
    assert "secret" not in line


@in_asyncio
async def test_a_server_that_hangs_is_given_up(server: RedisServer) -> None:
    server.freeze()
    ran = await semaphore(server, "status", "-s", "SEMAPHORE_LEASE=3")
    server.thaw()
    no_answer = f"{SAYS}cannot reach {server.url}: no answer within 0.5 s\n"
    assert ran == (3, "", no_answer)


@in_asyncio
async def test_a_server_that_hangs_later_is_given_up(server: RedisServer) -> None:
    """Behind an operator's yes, for example: each step has its end."""
    await three_nodes(server)
    terminal = await Terminal(80, 24).start(server, "evict", "one", "-s", "SEMAPHORE_LEASE=3")
    try:
        await terminal.has_drawn("[y/N] ")
        server.freeze()
        terminal.press(b"y\n")
        assert await terminal.ended() == 3
        assert f"{server.url}: no answer within 0.5 s" in terminal.drawn
    finally:
        server.thaw()
        await terminal.close()


@in_asyncio
async def test_a_wrong_password_is_said_and_not_shown() -> None:
    locked = RedisServer("--requirepass", "right", tcp_port=free_port()).start()
    try:
        ran = await semaphore(f"redis://:wrong@127.0.0.1:{locked.tcp_port}/0", "status")
    finally:
        locked.remove()
    assert (ran.status, ran.out) == (3, "")
    assert ran.err.endswith("does not accept this user name and password\n")
    assert "wrong" not in ran.err


@in_asyncio
async def test_without_an_address_the_embedded_server_is_found_but_not_started() -> None:
    directory = Path(os.environ[embedded.DIRECTORY])
    none = (
        f"{SAYS}no server's address is given (SEMAPHORE_REDIS_URL or REDIS_URL, in the settings, "
        "by -s, or in the environment), and no embedded server runs\n"
    )
    assert await semaphore(None, "status") == (3, "", none)
    assert os.listdir(directory) == []  # noqa: PTH208 - in a coroutine all are as good
    async with FairSemaphore() as node:
        await node.acquire(SITE, 2)
        found = await semaphore(None, "status")
        assert (found.status, found.lines[1].split()[:2]) == (0, [SITE, "1/2"])
        assert embedded.find() == node.url
    # The command has kept it from nothing: it ends with the last who uses it.
    async with asyncio.timeout(TIMEOUT_S):
        while (directory / "server.sock").exists():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    assert embedded.find() is None
    assert await semaphore(None, "status") == (3, "", none)


@in_asyncio
async def test_somebody_else_s_embedded_server_is_not_trusted() -> None:
    directory = Path(os.environ[embedded.DIRECTORY])
    (directory / "server.sock").touch()
    os.chmod(directory, 0o755)  # noqa: PTH101 - in a coroutine all are as good
    ran = await semaphore(None, "status")
    assert ran == (3, "", f"{SAYS}{directory} is not a private directory of this user's\n")


@pytest.mark.parametrize("encoding", ["latin-1", None])
def test_output_that_lacks_characters_or_is_closed_is_no_error(
    monkeypatch: pytest.MonkeyPatch, encoding: str | None
) -> None:
    shown = io.BytesIO()
    out = io.TextIOWrapper(shown, encoding) if encoding else None  # as after `>&-`
    ran = Command()
    ran.settings = Settings()
    monkeypatch.setattr("scrapy.utils.log.configure_logging", lambda _: None)
    monkeypatch.setattr(limit, "run", lambda *_: sys.stdout.write("limit ∞") and 0)
    monkeypatch.setattr(sys, "stdout", out)
    ran._run(argparse.Namespace(verb="limit"))
    assert ran.exitcode == 0
    assert shown.getvalue() == (b"limit ?" if encoding else b"")
    sys.stdout.close()


@in_asyncio
async def test_without_rich_only_what_needs_it_fails(server: RedisServer, tmp_path: Path) -> None:
    await three_nodes(server)
    (tmp_path / "rich.py").write_text("raise ImportError")
    bare = {"PYTHONPATH": str(tmp_path)}
    ran = await semaphore(server, "status", environment=bare)
    needs = "this needs rich: pip install 'scrapy-semaphore[commands]' (status --json does not)"
    assert ran == (2, "", f"{SAYS}{needs}\n")
    for arguments in (("status", "--json"), ("pause", SITE), ("evict", "one", "--yes")):
        assert (await semaphore(server, *arguments, environment=bare)).status == 0


@pytest.mark.parametrize(
    ("arguments", "status", "err"),
    [
        (
            ("serve", "--port", "0"),
            2,
            f"{SAYS}this needs aiohttp: pip install 'scrapy-semaphore[commands]'\n",
        ),
        (("status",), 0, ""),
    ],
)
def test_without_aiohttp_only_the_page_fails(
    server: RedisServer, tmp_path: Path, arguments: tuple[str, ...], status: int, err: str
) -> None:
    (tmp_path / "aiohttp.py").write_text("raise ImportError")
    run = subprocess.run(  # not forked: Scrapy, which is imported there, imports aiohttp
        command(*arguments),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "SEMAPHORE_REDIS_URL": server.url},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (run.returncode, run.stderr) == (status, err)


@in_asyncio
async def test_a_limit_takes_about_ten_commands_and_no_subscription(server: RedisServer) -> None:
    await three_nodes(server)
    await semaphore(server, "limit", SITE, "3")  # which loads the scripts
    with server.client() as client, client.monitor() as monitor:
        client.ping()
        assert (await semaphore(server, "limit", SITE, "2")).status == 0
        client.echo("end")
        sent: list[str] = []
        while not sent or sent[-1] != "ECHO end":
            seen = monitor.next_command()
            if seen["client_type"] != "lua":  # a script's own commands are not sent
                sent.append(seen["command"])
    ours = sent[sent.index("PING") + 1 : -1]
    assert len(ours) <= 12, ours  # eight of them connect
    assert not any("SUBSCRIBE" in command for command in ours)


@in_asyncio
async def test_a_pipe_that_is_closed_is_no_error(server: RedisServer) -> None:
    await three_nodes(server)
    for arguments in ("status", "status --json"):
        line = f"{shlex.join(command(*arguments.split()))} | true; exit ${{PIPESTATUS[0]}}"
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", line),
            env={**os.environ, "SEMAPHORE_REDIS_URL": server.url},
            stderr=asyncio.subprocess.PIPE,
        )
        _, err = await process.communicate()
        assert (process.returncode, err) == (0, b"")


def test_other_commands_do_not_pay_for_what_it_draws_with() -> None:
    """Scrapy loads it for each of its own."""
    script = (
        "import sys, scrapy.cmdline\n"
        "before = set(sys.modules)\n"
        "import semaphore_middleware.console.cli.semaphore\n"
        "heavy = ('rich', 'semaphore_middleware.console.cli.')\n"
        "print([name for name in set(sys.modules) - before if name.startswith(heavy)])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "['semaphore_middleware.console.cli.semaphore']"
