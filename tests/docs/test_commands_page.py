"""docs/commands.md is true: each command in it is run, and prints what it says there."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from semaphore_middleware.model.inspection import Inspection, JobShare, Member
from semaphore_middleware.model.limits import Limit
from semaphore_middleware.model.rules import Rule
from semaphore_middleware.operators.snapshot import Snapshot
from semaphore_middleware.politeness import ALL_REASONS, NO_FINDINGS
from tests.support.cli import OldCaller, semaphore
from tests.support.paths import REPOSITORY
from tests.support.servers import RedisServer
from tests.support.times import ENDLESS_S

PAGE = (REPOSITORY / "docs" / "commands.md").read_text("utf-8")
TIME = re.compile(r"\b\d+(\.\d+)? (ms|s|min|h)\b")


def examples() -> Iterator[tuple[list[str], str]]:
    """Each command of the page, and what it prints there."""
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL):
        for example in block.removeprefix("$ ").split("\n$ "):
            line, _, printed = example.partition("\n")
            _, _, *arguments = shlex.split(line)
            yield arguments, printed.strip()


async def crawl(server: RedisServer) -> None:
    """The nodes of the page. Their leases do not end while it is read."""
    names = ("books-a-4711-5d0c2f…", "books-b-311-90be77…", "books-c-99-c3a04e…")
    a, b, c = nodes = [await OldCaller.join(server, name) for name in names]
    for node, permits in ((a, 2), (b, 2), (a, 2), (b, 2), (c, 1)):
        await node.take("www.example.org", permits, limit=4)
    for node in nodes:
        await node.hold("shop.example.org", Limit(8, rate="30/m", burst=10))
        await node.hold("api.example.net", Limit(2, delay=300))


def told(printed: str) -> list[str]:
    """Without what differs from run to run: times, and so the widths of columns."""
    return [" ".join(TIME.sub("TIME", line).split()) for line in printed.splitlines()]


async def test_each_example_prints_what_the_page_says(server: RedisServer) -> None:
    await crawl(server)
    seen = 0
    for arguments, printed in examples():
        lease = ("-s", f"SEMAPHORE_LEASE={20 * ENDLESS_S}") if arguments[0] == "evict" else ()
        ran = await semaphore(server, *arguments, *lease)
        assert (ran.status, ran.err) == (0, ""), arguments
        if printed:
            assert told(ran.out.strip()) == told(printed), arguments
        seen += 1
    assert seen == 16


def keys_of(what: str) -> list[str]:
    (item,) = re.findall(rf"^- {what}: ((?:.|\n  )*)$", PAGE, re.MULTILINE)
    return re.findall(r"`(\w+)`", item)


def test_the_keys_of_the_json_are_those_of_the_page() -> None:
    member = Member("n", 1, 1, 1.0, 1.0, 1.0, Limit(4))
    jobs = JobShare.of([member, replace(member, job="news")])
    snapshot = Snapshot.of(
        [Inspection("s", 1, (member,), jobs=jobs, findings=NO_FINDINGS)], [Rule("s", "me")]
    )
    shown: dict[str, Any] = snapshot.as_json()
    assert list(shown) == ["totals", "scopes", "nodes", "rules"]
    assert list(shown["totals"]) == keys_of("`totals`")
    (scope,), (node,), (rule,) = shown["scopes"], shown["nodes"], shown["rules"]
    assert list(scope) == keys_of("`scopes`, of each")
    assert list(scope["nodes"][0]) == keys_of("`nodes` of a scope, of each")
    assert list(scope["jobs"][0]) == keys_of("`jobs` of a scope, of each")
    assert list(node) == keys_of("`nodes`, of each")
    assert list(rule) == keys_of("`rules`, of each")


def test_the_page_lists_all_states() -> None:
    rows = "".join(f"| `{reason.name}` | {reason.sentence} |\n" for reason in ALL_REASONS)
    assert rows in PAGE
