"""The rules of a shared crawl, verb by verb, on a real client."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from redis import Redis

from semaphore_middleware.errors import ServerUnreachableError
from semaphore_middleware.frontier.client import (
    CrawlEndedError,
    CrawlLostError,
    Demand,
    NextStep,
)
from tests.frontier.verbs import ONE, die, fill, new_request, node, pop, push, take
from tests.support.frontier import BlockingClient, crawl_keys, result_of, wait_until

# Queueing and taking ----------------------------------------------------------------------------


def test_requests_are_taken_in_order_of_score_each_once(client: Redis) -> None:
    one, two = node(client, "one"), node(client, "two")
    push(one, b"later", score=2)
    push(two, b"sooner", score=1)
    assert [pop(two).data, pop(one).data, take(one)] == [b"sooner", b"later", None]


def test_requests_of_equal_score_are_first_come_first_served(client: Redis) -> None:
    one = node(client, "one")
    pages = [b"%d" % number for number in range(120)]
    one.pushes(*(new_request(one, page) for page in pages))
    assert [taken.data for taken in one.takes(Demand(120, 120))] == pages


def test_a_fingerprint_is_queued_once_for_all_nodes(client: Redis) -> None:
    one, two = node(client, "one"), node(client, "two")
    assert push(one, b"page", fingerprint="a")
    assert not push(two, b"page", fingerprint="a")
    assert one.queued == 1


def test_a_request_without_fingerprint_is_queued_every_time(client: Redis) -> None:
    one = node(client, "one")
    assert push(one, b"page")
    assert push(one, b"page")
    assert one.queued == 2


def test_one_call_queues_many_and_replies_for_each(client: Redis) -> None:
    one = node(client, "one")
    push(one, b"b", fingerprint="b")
    requests = [new_request(one, letter.encode(), fingerprint=letter) for letter in "abca"]
    before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert one.pushes(*requests) == [True, False, True, False]
    assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == before + 1


@pytest.mark.parametrize("fingerprint", ["a", ""])
def test_a_request_sent_twice_is_queued_once(client: Redis, fingerprint: str) -> None:
    one = node(client, "one")
    page = new_request(one, b"page", fingerprint=fingerprint)
    assert one.pushes(page) == [True]
    assert one.pushes(page) == [True]
    assert pop(one).data == b"page"
    assert one.pushes(page) == [True]  # the server knows its id
    assert take(one) is None


def test_max_pages_counts_for_all_nodes_together(client: Redis) -> None:
    nodes = [node(client, f"node-{number}", max_pages=25) for number in range(4)]

    def push_pages(number: int) -> int:
        pages = [f"page-{page // 2}" for page in range(number, 200, 4)]
        return sum(push(nodes[number], b"page", fingerprint=page) for page in pages)

    with ThreadPoolExecutor(len(nodes)) as threads:
        assert sum(threads.map(push_pages, range(4))) == 25
    assert push(nodes[0], b"again")  # without a fingerprint it does not count


def test_nothing_is_finished_or_taken_if_queueing_fails(client: Redis) -> None:
    one = node(client, "one")
    push(one, b"page")
    page = pop(one)
    push(one, b"next")
    link, broken = new_request(one, b"link", fingerprint="a"), new_request(one, b"no list", 0, "b")
    seen = one.keys.of("seen")
    client.set(seen, "of another type")
    with pytest.raises(ServerUnreachableError, match="WRONGTYPE"):
        result_of(one.sync([new_request(one, b"plain"), link, broken], [page.place], ONE))
    client.delete(seen)
    assert one.queued == 2
    assert one.size.unfinished == 3
    assert one.taken == 1


# Finished, dead, idle ----------------------------------------------------------------------------


def test_an_idle_node_waits_for_one_that_works(client: Redis) -> None:
    one, two = node(client, "one"), node(client, "two")
    push(one, b"page")
    assert two.idles().next_step is NextStep.TAKE_MORE
    taken = pop(one)
    reply = two.idles()
    assert reply.next_step is NextStep.WAIT
    assert 0.0 < reply.wait_s <= 60.0  # the rest of the lease of `one`
    assert one.idles(taken).next_step is NextStep.CLOSE
    with pytest.raises(CrawlEndedError):
        two.idles()


def test_a_finished_crawl_leaves_no_keys(client: Redis) -> None:
    one = node(client, "one")
    push(one, b"page", fingerprint="a")
    assert one.idles(pop(one)).next_step is NextStep.CLOSE
    assert crawl_keys(client) == []


def test_a_crawl_that_is_ended_early_leaves_no_keys(client: Redis) -> None:
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


@pytest.mark.parametrize(
    "verb", [pop, BlockingClient.works, BlockingClient.idles, BlockingClient.leaves]
)
def test_every_call_takes_finished_requests(client: Redis, verb: object) -> None:
    one, other = node(client, "one"), node(client, "other")
    push(one, b"page")
    taken = pop(one)
    if verb is pop:
        push(one, b"next")
    before = other.size.unfinished
    verb(one, taken)  # type: ignore[operator]
    assert other.size.unfinished == before - 1


def test_a_dead_nodes_requests_go_back_to_their_old_place(client: Redis) -> None:
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


def test_a_dead_nodes_requests_go_back_when_another_node_is_idle(client: Redis) -> None:
    dead, living = node(client, "dead", lease=0.05), node(client, "living")
    push(living, b"page")
    pop(dead)
    wait_until(lambda: living.idles().next_step is NextStep.TAKE_MORE)
    assert living.idles(pop(living)).next_step is NextStep.CLOSE


def test_a_node_whose_lease_expired_cannot_finish_requests_of_others(client: Redis) -> None:
    sleeper, other = node(client, "sleeper"), node(client, "other")
    push(sleeper, b"page")
    taken = pop(sleeper)
    die(sleeper)
    assert pop(other) == taken
    sleeper.works(taken)
    assert other.size.unfinished == 1
    other.leaves()  # the page goes back
    assert pop(sleeper) == taken


def test_a_node_is_told_once_that_its_lease_expired(client: Redis) -> None:
    sleeper, other = node(client, "sleeper"), node(client, "other")
    push(sleeper, b"page")
    pop(sleeper)
    die(sleeper)
    pop(other)
    expired = [result_of(sleeper.sync(working=True)).lease_expired for _ in range(2)]
    assert expired == [True, False]


def test_a_node_does_not_lose_requests_to_itself(client: Redis) -> None:
    one = node(client, "one")
    push(one, b"page")
    taken = pop(one)
    die(one)
    assert take(one) is None
    one.works(taken)
    assert one.size.unfinished == 0


def test_a_restarted_node_of_the_same_name_is_another_node(client: Redis) -> None:
    dead = node(client, "one")
    push(dead, b"page")
    taken = pop(dead)
    again, other = node(client, "one"), node(client, "other")
    assert push(again, b"link")
    assert pop(again).data == b"link"
    die(dead)
    assert pop(other) == taken


def test_a_request_whose_reply_was_lost_goes_back_when_its_node_is_idle(client: Redis) -> None:
    one = node(client, "one")
    push(one, b"page")
    lost = pop(one)
    assert one.idles().next_step is NextStep.TAKE_MORE
    assert pop(one) == lost


def test_a_lease_is_renewed_while_the_node_works(client: Redis) -> None:
    one, two = node(client, "one", lease=0.05), node(client, "two")
    push(one, b"page")
    pop(one)
    one.lease = 60.0
    one.works()
    assert two.idles().wait_s > 30.0


def test_no_lease_ends_when_the_servers_clock_is_set_ahead(client: Redis) -> None:
    one, two = node(client, "one"), node(client, "two")
    push(one, b"page")
    pop(one)
    an_hour_ms = 3_600_000
    client.hincrbyfloat(one.keys.of("run"), "wall", -an_hour_ms)
    assert 0.0 < two.idles().wait_s <= 60.0
    assert one.taken == 1


def test_a_lease_ends_though_the_servers_clock_was_set_back(client: Redis) -> None:
    dead, living = node(client, "dead", lease=0.05), node(client, "living")
    push(living, b"page")
    pop(dead)
    client.hincrbyfloat(dead.keys.of("run"), "wall", 3_600_000)
    wait_until(lambda: living.idles().next_step is NextStep.TAKE_MORE)


def test_what_a_leaving_node_has_not_finished_stays_for_the_next(client: Redis) -> None:
    one = node(client, "one")
    for page in ("a", "b"):
        push(one, page.encode(), fingerprint=page)
    done, unfinished = pop(one), pop(one)
    one.leaves(done)
    two = node(client, "two")
    assert not push(two, b"a", fingerprint="a")
    assert pop(two) == unfinished
    assert two.idles(unfinished).next_step is NextStep.CLOSE


def test_a_late_node_changes_nothing_in_the_next_run(client: Redis) -> None:
    late, other = node(client, "late"), node(client, "other")
    assert other.idles().next_step is NextStep.CLOSE
    again = node(client, "again")  # a new run of the same name
    push(again, b"page")
    before = {key: client.dump(key) for key in crawl_keys(client)}
    for verb in (lambda: pop(late), late.works, late.idles, lambda: push(late, b"stray")):
        with pytest.raises(CrawlEndedError):
            verb()
    late.leaves()
    late.ends()
    assert {key: client.dump(key) for key in crawl_keys(client)} == before


def test_a_crawl_lost_with_the_servers_data_has_not_ended(client: Redis) -> None:
    one, two = node(client, "one"), node(client, "two")
    push(one, b"page", fingerprint="a")
    client.flushall()
    for lost in (one, two):
        with pytest.raises(CrawlLostError):
            lost.idles()
    one.joins()
    with pytest.raises(CrawlLostError):  # even when others have begun a new run
        pop(two)
    two.joins()
    assert push(two, b"page", fingerprint="a")
    assert pop(one).data == b"page"


def test_a_node_that_has_not_joined_gets_an_error(client: Redis) -> None:
    with pytest.raises(CrawlLostError):
        pop(BlockingClient(client, "books", "one"))


NASTY = ["50%s %(spider)s", "{a}:b", "line\nbreak", "🕸", "", "x" * 10_000, "\udcff"]


def test_crawls_of_any_name_do_not_mix(client: Redis) -> None:
    for name in NASTY:
        push(node(client, "one", crawl=name), name.encode(errors="surrogateescape"))
    for name in NASTY:
        one = node(client, "one", crawl=name)
        taken = pop(one)
        assert taken.data == name.encode(errors="surrogateescape")
        assert one.idles(taken).next_step is NextStep.CLOSE
    assert crawl_keys(client) == []
