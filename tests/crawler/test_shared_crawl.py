"""The rules of a shared crawl, verb by verb, on a real client."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import Redis

from crawler.shared_crawl import CrawlEndedError, Next, SharedCrawl
from tests.crawler.conftest import crawl_keys, wait_until


def node(client: Redis, name: str, crawl: str = "books", lease: float = 60.0) -> SharedCrawl:
    shared = SharedCrawl(client, crawl, name, lease)
    shared.join()
    return shared


def test_requests_leave_in_order_of_their_score_each_once(client: Redis) -> None:
    one, two = node(client, "one"), node(client, "two")
    one.push(2, b"later")
    two.push(1, b"sooner")
    assert [two.pop(), one.pop(), one.pop()] == [b"sooner", b"later", None]


def test_a_fingerprint_is_new_once_for_all_nodes(client: Redis) -> None:
    one, two = node(client, "one"), node(client, "two")
    assert one.see("a", most=0)
    assert not two.see("a", most=0)


def test_all_nodes_together_see_at_most_the_number_allowed(client: Redis) -> None:
    nodes = [node(client, f"node-{number}") for number in range(4)]
    with ThreadPoolExecutor(len(nodes)) as threads:
        seen = threads.map(lambda n: nodes[n % 4].see(f"page-{n // 2}", most=25), range(200))
    assert sum(seen) == 25


def test_a_resting_node_waits_for_one_that_works(client: Redis) -> None:
    one, two = node(client, "one"), node(client, "two")
    one.push(0, b"page")
    assert two.rest() is Next.TAKE_MORE
    one.pop()
    assert two.rest() is Next.WAIT
    assert one.rest() is Next.CLOSE
    assert two.rest() is Next.CLOSE


def test_a_crawl_that_is_done_leaves_nothing_behind(client: Redis) -> None:
    one = node(client, "one")
    one.see("a", most=0)
    one.push(0, b"page")
    one.pop()
    assert one.rest() is Next.CLOSE
    assert crawl_keys(client) == []


def test_a_dead_node_is_waited_for_until_its_mark_ends(client: Redis) -> None:
    dead, living = node(client, "dead", lease=0.05), node(client, "living")
    living.push(0, b"page")
    dead.pop()
    wait_until(lambda: living.rest() is Next.CLOSE)


def test_a_mark_is_renewed_while_its_node_works(client: Redis) -> None:
    one, two = node(client, "one", lease=0.05), node(client, "two")
    one.push(0, b"page")
    one.pop()
    one.lease = 60.0
    one.work()
    assert (client.zscore(one.working, "one") or 0) > client.time()[0] * 1000 + 30_000
    assert two.rest() is Next.WAIT


def test_a_node_that_leaves_keeps_the_rest_of_the_crawl_for_its_next_run(client: Redis) -> None:
    one = node(client, "one")
    for page in ("a", "b"):
        one.see(page, most=0)
        one.push(0, page.encode())
    one.pop()
    one.leave()
    two = node(client, "two")
    assert not two.see("b", most=0)
    assert two.pop() == b"b"


def test_who_came_too_late_leaves_no_trace(client: Redis) -> None:
    late, other = node(client, "late"), node(client, "other")
    assert other.rest() is Next.CLOSE
    again = node(client, "again")  # a new run of the same name
    again.push(0, b"page")
    assert late.pop() is None
    with pytest.raises(CrawlEndedError):
        late.see("a", most=0)
    with pytest.raises(CrawlEndedError):
        late.push(0, b"stray")
    late.work()
    assert late.rest() is Next.CLOSE
    assert (again.counts().nodes, again.counts().queued) == (1, 1)
    assert client.zcard(again.working) == 0


def test_news_tells_of_first_requests_of_who_leaves_and_of_the_end(client: Redis) -> None:
    one, two = node(client, "one"), node(client, "two")
    with client.pubsub(ignore_subscribe_messages=True) as listener:  # type: ignore[no-untyped-call]
        listener.subscribe(one.news)
        one.push(0, b"a")
        one.push(0, b"b")  # there was one: whoever rests has been told
        one.pop()
        one.pop()
        one.push(0, b"c")
        one.pop()
        two.leave()
        one.rest()
        heard: list[bytes] = []
        wait_until(lambda: _hear(listener, heard) and heard[-1] == b"done")
    assert heard == [b"requests", b"requests", b"left", b"done"]


def _hear(listener: object, heard: list[bytes]) -> bool:
    message = listener.get_message(timeout=1.0)  # type: ignore[attr-defined]
    if message:
        heard.append(message["data"])
    return bool(heard)


NASTY = ["50%s %(spider)s", "{a}:b", "line\nbreak", "🕸", "", "x" * 10_000, "\udcff"]


def test_crawls_of_any_name_do_not_mix(client: Redis) -> None:
    for name in NASTY:
        node(client, "one", crawl=name).push(0, name.encode(errors="surrogateescape"))
    for name in NASTY:
        one = node(client, "one", crawl=name)
        assert one.pop() == name.encode(errors="surrogateescape")
        assert one.rest() is Next.CLOSE
    assert crawl_keys(client) == []
