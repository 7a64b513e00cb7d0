"""The rules of a shared crawl, verb by verb, on a real client."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from semaphore_middleware.frontier.client import CrawlEndedError, CrawlLostError, Entry, Next, Wish
from tests.crawler.conftest import crawl_keys, wait_until
from tests.frontier.outside import OutsideCrawl, wait_for
from tests.frontier.verbs import ONE, die, entry, fill, node, pop, push, take

# Queueing and taking ----------------------------------------------------------------------------


def test_requests_leave_in_order_of_their_score_each_once(client: Redis) -> None:
    one, two = node(client, "one"), node(client, "two")
    push(one, b"later", score=2)
    push(two, b"sooner", score=1)
    assert [pop(two).data, pop(one).data, take(one)] == [b"sooner", b"later", None]


def test_requests_with_the_same_score_leave_in_the_order_in_which_they_came(client: Redis) -> None:
    one = node(client, "one")
    pages = [b"%d" % number for number in range(120)]
    one.pushes(*(entry(one, page) for page in pages))
    assert [taken.data for taken in one.takes(Wish(120, 120))] == pages


def test_a_fingerprint_is_queued_once_for_all_nodes(client: Redis) -> None:
    one, two = node(client, "one"), node(client, "two")
    assert push(one, b"page", fingerprint="a")
    assert not push(two, b"page", fingerprint="a")
    assert one.queued == 1


def test_what_has_no_fingerprint_is_queued_as_often_as_it_comes(client: Redis) -> None:
    one = node(client, "one")
    assert push(one, b"page")
    assert push(one, b"page")
    assert one.queued == 2


def test_many_are_queued_in_one_call_each_with_its_answer(client: Redis) -> None:
    one = node(client, "one")
    push(one, b"b", fingerprint="b")
    entries = [entry(one, letter.encode(), fingerprint=letter) for letter in "abca"]
    before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert one.pushes(*entries) == [True, False, True, False]
    assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == before + 1


@pytest.mark.parametrize("fingerprint", ["a", ""])
def test_an_entry_that_is_sent_twice_is_queued_once(client: Redis, fingerprint: str) -> None:
    one = node(client, "one")
    page = entry(one, b"page", fingerprint=fingerprint)
    assert one.pushes(page) == [True]
    assert one.pushes(page) == [True]
    assert pop(one).data == b"page"
    assert one.pushes(page) == [True]  # in hand is as good as queued
    assert take(one) is None


def test_all_nodes_together_queue_at_most_the_number_allowed(client: Redis) -> None:
    nodes = [node(client, f"node-{number}", max_pages=25) for number in range(4)]

    def push_page(number: int) -> bool:
        return push(nodes[number % 4], b"page", fingerprint=f"page-{number // 2}")

    with ThreadPoolExecutor(len(nodes)) as threads:
        assert sum(threads.map(push_page, range(200))) == 25
    assert push(nodes[0], b"again")  # without a fingerprint it is no other page


def test_nothing_is_done_or_taken_if_queueing_fails(client: Redis) -> None:
    one = node(client, "one")
    push(one, b"page")
    page = pop(one)
    push(one, b"next")
    link, broken = entry(one, b"link"), Entry(one.new_id(), float("nan"), "a", b"broken")
    with pytest.raises(ResponseError):
        wait_for(one.exchange([link, broken], [page.id], ONE))
    assert one.queued == 2
    assert one.now.unfinished == 3 + 1  # nothing has come of the broken one but its data
    assert client.hlen(one.key(f"hand:{one.node}")) == 1


# Done, dead, and away ---------------------------------------------------------------------------


def test_a_resting_node_waits_for_one_that_works(client: Redis) -> None:
    one, two = node(client, "one"), node(client, "two")
    push(one, b"page")
    assert two.rests().next is Next.TAKE_MORE
    taken = pop(one)
    rest = two.rests()
    assert rest.next is Next.WAIT
    assert 0.0 < rest.seconds <= 60.0  # when the mark of `one` ends
    assert one.rests(taken).next is Next.CLOSE
    with pytest.raises(CrawlEndedError):
        two.rests()


def test_a_crawl_that_is_done_leaves_nothing_behind(client: Redis) -> None:
    one = node(client, "one")
    push(one, b"page", fingerprint="a")
    assert one.rests(pop(one)).next is Next.CLOSE
    assert crawl_keys(client) == []


def test_a_crawl_that_is_ended_early_leaves_nothing_behind(client: Redis) -> None:
    one, two = node(client, "one"), node(client, "two")
    push(one, b"a", fingerprint="a")
    push(one, b"b")
    fill(one, b=3, c=3)
    pop(two)
    one.ends()
    assert crawl_keys(client) == []
    two.leaves()
    one.ends()
    assert crawl_keys(client) == []


@pytest.mark.parametrize("verb", [pop, OutsideCrawl.works, OutsideCrawl.rests, OutsideCrawl.leaves])
def test_what_is_done_is_told_with_any_verb(client: Redis, verb: object) -> None:
    one, other = node(client, "one"), node(client, "other")
    push(one, b"page")
    taken = pop(one)
    if verb is pop:
        push(one, b"next")
    before = other.now.unfinished
    verb(one, taken)  # type: ignore[operator]
    assert other.now.unfinished == before - 1


def test_a_dead_nodes_requests_go_back_to_where_they_were(client: Redis) -> None:
    dead, living = node(client, "dead"), node(client, "living")
    for page in (b"first", b"second", b"third"):
        push(living, page, score=5)
    assert [pop(dead).data, pop(dead).data] == [b"first", b"second"]
    push(living, b"urgent", score=-5)
    assert pop(living).data == b"urgent"
    push(living, b"more urgent", score=-10)
    die(dead)
    taken = [pop(living).data for _ in range(4)]
    assert taken == [b"more urgent", b"first", b"second", b"third"]


def test_a_dead_nodes_requests_go_to_who_rests_next(client: Redis) -> None:
    dead, living = node(client, "dead", lease=0.05), node(client, "living")
    push(living, b"page")
    pop(dead)
    wait_until(lambda: living.rests().next is Next.TAKE_MORE)
    assert living.rests(pop(living)).next is Next.CLOSE


def test_a_node_that_was_taken_for_dead_cannot_finish_what_others_have(client: Redis) -> None:
    sleeper, other = node(client, "sleeper"), node(client, "other")
    push(sleeper, b"page")
    taken = pop(sleeper)
    die(sleeper)
    assert pop(other) == taken
    sleeper.works(taken)
    assert other.now.unfinished == 1
    other.leaves()  # with the page in hand: it goes back
    assert pop(sleeper) == taken


def test_a_node_that_was_taken_for_dead_is_told_once(client: Redis) -> None:
    sleeper, other = node(client, "sleeper"), node(client, "other")
    push(sleeper, b"page")
    pop(sleeper)
    die(sleeper)
    pop(other)
    answers = [wait_for(sleeper.exchange(works=True)).was_taken_for_dead for _ in range(2)]
    assert answers == [True, False]


def test_a_node_is_not_dead_to_itself(client: Redis) -> None:
    one = node(client, "one")
    push(one, b"page")
    taken = pop(one)
    die(one)
    assert take(one) is None
    one.works(taken)
    assert one.now.unfinished == 0


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
    assert one.rests().next is Next.TAKE_MORE
    assert pop(one) == lost


def test_a_mark_is_renewed_while_its_node_works(client: Redis) -> None:
    one, two = node(client, "one", lease=0.05), node(client, "two")
    push(one, b"page")
    pop(one)
    one.lease = 60.0
    one.works()
    assert two.rests().seconds > 30.0


def test_a_node_that_leaves_keeps_the_rest_of_the_crawl_for_its_next_run(client: Redis) -> None:
    one = node(client, "one")
    for page in ("a", "b"):
        push(one, page.encode(), fingerprint=page)
    done, unfinished = pop(one), pop(one)
    one.leaves(done)
    two = node(client, "two")
    assert not push(two, b"a", fingerprint="a")
    assert pop(two) == unfinished
    assert two.rests(unfinished).next is Next.CLOSE


def test_who_came_too_late_leaves_no_trace(client: Redis) -> None:
    late, other = node(client, "late"), node(client, "other")
    assert other.rests().next is Next.CLOSE
    again = node(client, "again")  # a new run of the same name
    push(again, b"page")
    before = {key: client.dump(key) for key in crawl_keys(client)}
    for verb in (lambda: pop(late), late.works, late.rests, lambda: push(late, b"stray")):
        with pytest.raises(CrawlEndedError):
            verb()
    late.leaves()
    late.ends()
    assert {key: client.dump(key) for key in crawl_keys(client)} == before


def test_a_crawl_that_the_server_has_lost_has_not_ended(client: Redis) -> None:
    one, two = node(client, "one"), node(client, "two")
    push(one, b"page", fingerprint="a")
    client.flushall()
    for lost in (one, two):
        with pytest.raises(CrawlLostError):
            lost.rests()
    one.joins()
    with pytest.raises(CrawlLostError):  # not even when others have begun anew
        pop(two)
    two.joins()
    assert push(two, b"page", fingerprint="a")
    assert pop(one).data == b"page"


def test_a_node_that_never_joined_is_told(client: Redis) -> None:
    with pytest.raises(CrawlLostError):
        pop(OutsideCrawl(client, "books", "one"))


NASTY = ["50%s %(spider)s", "{a}:b", "line\nbreak", "🕸", "", "x" * 10_000, "\udcff"]


def test_crawls_of_any_name_do_not_mix(client: Redis) -> None:
    for name in NASTY:
        push(node(client, "one", crawl=name), name.encode(errors="surrogateescape"))
    for name in NASTY:
        one = node(client, "one", crawl=name)
        taken = pop(one)
        assert taken.data == name.encode(errors="surrogateescape")
        assert one.rests(taken).next is Next.CLOSE
    assert crawl_keys(client) == []
