"""Exit statuses that scripts can use, and one clear line for each error."""

import asyncio
import io
import os
import sys
from argparse import Namespace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from scrapy.settings import Settings

from semaphore_middleware import FairSemaphore
from semaphore_middleware.link import embedded
from semaphore_middleware.model.limits import ALLOWED_RATE
from semaphore_middleware.operators.verbs import SemaphoreCommand, Verb
from tests.support.cli import SITE, semaphore, semaphore_process, terminal, three_nodes
from tests.support.crawls import Patch
from tests.support.nodes import Outside, eventually
from tests.support.servers import RedisServer, free_port

SAYS = "scrapy semaphore: "
URL = "https://[::1]:8000/cart"


async def test_it_lists_its_verbs_and_each_has_its_help() -> None:
    ran = await semaphore(None, "-h")
    points = entry_points(group="semaphore_middleware.verbs")
    assert all(f"    {point.name} " in ran.out for point in points)
    assert await semaphore(None) == (2, ran.out, "")  # without a verb
    # `scrapy frontier` has the same meanings.
    assert "not answered with yes; 2 a" in " ".join(ran.out.split())
    for verb in points.names:
        ran = await semaphore(None, verb, "-h")
        assert (ran.status, ran.err) == (0, "")
        assert ran.lines[0].startswith(f"usage: scrapy semaphore {verb} [-h]")


NEEDLESS = (
    *("aiohttp", "opentelemetry.sdk", "prometheus_client", "rich", "tldextract"),
    *("scrapy.core.engine", "semaphore_middleware.core.semaphore", "twisted.internet.reactor"),
)
"""Modules that take long to import, and are for crawls, pages and tables alone."""
VERBS = [
    "semaphore -h",
    "semaphore limit a 2",
    "semaphore pause --all",
    "semaphore resume --all",
    "semaphore reset a",
    "semaphore status --json",
    "semaphore report --json a",  # feature: report
    "semaphore check a.example",
    "semaphore evict one --yes",
    "frontier status --json",  # feature: shared_crawl
]
RUN_ALL = f"""
import sys
from scrapy.cmdline import execute
before = set(sys.modules)
for words in {VERBS}:
    try:
        execute(["scrapy", *words.split()])
    except SystemExit as end:
        assert end.code in (0, 4), words
sys.exit(f"imported: {{(set(sys.modules) - before).intersection({NEEDLESS})}}")
"""


async def test_verbs_import_only_what_they_need(server: RedisServer) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", RUN_ALL),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "SEMAPHORE_REDIS_URL": server.url},
        cwd="/",
    )
    _, err = await process.communicate()
    assert err.decode().splitlines()[-1] == "imported: set()"


async def test_a_verb_that_is_broken_breaks_no_other(server: RedisServer, tmp_path: Path) -> None:
    broken = {
        "broken": "raise ValueError('half\\nwritten')",
        "lone": "import a_library_of_an_extra",
        "alien": "VERB = 'a text'",
    }
    for name, text in broken.items():
        (tmp_path / f"{name}.py").write_text(text)
    metadata = tmp_path / "broken-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    points = "\n".join(f"{name} = {name}:VERB" for name in broken)
    (metadata / "entry_points.txt").write_text(f"[semaphore_middleware.verbs]\n{points}\n")
    hidden: dict[str, Any] = {"environment": {"PYTHONPATH": str(tmp_path), "COLUMNS": "200"}}
    problems = {
        "broken": "broken:VERB cannot be loaded: half written",
        "lone": "this needs a_library_of_an_extra: pip install 'scrapy-semaphore[commands]'",
        "alien": "alien:VERB cannot be loaded: it is not a Verb",
    }
    listed = await semaphore_process(server, "-h", **hidden)
    assert listed.status == 0
    for name, problem in problems.items():
        assert problem in " ".join(listed.out.split())
        assert await semaphore_process(server, name, **hidden) == (2, "", f"{SAYS}{problem}\n")
    assert (await semaphore_process(server, "status", **hidden)).status == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        *(
            (
                ("limit", "x", number),
                f"N = '{number}': allowed is an integer from 1 to 1e9, or 'none'",
            )
            for number in ("0", "-1", "1.5")
        ),
        (
            ("limit", "x", "1", "--delay", "inf"),
            "--delay inf: allowed is a number of seconds, 0 to 1e9",
        ),
        (
            ("limit", "x", "1", "--rate", "60"),
            f"--rate 60: allowed is {ALLOWED_RATE}; or 'none'\n",
        ),
        (
            ("limit", "x", "1", "--rate", "1/s", "--burst", "0"),
            "--burst 0: allowed is an integer 1 to 1e6, only with a 'rate'",
        ),
        (("limit", "a*", "1"), "the limit of 'a*': a '*' may only stand first"),
        (("pause", ""), "the limit of '': the host is empty"),
        (("reset", "*.*"), "the limit of '*.*': allowed is a host, or '*.' and a host"),
        (("status", "--frob"), "unexpected '--frob'; see scrapy semaphore status -h"),
        (("status", "--nodse"), "unexpected '--nodse'; did you mean --nodes?"),
        (("statsu",), "there is no verb 'statsu'; did you mean status?"),
        (("unpause", "a"), "there is no verb 'unpause'; did you mean resume?"),
        (("pause", "*"), "for all sites, write --all in place of '*'"),
        (("halt",), "there is no verb 'halt'; the verbs are check, evict, limit, "),
        (
            ("reset", "--all", "--yes", "-s", "SEMAPHORE_REDIS=redis://there"),
            "SEMAPHORE_REDIS: there is no such setting; did you mean SEMAPHORE_REDIS_URL?",
        ),
        *(
            ((verb, "all"), "no scope 'all' is in use; --all is for all sites")
            for verb in ("pause", "resume", "reset")
        ),
        (("pause",), "pause takes either SCOPE or --all"),
        (("reset", SITE, "--all"), "reset takes either SCOPE or --all"),
        (("limit", SITE), f"limit {SITE}: give N, or an option"),
        (("limit",), "the following arguments are required: SCOPE; see scrapy semaphore limit -h"),
        (("limit", SITE, "2", "3"), "unexpected '3'"),
        (("limit", SITE, "--burst", "3"), "--burst 3: it needs a rate; give --rate too"),
        (("limit", SITE, "--rate", "none", "--burst", "3"), "--burst 3: it needs a rate"),
        (("limit", SITE, "--jitter", "2"), "--jitter 2: allowed is a number, 0 to 1"),
        (("limit", f"{SITE}:80", "2"), f"'{SITE}:80': give only the host:"),
        (
            ("limit", ".a.test", "2"),
            "'.a.test': no request has this name; write '*.a.test' for",
        ),
        (("resume", "host:a.test"), "'host:a.test': no request has this name; write 'a.test'"),
        (("pause", "proxy:10.0.0.1"), "'proxy:10.0.0.1': no request has this name; write it like"),
        (("reset", "a.test,b.test"), "'a.test,b.test': write each host by itself: 'a.test' and"),
        (("status", "a.test/"), "'a.test/': give only the host: 'a.test'"),
        (("report", "a.test/"), "'a.test/': give only the host: 'a.test'"),  # feature: report
        (("limit", SITE, "--rate", ""), "argument --rate: the value is empty"),
        (("status", "--top", "0"), "--top 0: allowed is an integer >= 1"),
        (("status", "--top", "1", "--all"), "give either --top or --all"),
        (("status", "--sort", "name"), "--sort name: allowed is waiting, held, wait or host"),
        (("pause", "x", "y"), "unexpected 'y'; see scrapy semaphore pause -h"),
        (("watch", "--top", "0"), "--top 0: allowed is an integer >= 1"),
        (
            ("status", "-s", "SEMAPHORE_REDIS_URL=nonsense"),
            "SEMAPHORE_REDIS_URL: not a server's address; allowed is redis://",
        ),
        (("status", "-s", "SEMAPHORE_LEASE=0"), "SEMAPHORE_LEASE = '0': allowed is"),
        *(
            (arguments, f"{URL!r}: give only the host: '::1'")
            for arguments in (("limit", URL, "2"), ("pause", URL), ("reset", URL), ("status", URL))
        ),
    ],
)
async def test_what_is_not_allowed_is_said_in_one_line(
    server: RedisServer, outside: Outside, arguments: tuple[str, ...], said: str
) -> None:
    before = outside.dump()
    ran = await semaphore(server, *arguments)
    assert (ran.status, ran.out) == (2, "")
    (line,) = ran.err.splitlines(keepends=True)
    assert line.startswith(f"{SAYS}{said}")
    assert "None" not in line
    assert outside.dump() == before


@pytest.mark.parametrize(
    "arguments", [("status",), ("pause", SITE), ("evict", "n", "--yes"), ("trust", "--yes")]
)
async def test_a_server_that_cannot_be_reached_is_given_up(arguments: tuple[str, ...]) -> None:
    port = free_port()
    ran = await semaphore(f"redis://:secret@127.0.0.1:{port}/0", *arguments)
    assert ran.status == 3
    (line,) = ran.err.splitlines()
    assert line.startswith(f"{SAYS}cannot reach redis://127.0.0.1:{port}/0: ")
    assert "secret" not in line + ran.out


async def test_a_server_that_hangs_is_given_up(server: RedisServer) -> None:
    """Also after an operator's yes: each step has its own time-out."""
    await three_nodes(server)
    brief = ("-s", "SEMAPHORE_LEASE=12")
    no_answer = f"{SAYS}cannot reach {server.url}: no answer within 2 s"
    async with terminal(server, "evict", "one", *brief, width=200) as shown:
        await shown.has_drawn("[y/N] ")
        with server.frozen():
            shown.press(b"y\n")
            assert await shown.ended() == 3
            assert no_answer in shown.drawn
            assert await semaphore(server, "status", *brief) == (3, "", f"{no_answer}\n")


async def test_without_an_address_the_embedded_server_is_found_but_not_started() -> None:
    directory = Path(os.environ[embedded.DIRECTORY])
    none = (
        "no server's address is given (SEMAPHORE_REDIS_URL or REDIS_URL, in the settings, by -s, "
        "or in the environment), and no embedded server runs\n"
    )
    assert await semaphore(None, "status") == (3, "", f"{SAYS}{none}")
    assert os.listdir(directory) == []  # noqa: PTH208 - in a coroutine all are as good
    async with FairSemaphore() as node:
        await node.acquire(SITE, 2)
        found = await semaphore(None, "status")
        assert (found.status, found.lines[1].split()[:2]) == (0, [SITE, "1/2"])
        assert embedded.find() == node.url
    # The command has not kept the server alive: it ends with its last user.
    await eventually(lambda: embedded.find() is None)
    ended = await semaphore(None, "status")
    assert ended.status == 3
    assert "the embedded server ended with its last crawl" in ended.err
    os.chmod(directory, 0o755)  # noqa: PTH101 - in a coroutine all are as good
    said = f"{directory} is not a private directory of this user's; allowed is one of mode 700"
    (directory / "server.sock").touch()
    assert await semaphore(None, "status") == (3, "", f"{SAYS}{said}\n")


async def test_without_rich_or_aiohttp_the_rest_works(server: RedisServer, tmp_path: Path) -> None:
    await three_nodes(server)
    for library in ("rich", "aiohttp"):
        (tmp_path / f"{library}.py").write_text("raise ImportError")
    hidden: dict[str, Any] = {"environment": {"PYTHONPATH": str(tmp_path)}}
    needs = "this needs rich: pip install 'scrapy-semaphore[commands]' (--json works without it)"
    ran = await semaphore_process(server, "status", **hidden)
    assert ran == (2, "", f"{SAYS}{needs}\n")
    for arguments in (("status", "--json"), ("pause", SITE), ("evict", "one", "--yes")):
        assert (await semaphore_process(server, *arguments, **hidden)).status == 0


async def test_closed_input_is_an_empty_one(server: RedisServer) -> None:
    await three_nodes(server)
    assert (await semaphore(server, "pause", SITE)).status == 0
    for arguments, status in (("evict one", 1), ("reset --all", 1), ("trust", 2)):
        ran = await semaphore(server, *arguments.split(), answer=None)
        assert ran.status == status
        if status == 1:
            assert ran.lines[-1] == "Nothing was changed."


@pytest.mark.parametrize("encoding", ["latin-1", None])
def test_output_without_a_character_is_no_error(monkeypatch: Patch, encoding: str | None) -> None:
    shown = io.BytesIO()
    out = io.TextIOWrapper(shown, encoding) if encoding else None  # as after `>&-`
    ran = SemaphoreCommand()
    ran.settings = Settings()
    monkeypatch.setattr("scrapy.utils.log.configure_logging", lambda _: None)
    verb = Verb("write", lambda *_: sys.stdout.write("limit ∞") and 0)
    monkeypatch.setattr("semaphore_middleware.operators.verbs._load", lambda _: verb)
    monkeypatch.setattr(sys, "stdout", out)
    ran.run(["limit"], Namespace(asks_for_help=False, set=[]))
    assert ran.exitcode == 0
    assert shown.getvalue() == (b"limit ?" if encoding else b"")
    sys.stdout.close()


@pytest.mark.slow
async def test_a_pipe_that_is_closed_is_no_error(server: RedisServer) -> None:
    await three_nodes(server)
    command = f"{sys.executable} -m scrapy semaphore status | true; exit ${{PIPESTATUS[0]}}"
    process = await asyncio.create_subprocess_exec(
        *("bash", "-c", command),
        env={**os.environ, "SEMAPHORE_REDIS_URL": server.url},
        stderr=asyncio.subprocess.PIPE,
    )
    _, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")
