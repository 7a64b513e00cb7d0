"""The rules of a shared crawl, verb by verb, on a real client."""

from __future__ import annotations

import itertools

import pytest
from redis import Redis

from semaphore_middleware.errors import ServerUnreachableError
from semaphore_middleware.frontier.client import (
    CrawlEndedError,
    CrawlLostError,
    Demand,
    FinishedRequest,
    NextStep,
    OtherCrawlError,
)
from tests.frontier.verbs import ONE, die, fill, new_request, node, pop, push, take
from tests.support.frontier import BlockingClient, crawl_keys, result_of, wait_until

AN_HOUR_MS = 3_600_000

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


def test_max_pages_counts_the_pages_of_all_nodes_together(client: Redis) -> None:
    nodes = [node(client, f"node-{number}", max_pages=25) for number in range(4)]
    fill(nodes[0], **dict.fromkeys("abcde", 20))
    pages, in_hand = 0, [each.takes(Demand(32, 8)) for each in nodes]
    assert sum(map(len, in_hand)) <= 25
    numbers = itertools.count(1)
    while any(in_hand):
        for each, taken in zip(nodes, in_hand, strict=True):
            finished = [
                FinishedRequest(one.place, is_page=bool(next(numbers) % 3)) for one in taken
            ]
            pages += sum(one.is_page for one in finished)
            taken[:] = result_of(each.sync(finished=finished, demand=Demand(32, 8))).taken
    assert pages == 25
    assert nodes[0].queued > 0
    assert [each.idles().next_step for each in nodes[:1]] == [NextStep.CLOSE]
    assert crawl_keys(client) == []


def test_a_node_waits_while_others_may_have_the_last_pages(client: Redis) -> None:
    one, two = node(client, "one", max_pages=1), node(client, "two", max_pages=1)
    fill(one, a=2)
    (taken,) = one.takes(Demand(8, 8))
    assert two.takes(Demand(8, 8)) == []
    assert two.idles().next_step is NextStep.WAIT
    with client.pubsub(ignore_subscribe_messages=True) as listener:  # type: ignore[no-untyped-call]
        listener.subscribe(one.keys.channel)
        result_of(one.sync(finished=[FinishedRequest(taken.place, is_page=False)]))
        wait_until(lambda: listener.get_message(timeout=1.0))
    assert two.idles(pop(two)).next_step is NextStep.WAIT  # `one` still works
    assert one.idles().next_step is NextStep.CLOSE


def test_nothing_is_finished_or_taken_if_queueing_fails(client: Redis) -> None:
    one = node(client, "one")
    push(one, b"page")
    page = pop(one)
    push(one, b"next")
    link, broken = new_request(one, b"link", fingerprint="a"), new_request(one, b"no list", 0, "b")
    seen = one.keys.of("seen")
    client.set(seen, "of another type")
    with pytest.raises(ServerUnreachableError, match="WRONGTYPE"):
        result_of(
            one.sync(
                [new_request(one, b"plain"), link, broken],
                [FinishedRequest(page.place, is_page=True)],
                ONE,
            )
        )
    client.delete(seen)
    assert one.queued == 2
    assert one.size.unfinished == 3
    assert one.taken == 1


def test_a_full_server_takes_no_new_requests_and_does_all_else(client: Redis) -> None:
    one, two = node(client, "one"), node(client, "two")
    for page in (b"a", b"b", b"c"):
        push(one, page)
    taken = pop(one)
    client.config_set("maxmemory", 1)
    with pytest.raises(ServerUnreachableError, match="maxmemory"):
        push(one, b"d")
    one.works(taken)
    assert one.size.unfinished == 2
    two.works(pop(two))
    assert one.idles(pop(one)).next_step is NextStep.WAIT
    two.leaves()
    assert one.idles().next_step is NextStep.CLOSE
    assert crawl_keys(client) == []


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
    one.drops()
    assert crawl_keys(client) == []
    with pytest.raises(CrawlEndedError):
        two.idles()
    assert client.ttl(one.keys.of("run")) <= 3600
    two.leaves()
    assert crawl_keys(client) == []


def test_a_crawl_without_nodes_is_dropped_without_a_trace(client: Redis) -> None:
    one = node(client, "one")
    push(one, b"a", fingerprint="a")
    one.leaves()
    one.drops()
    assert client.dbsize() == 1  # what says that the server started empty
    assert not result_of(one.drop())


def test_nodes_that_died_long_ago_neither_count_nor_outlive_a_drop(client: Redis) -> None:
    dead, operator = node(client, "dead"), BlockingClient(client, "books", "operator")
    push(dead, b"page", fingerprint="a")
    pop(dead)
    assert operator.size.state == "running"
    client.hincrbyfloat(dead.keys.of("run"), "wall", -AN_HOUR_MS)  # nobody has called since
    assert (operator.size.state, operator.size.nodes) == ("stopped", 0)
    operator.drops()
    assert not operator.size.exists
    assert push(node(client, "new"), b"page", fingerprint="a")


def test_what_was_set_aside_can_be_put_back_also_after_the_end(client: Redis) -> None:
    nodes = [node(client, f"node-{number}") for number in range(3)]
    push(nodes[0], b"page", fingerprint="a")
    for each in nodes:
        result_of(each.sync(unreadable=[pop(each).place]))
        client.zrem(each.keys.of("working"), each.node)
    assert nodes[0].idles().next_step is NextStep.CLOSE
    assert nodes[0].size.ended_at is not None
    assert result_of(nodes[0].retry()) == 1
    late = node(client, "late")
    assert not push(late, b"page", fingerprint="a")
    taken = pop(late)
    assert (taken.data, taken.tries) == (b"page", 0)
    assert late.idles(taken).next_step is NextStep.CLOSE
    assert crawl_keys(client) == []
    assert result_of(late.retry()) == 0


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


def test_a_leaving_nodes_requests_go_back_to_their_old_place(client: Redis) -> None:
    leaving, other = node(client, "leaving"), node(client, "other")
    for page in (b"first", b"second", b"third"):
        push(other, page, score=5)
    assert [pop(leaving).data, pop(leaving).data] == [b"first", b"second"]
    push(other, b"urgent", score=-5)
    assert pop(other).data == b"urgent"
    push(other, b"more urgent", score=-10)
    leaving.leaves()
    taken = [pop(other).data for _ in range(4)]
    assert taken == [b"more urgent", b"first", b"second", b"third"]


def test_of_a_dead_nodes_requests_each_node_gets_one_at_a_time(client: Redis) -> None:
    dead, one, two = (node(client, name) for name in ("dead", "one", "two"))
    for page in (b"first", b"second", b"third"):
        push(one, page, score=5)
    assert [pop(dead).data, pop(dead).data] == [b"first", b"second"]
    die(dead)
    (suspect,) = one.takes(Demand(3, 3))
    assert (suspect.data, suspect.tries) == (b"first", 1)
    (plain,) = one.takes(Demand(3, 3, suspect=False))
    assert (plain.data, plain.tries) == (b"third", 0)
    assert one.takes(Demand(3, 3, suspect=False)) == []
    assert pop(two).data == b"second"


@pytest.mark.parametrize("way", ["leaves", "idles"])
def test_what_is_given_back_of_a_dead_nodes_requests_goes_to_one_at_a_time(
    client: Redis, way: str
) -> None:
    dead, one, two = (node(client, name) for name in ("dead", "one", "two"))
    push(one, b"first")
    pop(dead)
    die(dead)
    assert pop(one).tries == 1
    getattr(one, way)()
    assert two.takes(Demand(3, 3, suspect=False)) == []
    assert pop(two).tries == 1


def test_a_request_that_three_nodes_have_died_with_is_set_aside(client: Redis) -> None:
    living = node(client, "living")
    push(living, b"poison", fingerprint="a")
    for number in range(3):
        victim = node(client, f"victim-{number}")
        assert (pop(victim).data, victim.taken) == (b"poison", 1)
        die(victim)
    reply = living.idles()
    assert (reply.next_step, reply.set_aside) == (NextStep.CLOSE, [b"poison"])
    assert living.size.set_aside == 1
    assert client.ttl(living.keys.of("aside")) > 0
    assert client.ttl(living.keys.of("seen")) > 0


def test_the_other_requests_of_those_nodes_are_not_set_aside(client: Redis) -> None:
    living = node(client, "living")
    for page in (b"poison", *(b"%d" % number for number in range(20))):
        push(living, page)
    done: list[bytes] = []
    for number in range(3):
        victim = node(client, f"victim-{number}")
        taken = victim.takes(Demand(8, 8))
        while b"poison" not in [one.data for one in taken]:
            victim.works(*taken)
            done += [one.data for one in taken]
            taken = victim.takes(Demand(8, 8))
        die(victim)
    set_aside: list[bytes] = []
    while (reply := living.idles()).next_step is NextStep.TAKE_MORE:
        set_aside += reply.set_aside
        while taken := living.takes(Demand(8, 8)):
            living.works(*taken)
            done += [one.data for one in taken]
    assert set_aside + reply.set_aside == [b"poison"]
    assert sorted(done) == sorted(b"%d" % number for number in range(20))


def test_what_a_node_cannot_read_goes_to_others_and_then_aside(client: Redis) -> None:
    nodes = [node(client, f"node-{number}") for number in range(3)]
    push(nodes[0], b"garbage")
    replies = [result_of(each.sync(unreadable=[pop(each).place])) for each in nodes]
    assert [reply.set_aside for reply in replies] == [[], [], [b"garbage"]]
    assert (nodes[0].queued, nodes[0].size.set_aside) == (0, 1)


def test_nodes_that_do_not_fit_do_not_join(client: Redis) -> None:
    one, two = (BlockingClient(client, "books", name) for name in ("one", "two"))
    identity = {"spider": "books", "start_urls": "a"}
    result_of(one.join(identity))
    before = {key: client.dump(key) for key in crawl_keys(client)}
    with pytest.raises(OtherCrawlError) as refused:
        result_of(two.join({**identity, "start_urls": "b"}))
    assert refused.value.identity == identity
    assert {key: client.dump(key) for key in crawl_keys(client)} == before
    result_of(two.join(dict(reversed(identity.items()))))
    one.drops()
    result_of(two.join({"spider": "another"}, new_run=True))


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
    assert pop(other).place == taken.place
    sleeper.works(taken)
    assert other.size.unfinished == 1
    other.leaves()  # the page goes back
    again = pop(sleeper)
    assert (again.place, again.data) == (taken.place, taken.data)


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
    assert pop(other).place == taken.place


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


def test_a_node_that_has_just_joined_works(client: Redis) -> None:
    starting, idle = BlockingClient(client, "books", "starting"), node(client, "idle")
    result_of(starting.join())
    assert idle.idles().next_step is NextStep.WAIT
    assert starting.idles().next_step is NextStep.CLOSE


def test_no_lease_ends_when_the_servers_clock_is_set_ahead(client: Redis) -> None:
    one, two = node(client, "one"), node(client, "two")
    push(one, b"page")
    pop(one)
    client.hincrbyfloat(one.keys.of("run"), "wall", -AN_HOUR_MS)
    assert 0.0 < two.idles().wait_s <= 60.0
    assert one.taken == 1


def test_a_lease_ends_though_the_servers_clock_was_set_back(client: Redis) -> None:
    dead, living = node(client, "dead", lease=0.05), node(client, "living")
    push(living, b"page")
    pop(dead)
    client.hincrbyfloat(dead.keys.of("run"), "wall", AN_HOUR_MS)
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
    again = BlockingClient(client, "books", "again")
    again.joins(new_run=True)
    push(again, b"page")
    before = {key: client.dump(key) for key in crawl_keys(client)}
    for verb in (lambda: pop(late), late.works, late.idles, lambda: push(late, b"stray")):
        with pytest.raises(CrawlEndedError):
            verb()
    late.leaves()
    assert {key: client.dump(key) for key in crawl_keys(client)} == before


def test_a_node_that_comes_after_the_end_begins_nothing(client: Redis) -> None:
    one, late = node(client, "one"), BlockingClient(client, "books", "late")
    push(one, b"page", fingerprint="a")
    assert one.idles(pop(one)).next_step is NextStep.CLOSE
    with pytest.raises(CrawlEndedError):
        late.joins()
    assert crawl_keys(client) == []
    late.joins(new_run=True)
    other = BlockingClient(client, "books", "other")
    other.joins(new_run=True)  # there is one already
    assert push(late, b"page", fingerprint="a")
    assert pop(other).data == b"page"


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
