"""`scrapy frontier`, as users type it; and Scrapy's own commands with the shared scheduler."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from semaphore_middleware import FairSemaphore, ServerUnreachableError
from semaphore_middleware.link import embedded
from semaphore_middleware.shared_crawl import crawls
from semaphore_middleware.shared_crawl.client import CrawlClient, NewRequest, NextStep, SyncReply
from semaphore_middleware.shared_crawl.new_requests import MAX_NEW_BYTES, MAX_NEW_REQUESTS
from tests.crawler.conftest import Scrapy, serving
from tests.support.blocking import result_of
from tests.support.cli import Ran, semaphore, terminal
from tests.support.rights import user
from tests.support.servers import RedisServer
from tests.support.shared_crawl import node


def typed(server: RedisServer, directory: Path, *arguments: str) -> tuple[int, str]:
    """The exit status of `scrapy ...` in the project `crawler`, and its output."""
    process = Scrapy(directory, 0, arguments, server.url)
    return process.wait(), process.log


def ran(server: RedisServer | str | None, *words: str, **terminal: Any) -> Ran:
    """`scrapy frontier ...`, in a thread: this one has a loop that runs."""
    command = semaphore(server, *words, command="frontier", **terminal)
    with ThreadPoolExecutor() as threads:
        return threads.submit(asyncio.run, command).result()


def test_status_drop_and_retry(server: RedisServer, client: Redis, tmp_path: Path) -> None:
    none = f"There is no shared crawl at {server.url}, prefix 'crawl'.\n"
    assert ran(server, "status") == (0, none, "")
    one, two = node(client, "one", crawl="books"), node(client, "two", crawl="music")
    one.push(b"a", fingerprint="a")
    one.push(b"b", fingerprint="b")
    two.push(b"done")
    two.works(two.pop())
    two.push(b"c")
    for _ in range(3):
        two.cannot_read(two.pop())
    assert two.idles().next_step is NextStep.CLOSE
    one.pop()
    # Keys of other programs hide no crawl.
    client.set("{crawl:text}:run", "1", ex=60)
    client.hset("{crawl:text elsewhere}:run", "id", "1")
    client.set("{crawl:text elsewhere}:queue", "1")
    client.hset("{crawl:no number}:run", mapping={"id": "1", "pages": "many"})
    client.hset(b"{crawl:\xff}:run", "id", "1")
    status, shown = typed(server, tmp_path, "frontier", "status")
    assert status == 0
    assert [line.split() for line in shown.splitlines()[1:]] == [
        ["books", "running", "1", "1", "1", "1", "0", "0", "2", "0"],
        ["music", "ended", *"00001001"],
    ]
    assert ran(server, "retry", "music") == (0, "music: 1 request is queued again.\n", "")
    client.hset("{crawl:books}:run", "version", "1")
    for words in (["add", "books", "http://a/"], ["retry", "books"], ["end", "books"]):
        status, _, error = ran(server, *words)
        assert (status, "is in use by another version" in error) == (2, True)
    size = "books is running: 1 node, 0 pages fetched, 2 unfinished requests.\n"
    kept = ran(server, "drop", "books")
    assert (kept.status, kept.out) == (1, f"{size}Forget it? [y/N]\nNothing was changed.\n")
    assert ran(server, "drop", "books", "--yes") == (0, "books is dropped.\n", "")
    assert two.size.queued == 1
    told = ran(server, "status", "nothing")
    assert told == (4, "", "scrapy frontier: there is no crawl 'nothing'\n")


def test_who_has_taken_what_is_shown(server: RedisServer, client: Redis) -> None:
    one, two, late, cut = (node(client, each) for each in ("one", "two", "late", "cut"))
    one.pushes(*(one.new(b'{"url": "http://a/%d"}' % page) for page in range(3)), one.new(b"old"))
    taken = one.keys.key("taken")
    one.pop(), one.pop()
    old, _ = client.zrange(taken, 0, -1)
    two.idles()
    result_of(cut.sync(working=True, stopping=True))
    late.pop(), late.pop()
    late.dies()
    ahead = [each for each in client.zscan_iter(taken) if each[0].startswith(late.node.encode())]
    for member, seconds in [(old, -600), *((member, 600) for member, _ in ahead)]:
        assert isinstance(member, bytes)
        since = int.from_bytes(member[-4:], "big") + seconds  # as if the clock had been set
        client.zrem(taken, member)
        client.zadd(taken, {member[:-4] + since.to_bytes(4, "big"): 0})
    shown = [line.split() for line in ran(server, "status", "books").lines[3:]]
    assert shown == [
        ["node", "state", "in", "flight", "oldest", "its", "URL"],
        [cut.node, "stopping", "0", "-", "-"],
        [late.node, "silent", "2", "0", "s", "http://a/2"],
        [one.node, "at", "work", "2", "10", "min", "http://a/0"],
        [two.node, "waiting", "0", "-", "-"],
    ]
    (told,) = json.loads(ran(server, "status", "books", "--json").out)
    assert (
        told["in_flight_by"][2].items()
        >= {"node": one.node, "state": "at work", "in_flight": 2}.items()
    )
    assert told["in_flight_by"][2]["oldest"] == "http://a/0"


def test_the_documented_user_may_use_all_verbs(server: RedisServer, client: Redis) -> None:
    node(client, "one", crawl="books").push(b"page")
    may = {"name": "frontier"}
    lone = user(server, **may)
    assert "no permissions to run the 'zscan' command" in ran(lone, "status").err
    sees = user(server, "+scan", "+zscan", "+hgetall", **may)
    for words in (["status"], ["status", "books"], ["status", "books", "--json"]):
        status, shown, error = ran(sees, *words)
        assert (status, "books" in shown, error) == (0, True, "")
        if "--json" not in words:
            last = shown.splitlines()[-1]
            assert last.startswith("Sites that are down or blocked are not shown: ")
            assert "does not permit the user 'frontier' what is needed" in last
            assert last.endswith("; all keys begin with '{semaphore}'.")
    all_seen = user(server, "+scan", "+zscan", "+hgetall", "%R~{semaphore}:*", "+evalsha_ro", **may)
    assert "not shown" not in ran(all_seen, "status").out
    user(server, **may)
    for verb in (["add", "books", "http://a/"], ["retry", "books"], ["end", "books"]):
        assert ran(lone, *verb).status == 0
    assert ran(lone, "drop", "books", "--yes").status == 0


def test_all_keys_of_the_server_are_looked_at_once(server: RedisServer, client: Redis) -> None:
    def shown() -> list[str]:
        return [line.split()[0] for line in ran(server, "status").lines[1:]]

    node(client, "one", crawl="books")
    index = b"{crawl:}:index"
    assert not client.exists(index), "nobody looks"
    assert shown() == ["books"]
    looks = server.calls("scan")
    node(client, "one", crawl="films")
    assert shown() == ["books", "films"]
    assert server.calls("scan") == looks
    assert client.ttl(index) > 0
    client.delete(index)
    assert shown() == ["books", "films"]
    assert server.calls("scan") > looks


def test_what_all_nodes_have_counted_is_shown(server: RedisServer, client: Redis) -> None:
    one = node(client, "one", crawl="books")
    for each, number in ((one, 1200), (node(client, "two", crawl="books"), 34)):
        result_of(each.sync(stats={"item_scraped_count": number, "\x1b[2J": 1}))
    told = ran(server, "status", "books")
    assert told.lines[-3:] == [
        "books, all nodes together:",
        r"  \x1b[2J                        2",
        "  item_scraped_count         1,234",
    ]
    (told,) = json.loads(ran(server, "status", "--json").out)
    assert (told["name"], told["state"], told["nodes"]) == ("books", "running", 2)
    assert told["stats"] == {"item_scraped_count": 1234, "\x1b[2J": 2}


def test_what_was_added_is_said_though_the_server_goes_away(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def leave_in_vain(*_: Any) -> None:
        raise ServerUnreachableError

    monkeypatch.setattr(CrawlClient, "leave", leave_in_vain)
    said = "site: 1 request queued.\nThere was no crawl 'site': it begins with this.\n"
    assert ran(server, "add", "site", "https://a.example/") == (0, said, "")


@pytest.mark.parametrize(
    ("is_lost", "said"),
    [
        (True, "the server has lost the crawl 'site'; add all lines again"),
        (False, "the crawl 'site' has ended; begin it anew with -s CRAWL_RUN=new, or drop it: "),
    ],
)
def test_a_run_that_ends_meanwhile_is_named(
    server: RedisServer, client: Redis, monkeypatch: pytest.MonkeyPatch, is_lost: bool, said: str
) -> None:
    sync = CrawlClient.sync

    async def sync_and_end(self: CrawlClient, *arguments: Any, **options: Any) -> SyncReply:
        reply = await sync(self, *arguments, **options)
        if is_lost:
            client.delete(*client.scan_iter("{crawl:site}*"))
        else:
            ran(server, "end", "site", "--now")
        return reply

    monkeypatch.setattr(CrawlClient, "sync", sync_and_end)
    monkeypatch.setattr(crawls, "MAX_NEW_REQUESTS", 1)
    told = ran(server, "add", "site", "http://a/1", "http://a/2")
    assert (told.status, told.out) == (2, "")
    assert told.err.startswith(f"scrapy frontier: {said}")
    assert told.err.endswith("; queued before that: 1\n")
    assert told.err.count("\n") == 1


def test_a_call_carries_as_much_as_one_of_a_node(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sync, calls = CrawlClient.sync, list[list[int]]()

    async def sync_too(self: CrawlClient, new: Sequence[NewRequest], **options: Any) -> SyncReply:
        calls.append([len(request.data) for request in new])
        return await sync(self, new, **options)

    monkeypatch.setattr(CrawlClient, "sync", sync_too)
    urls = [f"http://a/{page}" for page in range(MAX_NEW_REQUESTS + 1)]
    bodies = ("x" * (MAX_NEW_BYTES // parts) for parts in (5, 5, 5, 5, 5, 1, 5))
    lines = [json.dumps({"url": "http://b/", "body": body}) for body in bodies]
    file = tmp_path / "lines"
    file.write_text("\n".join([*urls, *lines, "wrong"]))
    assert "line 509: " in ran(server, "add", "site", "-f", str(file)).err
    assert len(calls[0]) == MAX_NEW_REQUESTS
    assert sum(map(len, calls)) == MAX_NEW_REQUESTS + 8
    assert all(len(sizes) == 1 or sum(sizes) <= MAX_NEW_BYTES for sizes in calls)


async def test_nothing_has_begun_while_lines_are_typed(server: RedisServer, client: Redis) -> None:
    async with terminal(server, "add", "site", command="frontier") as typed:
        await typed.has_drawn("Ctrl-D ends them.")
        assert await typed.ends_with(b"\x03") == 130
    assert "Traceback" not in typed.drawn
    assert list(client.scan_iter("{crawl:*")) == []


def test_nothing_has_begun_while_a_pipe_is_read(
    server: RedisServer, client: Redis, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as threads:
        threads.submit(pipe.write_bytes, b"https://a.example/1\n" + b"\xff")
        told = ran(server, "add", "site", "-f", str(pipe))
        assert (told.status, told.out) == (2, "")
        assert told.err.startswith(f"scrapy frontier: {pipe}: 'utf-8' codec can't decode byte 0xff")
        assert told.err.endswith("; nothing is queued\n")
        assert list(client.scan_iter("{crawl:*")) == []
        threads.submit(pipe.write_bytes, b"https://a.example/1\nhttps://a.example/2")
        told = ran(server, "add", "site", "-f", str(pipe))
        assert told.lines[0] == "site: 2 requests queued."


def test_requests_are_added_from_wherever_they_are(
    server: RedisServer, client: Redis, tmp_path: Path
) -> None:
    asked = ["https://a.example/1", '{"url": "https://a.example/2", "priority": 7}']
    begun = "site: 2 requests queued.\nThere was no crawl 'site': it begins with this.\n"
    assert ran(server, "add", "site", *asked) == (0, begun, "")
    file = tmp_path / "urls"
    file.write_text("\ufeff# pages\nhttps://a.example/1\n\n  # more\nhttps://a.example/3\n")
    said = "site: 1 request queued; queued before: 1.\n"
    assert ran(server, "add", "site", "-f", str(file)) == (0, said, "")
    one = node(client, "one", crawl="site")
    urls = [json.loads(one.pop().data)["url"] for _ in range(3)]
    assert urls == [f"https://a.example/{page}" for page in (2, 1, 3)]
    hint = "One URL or JSON object a line; Ctrl-D ends them.\n"
    for in_terminal, shown in ((False, ""), (True, hint)):
        url = f"https://a.example/typed-{in_terminal}"
        told = ran(server, "add", "site", answer=url, in_terminal=in_terminal)
        assert told == (0, "site: 1 request queued.\n", shown)
    wrong = tmp_path / "wrong"
    wrong.write_text("# pages\n\na\n")
    for words, said in (
        (["-f", str(wrong)], "line 3: 'a': Missing scheme"),
        (["a"], "line 1: 'a': Missing scheme in request url: a"),
        (['"https://a.example/"'], "line 1: '\"https://a.example/\"': no scheme or no host in"),
        (["https://"], "line 1: 'https://': no scheme or no host in request url: https://"),
        (['{"meta": {}}'], "line 1: '{\"meta\": {}}': the field 'url' is missing"),
        (['{"meta": }'], "line 1: '{\"meta\": }': not JSON: Expecting value"),
        (
            ['{"url": "https://a/", "x": 1}'],
            'line 1: \'{"url": "https://a/", "x": 1}\': \'x\' is not a field; allowed are url, ',
        ),
        (
            ['{"url": "https://a/", "priority": "x"}'],
            'line 1: \'{"url": "https://a/", "priority": "x"}\': priority = \'x\': allowed is int',
        ),
        (["https://a.example/4", "-f", str(file)], "give URLs or -f FILE, not both"),
        (["-f", "none"], "none: No such file"),
    ):
        told = ran(server, "add", "site", *words)
        assert (told.status, told.out) == (2, "")
        assert told.err.startswith(f"scrapy frontier: {said}")
    assert ran(server, "end", "site", "--now").status == 0
    told = ran(server, "add", "site", "https://a.example/")
    assert told.status == 2
    assert "has ended; begin it anew with -s CRAWL_RUN=new" in told.err
    told = ran(server, "add", "site", "https://a.example/", "-s", "CRAWL_RUN=new")
    assert told == (0, "site: 1 request queued.\n", "")


def test_a_crawl_is_ended(server: RedisServer, client: Redis) -> None:
    one = node(client, "one", crawl="books")
    one.push(b"page")
    said = "books ends when all that is queued is done.\n"
    assert ran(server, "end", "books") == (0, said, "")
    assert ran(server, "end", "books", "--now") == (0, "books has ended.\n", "")
    said = "scrapy frontier: no run of 'books' is under way\n"
    assert ran(server, "end", "books") == (4, "", said)


def test_names_do_not_control_the_terminal(server: RedisServer, client: Redis) -> None:
    name, shown = "a\x1b[2J\n\udcff", r"a\x1b[2J\n\udcff"
    node(client, "one", crawl=name)
    said = []
    for words in (["status"], ["status", name], ["retry", name], ["drop", name, "--yes"]):
        told = ran(server, *words)
        assert told.status == 0
        said += told.lines
    first = [line.split()[0] for line in said if line]
    assert first == [*("crawl", shown) * 2, "node", first[5], f"{shown}:", shown]
    told = ran(server, "drop", f"{name}s", "--yes")
    assert told == (4, "", f"scrapy frontier: there is no crawl '{shown}s'\n")


def test_a_mistake_is_named_in_one_line(server: RedisServer) -> None:
    said = "scrapy frontier: unexpected 'b'; see scrapy frontier retry -h\n"
    assert ran(server, "retry", "a", "b", "c") == (2, "", said)
    said = "scrapy frontier: NAME is empty: allowed is the name of a crawl\n"
    for words in (["add", "", "https://a.example/"], ["end", ""], ["status", ""]):
        assert ran(server, *words) == (2, "", said)
    told = ran(server, "add", "a", "https://a.example/", "-s", "CRAWL_PREFIX={a}")
    assert told.err.startswith("scrapy frontier: CRAWL_PREFIX = '{a}': allowed is ")


def test_closed_input_is_an_empty_one(server: RedisServer) -> None:
    assert ran(server, "add", "a", "http://a/").status == 0
    dropped = ran(server, "drop", "a", answer=None)
    assert (dropped.status, dropped.lines[-1]) == (1, "Nothing was changed.")
    assert ran(server, "add", "a", answer=None).status == 0


async def test_without_an_address_the_embedded_server_is_found_but_not_started() -> None:
    none = "scrapy frontier: no server's address is given "
    listed = ran(None, "status")
    assert (listed.status, listed.out) == (3, "")
    assert listed.err.startswith(none)
    assert listed.err.endswith("and no embedded server runs\n")
    assert os.listdir(os.environ[embedded.DIRECTORY]) == []  # noqa: PTH208 - in a coroutine all are as good
    async with FairSemaphore() as node:
        assert ran(None, "status").status == 0
        assert embedded.find() == node.url


def test_scrapys_commands_share_nothing(server: RedisServer, client: Redis, tmp_path: Path) -> None:
    with serving(pages=3) as site:
        for command, printed in (
            ("fetch --nolog URL", "<title>Page 0</title>"),
            ("parse --nolog --spider=site -a url=URL --noitems URL", "/page/1>"),
            ("shell --nolog URL -c print(response.status,response.url)", "200 URL"),
        ):
            status, shown = typed(server, tmp_path, *command.replace("URL", site.url).split())
            assert status == 0
            assert printed.replace("URL", site.url) in shown
    assert list(client.scan_iter("{crawl:*")) == []


def test_requests_for_a_name_that_is_no_crawl_say_that_they_begin_one(server: RedisServer) -> None:
    begun = "bokos: 1 request queued.\nThere was no crawl 'bokos': it begins with this.\n"
    assert ran(server, "add", "bokos", "http://a/") == (0, begun, "")
    assert ran(server, "add", "bokos", "http://b/").out == "bokos: 1 request queued.\n"
