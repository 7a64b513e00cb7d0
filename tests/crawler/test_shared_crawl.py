"""The rules of a shared crawl, verb by verb, on a real client."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import Redis

from crawler.shared_crawl import CrawlEndedError, CrawlLostError, Entry, Next, SharedCrawl, Taken
from tests.crawler.conftest import crawl_keys, wait_until


def node(client: Redis, name: str, crawl: str = "books", lease: float = 60.0) -> SharedCrawl:
    shared = SharedCrawl(client, crawl, name, lease)
    shared.join()
    return shared


def push(
    crawl: SharedCrawl, data: bytes, score: float = 0, fingerprint: str = "", most: int = 0
) -> bool:
    return crawl.push(Entry(crawl.new_id(), score, data, fingerprint), most)


def pop(crawl: SharedCrawl, *done: Taken) -> Taken:
    taken = crawl.pop([one.id for one in done])
    assert taken is not None
    return taken


def die(crawl: SharedCrawl) -> None:
    """Its mark is no longer renewed, and ends."""
    crawl.server.zadd(crawl.key("working"), {crawl.node: 1})


def test_requests_leave_in_order_of_their_score_each_once(client: Redis) -> None:
    one, two = node(client, "one"), node(client, "two")
    push(one, b"later", score=2)
    push(two, b"sooner", score=1)
    assert [pop(two).data, pop(one).data, one.pop()] == [b"sooner", b"later", None]


def test_a_fingerprint_is_queued_once_for_all_nodes(client: Redis) -> None:
    one, two = node(client, "one"), node(client, "two")
    assert push(one, b"page", fingerprint="a")
    assert not push(two, b"page", fingerprint="a")
    assert one.counts().queued == 1


def test_what_has_no_fingerprint_is_queued_as_often_as_it_comes(client: Redis) -> None:
    one = node(client, "one")
    assert push(one, b"page")
    assert push(one, b"page")
    assert one.counts().queued == 2


@pytest.mark.parametrize("fingerprint", ["a", ""])
def test_an_entry_that_is_sent_twice_is_queued_once(client: Redis, fingerprint: str) -> None:
    one = node(client, "one")
    entry = Entry(one.new_id(), 0, b"page", fingerprint)
    assert one.push(entry)
    assert one.push(entry)
    assert pop(one).data == b"page"
    assert one.push(entry)  # in hand is as good as queued
    assert one.pop() is None


def test_all_nodes_together_queue_at_most_the_number_allowed(client: Redis) -> None:
    nodes = [node(client, f"node-{number}") for number in range(4)]

    def push_page(number: int) -> bool:
        return push(nodes[number % 4], b"page", fingerprint=f"page-{number // 2}", most=25)

    with ThreadPoolExecutor(len(nodes)) as threads:
        assert sum(threads.map(push_page, range(200))) == 25
    assert push(nodes[0], b"again", most=25)  # without a fingerprint it is no other page


def test_a_resting_node_waits_for_one_that_works(client: Redis) -> None:
    one, two = node(client, "one"), node(client, "two")
    push(one, b"page")
    assert two.rest().next is Next.TAKE_MORE
    taken = pop(one)
    rest = two.rest()
    assert rest.next is Next.WAIT
    assert 0.0 < rest.seconds <= 60.0  # when the mark of `one` ends
    assert one.rest([taken.id]).next is Next.CLOSE
    with pytest.raises(CrawlEndedError):
        two.rest()


def test_a_crawl_that_is_done_leaves_nothing_behind(client: Redis) -> None:
    one = node(client, "one")
    push(one, b"page", fingerprint="a")
    assert one.rest([pop(one).id]).next is Next.CLOSE
    assert crawl_keys(client) == []


def test_a_crawl_that_is_ended_early_leaves_nothing_behind(client: Redis) -> None:
    one, two = node(client, "one"), node(client, "two")
    push(one, b"a", fingerprint="a")
    push(one, b"b")
    pop(two)
    one.end()
    assert crawl_keys(client) == []
    two.leave()
    one.end()
    assert crawl_keys(client) == []


@pytest.mark.parametrize("verb", ["pop", "work", "rest", "leave"])
def test_what_is_done_is_told_with_any_verb(client: Redis, verb: str) -> None:
    one, other = node(client, "one"), node(client, "other")
    push(one, b"page")
    taken = pop(one)
    assert other.counts().unfinished == 1
    getattr(one, verb)([taken.id])
    assert other.counts().unfinished == 0


def test_a_dead_nodes_requests_go_to_who_takes_next_before_all_others(client: Redis) -> None:
    dead, living = node(client, "dead"), node(client, "living")
    push(living, b"page", score=5)
    pop(dead)
    push(living, b"urgent", score=-5)
    assert pop(living).data == b"urgent"
    assert living.pop() is None
    push(living, b"more urgent", score=-10)
    die(dead)
    assert [pop(living).data, pop(living).data] == [b"page", b"more urgent"]


def test_a_dead_nodes_requests_go_to_who_rests_next(client: Redis) -> None:
    dead, living = node(client, "dead", lease=0.05), node(client, "living")
    push(living, b"page")
    pop(dead)
    wait_until(lambda: living.rest().next is Next.TAKE_MORE)
    assert living.rest([pop(living).id]).next is Next.CLOSE


def test_a_node_that_was_taken_for_dead_cannot_finish_what_others_have(client: Redis) -> None:
    sleeper, other = node(client, "sleeper"), node(client, "other")
    push(sleeper, b"page")
    taken = pop(sleeper)
    die(sleeper)
    assert pop(other) == taken
    sleeper.work([taken.id])
    assert other.counts().unfinished == 1
    other.leave()  # with the page in hand: it goes back
    assert pop(sleeper) == taken


def test_a_node_is_not_dead_to_itself(client: Redis) -> None:
    one = node(client, "one")
    push(one, b"page")
    taken = pop(one)
    die(one)
    assert one.pop() is None
    one.work([taken.id])
    assert one.counts().unfinished == 0


def test_a_node_that_starts_again_under_its_name_is_another(client: Redis) -> None:
    dead = node(client, "one")
    push(dead, b"page")
    taken = pop(dead)
    again, other = node(client, "one"), node(client, "other")
    assert push(again, b"link")
    assert pop(again).data == b"link"
    die(dead)
    assert pop(other) == taken


def test_a_request_whose_reply_was_lost_is_given_back_when_its_node_rests(client: Redis) -> None:
    one = node(client, "one")
    push(one, b"page")
    lost = pop(one)
    assert one.rest().next is Next.TAKE_MORE
    assert pop(one) == lost


def test_a_mark_is_renewed_while_its_node_works(client: Redis) -> None:
    one, two = node(client, "one", lease=0.05), node(client, "two")
    push(one, b"page")
    pop(one)
    one.lease = 60.0
    one.work()
    assert two.rest().seconds > 30.0


def test_a_node_that_leaves_keeps_the_rest_of_the_crawl_for_its_next_run(client: Redis) -> None:
    one = node(client, "one")
    for page in ("a", "b"):
        push(one, page.encode(), fingerprint=page)
    done, unfinished = pop(one), pop(one)
    one.leave([done.id])
    two = node(client, "two")
    assert not push(two, b"a", fingerprint="a")
    assert pop(two) == unfinished
    assert two.rest([unfinished.id]).next is Next.CLOSE


def test_who_came_too_late_leaves_no_trace(client: Redis) -> None:
    late, other = node(client, "late"), node(client, "other")
    assert other.rest().next is Next.CLOSE
    again = node(client, "again")  # a new run of the same name
    push(again, b"page")
    before = {key: client.dump(key) for key in crawl_keys(client)}
    for verb in (late.pop, late.work, late.rest, lambda: push(late, b"stray")):
        with pytest.raises(CrawlEndedError):
            verb()
    late.leave()
    late.end()
    assert {key: client.dump(key) for key in crawl_keys(client)} == before


def test_a_crawl_that_the_server_has_lost_has_not_ended(client: Redis) -> None:
    one, two = node(client, "one"), node(client, "two")
    push(one, b"page", fingerprint="a")
    client.flushall()
    for lost in (one, two):
        with pytest.raises(CrawlLostError):
            lost.rest()
    one.join()
    with pytest.raises(CrawlLostError):  # not even when others have begun anew
        two.pop()
    two.join()
    assert push(two, b"page", fingerprint="a")
    assert pop(one).data == b"page"


def test_a_node_that_never_joined_is_told(client: Redis) -> None:
    with pytest.raises(CrawlLostError):
        SharedCrawl(client, "books", "one").pop()


def test_news_tells_of_first_requests_of_who_leaves_and_of_the_end(client: Redis) -> None:
    one, two = node(client, "one"), node(client, "two")
    with client.pubsub(ignore_subscribe_messages=True) as listener:  # type: ignore[no-untyped-call]
        listener.subscribe(one.key("news"))
        push(one, b"a")
        push(one, b"b")  # there was one: whoever rests has been told
        taken = [pop(one), pop(one)]
        push(one, b"c")
        taken.append(pop(two))
        two.leave()  # which gives one back
        taken[2] = pop(one)
        one.rest([each.id for each in taken])
        heard: list[bytes] = []
        wait_until(lambda: _hear(listener, heard) and heard[-1] == b"done")
    assert heard == [b"requests", b"requests", b"requests", b"left", b"done"]


def _hear(listener: object, heard: list[bytes]) -> bool:
    message = listener.get_message(timeout=1.0)  # type: ignore[attr-defined]
    if message:
        heard.append(message["data"])
    return bool(heard)


NASTY = ["50%s %(spider)s", "{a}:b", "line\nbreak", "🕸", "", "x" * 10_000, "\udcff"]


def test_crawls_of_any_name_do_not_mix(client: Redis) -> None:
    for name in NASTY:
        push(node(client, "one", crawl=name), name.encode(errors="surrogateescape"))
    for name in NASTY:
        one = node(client, "one", crawl=name)
        taken = pop(one)
        assert taken.data == name.encode(errors="surrogateescape")
        assert one.rest([taken.id]).next is Next.CLOSE
    assert crawl_keys(client) == []
