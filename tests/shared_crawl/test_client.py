"""The rules of a shared crawl, verb by verb, on a real client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from semaphore_middleware.errors import ServerUnreachableError
from semaphore_middleware.shared_crawl.client import (
    VERSION,
    AtWork,
    CrawlEndedError,
    Demand,
    Ending,
    Joined,
    Missing,
    NewRequest,
    NextStep,
    NotDoneError,
    OtherBudgetsError,
    OtherCrawlError,
    OtherRunError,
    OtherVersionError,
    Outcome,
    unreadable_start,
)
from tests.support.blocking import result_of
from tests.support.servers import wait_until
from tests.support.shared_crawl import ONE, PLACES, Node, crawl_keys, node
from tests.support.times import ENDLESS_S

AN_HOUR_MS = 3_600_000


def dump(client: Redis) -> dict[bytes, bytes | None]:
    return {key: client.dump(key) for key in crawl_keys(client)}


# Queueing and taking ----------------------------------------------------------------------------


def test_requests_are_taken_in_order_of_score_each_once(one: Node, two: Node) -> None:
    pages = [b"%d" % number for number in range(120)]
    one.push(b"later", score=2)
    two.push(b"sooner", score=-1)
    one.pushes(*(one.new(page) for page in pages))
    assert two.pop().data == b"sooner"
    taken = [each.data for node in (one, two, one) for each in node.takes(Demand(240, 240))]
    assert taken == pages[:106]  # in each call its share of the rest
    assert [two.pop().data for _ in range(15)][-2:] == [pages[-1], b"later"]


def test_a_node_waits_while_others_may_have_the_last_pages(client: Redis) -> None:
    one, two = node(client, "one", max_pages=1), node(client, "two", max_pages=1)
    one.fill(a=2)
    (taken,) = one.takes(Demand(8, 8))
    assert two.takes(Demand(8, 8)) == []
    assert two.idles().next_step is NextStep.WAIT
    with client.pubsub(ignore_subscribe_messages=True) as listener:  # type: ignore[no-untyped-call]
        listener.subscribe(two.channel)
        one.finishes(taken, Outcome.NOTHING)
        wait_until(lambda: listener.get_message(timeout=1.0))
    assert two.idles(two.pop()).next_step is NextStep.WAIT  # `one` still works
    assert one.idles().next_step is NextStep.CLOSE


def test_nothing_is_finished_or_taken_if_queueing_fails(client: Redis, one: Node) -> None:
    one.push(b"page")
    page = one.pop()
    one.push(b"next")
    seen = one.keys.key("seen")
    client.set(seen, "of another type", ex=60)
    new = [one.new(b"plain"), one.new(b"link", fingerprint="a"), one.new(b"", fingerprint="b")]
    with pytest.raises(ServerUnreachableError, match="WRONGTYPE"):
        result_of(one.sync(new, [page], ONE))
    client.delete(seen)
    assert (one.queued, one.size.unfinished, one.taken) == (2, 3, 1)


def test_nodes_that_wait_are_told_of_requests_a_few_at_a_time(client: Redis, one: Node) -> None:
    waiting = [node(client, f"waiting {number}") for number in range(4)]
    by_channel = {each.channel: each for each in waiting}

    def hears() -> Node:
        heard: list[Node] = []

        def hear() -> bool:
            message = listener.get_message(timeout=1.0)
            heard.extend([by_channel[message["channel"]]] if message else [])
            return bool(heard)

        wait_until(hear)
        return heard[0]

    with client.pubsub(ignore_subscribe_messages=True) as listener:  # type: ignore[no-untyped-call]
        listener.subscribe(*by_channel)
        one.works()
        for each in waiting:
            assert each.idles().next_step is NextStep.WAIT
        (own,) = result_of(one.sync([one.new()], demand=ONE)).taken
        assert listener.get_message(timeout=0.1) is None  # none is left
        (own,) = result_of(one.sync([one.new(), one.new()], [own], demand=ONE)).taken
        first, second = hears(), hears()
        taken = first.pop()
        assert listener.get_message(timeout=0.1) is None
        one.works(own)
        assert {first.idles(taken).next_step, second.idles().next_step} == {NextStep.WAIT}
        one.fill(a=10)  # the first of the site: some are notified
        notified = [hears(), hears()]
        one.fill(a=10)  # no further notification
        assert listener.get_message(timeout=0.1) is None
        taken = notified[0].pop()  # a node that takes one notifies the others, as there are more
        assert sorted({*notified, hears(), hears()}, key=waiting.index) == waiting
        notified[0].leaves(taken)
        assert listener.get_message(timeout=0.1) is None


# Finished, dead, idle ----------------------------------------------------------------------------


def test_an_idle_node_waits_and_the_last_one_ends_the_crawl(
    client: Redis, one: Node, two: Node
) -> None:
    one.push(b"page", fingerprint="a")
    assert two.idles().next_step is NextStep.TAKE_MORE
    taken = one.pop()
    reply = two.idles()
    assert (reply.next_step, reply.at_work) == (NextStep.WAIT, AtWork(1, one.node, 1))
    assert 0.0 < reply.wait_s <= ENDLESS_S  # the rest of the lease of `one`
    starting = Node(client, "books", "starting")
    result_of(starting.join())  # it works from now on
    assert one.idles(taken).next_step is NextStep.WAIT
    assert starting.idles().next_step is NextStep.CLOSE
    assert crawl_keys(client) == []
    with pytest.raises(CrawlEndedError):
        two.idles()
    late = Node(client, "books", "late")
    with pytest.raises(CrawlEndedError):
        late.joins()
    assert crawl_keys(client) == []
    late.joins(new_run=True)
    starting.joins(new_run=True)  # there is one already
    assert late.push(b"page", fingerprint="a")
    before = dump(client)
    for verb in (two.take, two.works, two.idles, lambda: two.push(b"stray")):
        with pytest.raises(CrawlEndedError):
            verb()
    two.leaves()
    assert dump(client) == before, "a late node changes nothing in the next run"
    assert starting.pop().data == b"page"


def test_who_waits_is_told_when_the_last_node_at_work_leaves(
    client: Redis, one: Node, two: Node
) -> None:
    with client.pubsub(ignore_subscribe_messages=True) as listener:  # type: ignore[no-untyped-call]
        listener.subscribe(two.channel)
        one.works()
        assert two.idles().next_step is NextStep.WAIT
        one.leaves()
        wait_until(lambda: listener.get_message(timeout=1.0) is not None)


def test_a_late_call_to_begin_anew_begins_no_further_run(client: Redis, one: Node) -> None:
    first = one.run
    one.drops()
    one.joins(after=first)
    one.push(b"page")
    assert one.idles(one.pop()).next_step is NextStep.CLOSE
    with pytest.raises(CrawlEndedError):
        one.joins(after=first)
    assert crawl_keys(client) == []
    one.joins(after=one.run)


def test_a_crawl_that_is_dropped_leaves_no_keys(client: Redis, one: Node, two: Node) -> None:
    one.push(b"a", fingerprint="a")
    one.fill(b=3, c=3)
    one.finishes(one.pop(), Outcome.FAILED)
    two.pop()
    one.leaves()
    result_of(two.sync(stopping=True))  # it has left the list of nodes, and still works
    assert (one.size.state, one.size.nodes) == ("running", 1)
    one.drops()
    assert crawl_keys(client) == []
    assert client.ttl(one.keys.key("run")) <= 3600
    with pytest.raises(CrawlEndedError):
        two.idles()
    result_of(two.leave(stats={"pages": 1}))
    assert crawl_keys(client) == []
    assert not client.exists(two.keys.key("stats"))
    alone = node(client, "one", crawl="music")
    alone.push(b"a", fingerprint="a")
    alone.leaves()
    alone.drops()
    assert client.keys("{crawl:music}*") == []
    assert not result_of(alone.drop())


def test_nodes_that_died_long_ago_neither_count_nor_outlive_a_drop(client: Redis) -> None:
    dead, operator = node(client, "dead"), Node(client, "books", "operator")
    dead.push(b"page", fingerprint="a")
    dead.pop()
    assert operator.size.state == "running"
    client.hincrbyfloat(dead.keys.key("run"), "wall", -AN_HOUR_MS)  # nobody has called since
    assert (operator.size.state, operator.size.nodes) == ("stopped", 0)
    operator.drops()
    assert not operator.size.exists
    assert node(client, "new").push(b"page", fingerprint="a")


def test_dead_letters_can_be_put_back_also_after_the_end(client: Redis) -> None:
    nodes = [node(client, f"node-{number}") for number in range(3)]
    nodes[0].push(b"another")
    nodes[0].works(nodes[0].pop())
    nodes[0].push(b"page", fingerprint="a")
    assert [each.cannot_read(each.pop()) for each in nodes] == [[], [], [b"page"]]
    for each in nodes:
        client.zrem(each.keys.key("working"), each.node)
    reply = nodes[0].idles()
    assert (reply.next_step, reply.missing.dead_letters) == (NextStep.CLOSE, 1)
    assert nodes[0].size.ended_at is not None
    assert all(client.ttl(nodes[0].keys.key(part)) > 0 for part in ("aside", "seen"))
    assert result_of(nodes[0].retry()) == 1
    late = node(client, "late")
    assert not late.push(b"page", fingerprint="a")
    taken = late.pop()
    assert (taken.data, taken.tries) == (b"page", 0)
    assert late.idles(taken).next_step is NextStep.CLOSE
    assert crawl_keys(client) == []
    assert result_of(late.retry()) == 0


def test_what_has_failed_can_be_tried_again(client: Redis, one: Node) -> None:
    one.push(b"page")
    one.push(b"down", fingerprint="a")
    page, down = one.pop(), one.pop()
    one.finishes(down, Outcome.FAILED)
    reply = one.idles(page)
    assert (reply.next_step, reply.missing.failed, one.size.failed) == (NextStep.CLOSE, 1, 1)
    assert result_of(one.retry()) == 1
    late = node(client, "late")
    assert not late.push(b"down", fingerprint="a")
    assert late.idles(late.pop()).next_step is NextStep.CLOSE
    assert crawl_keys(client) == []


def test_a_run_that_has_fetched_nothing_has_not_ended(client: Redis, one: Node, two: Node) -> None:
    one.push(b"forbidden", fingerprint="a")
    one.finishes(one.pop(), Outcome.NOTHING)
    assert one.idles().next_step is NextStep.CLOSE_UNDONE
    with pytest.raises(NotDoneError):
        two.idles()
    late = node(client, "late")  # no new run was asked for
    with pytest.raises(NotDoneError):
        two.works()
    assert late.push(b"forbidden", fingerprint="a")
    assert late.idles(late.pop()).next_step is NextStep.CLOSE
    with pytest.raises(CrawlEndedError):
        node(client, "later")


@pytest.mark.parametrize("joins", ["the same", "another version", "an operator", "another spider"])
def test_after_a_run_that_has_fetched_nothing_the_same_is_tried_again(
    client: Redis, joins: str
) -> None:
    """Users may have added it by their key, which no longer has it."""
    identity = {"spider": "books", "CRAWL_VERSION": "1"}
    one, late = (Node(client, "books", name) for name in ("one", "late"))
    result_of(one.join(identity))
    one.pushes(one.new(b"down"), one.new(b"dropped", fingerprint="a"))
    one.finishes(one.pop(), Outcome.FAILED)
    one.finishes(one.pop(), Outcome.NOTHING)
    client.hset(one.keys.key("claims"), "1", f"{one.node}\0no URL")
    one.pushes(unreadable_start(b"1"))
    assert one.idles().next_step is NextStep.CLOSE_UNDONE
    changes = {"another version": {"CRAWL_VERSION": "2"}, "another spider": {"spider": "music"}}
    is_other = joins == "another spider"
    by = None if joins == "an operator" else {**identity, **changes.get(joins, {})}
    joined = result_of(late.join(by))
    assert (joined.unfinished, joined.identity) == (0 if is_other else 1, by or {})
    assert late.push(b"dropped", fingerprint="a") == is_other
    assert late.pop().data == (b"dropped" if is_other else b"down")
    assert result_of(late.take_starts(None, 9)) == ([] if is_other else [(b"1", b"no URL")])


def test_a_run_that_goes_on_after_nothing_was_fetched_ends_as_any(one: Node, two: Node) -> None:
    one.push(b"1")
    one.finishes(one.pop(), Outcome.FAILED)
    assert one.idles().next_step is NextStep.CLOSE_UNDONE
    assert one.size.state == "stopped"
    assert result_of(one.retry()) == 1
    one.idles(one.pop())
    assert one.size.state == "ended"
    with pytest.raises(CrawlEndedError):
        two.idles()


def test_only_what_was_in_flight_alone_becomes_a_dead_letter(client: Redis, one: Node) -> None:
    def dies_with(*demands: Demand) -> list[bytes]:
        dead = node(client, "dead")
        taken = [each.data for demand in demands for each in dead.takes(demand)]
        dead.dies()
        return taken

    plain, alone = Demand(1, 1, poison=False), Demand(1, 1, alone=True)
    one.works()
    for page in (b"a", b"b", b"c"):
        one.push(page)
    assert dies_with(plain, plain) == [b"a", b"b"]
    assert dies_with(Demand(1, 1), plain) == [b"a", b"c"]  # one poison request, with others
    assert dies_with(Demand(1, 1)) == [b"b"]
    assert dies_with(Demand(1, 1)) == [b"c"]
    assert dies_with(Demand(1, 1)) == []
    one.push(b"d")
    assert dies_with(alone) == [b"d"]  # first the request that needs not be alone
    assert dies_with(alone) == [b"d"]
    assert dies_with(alone) == [b"a"]
    assert dies_with(alone, alone) == [b"b", b"c"]  # the reply to the first was lost
    assert [one.takes(alone)[0].data for _ in range(3)] == [b"b", b"c", b"d"]
    assert one.size.dead_letters == 1


def test_a_node_that_is_cut_off_while_it_is_stopping_blames_no_request(
    client: Redis, one: Node, two: Node
) -> None:
    one.push(b"slow")
    one.push(b"blamed")
    one.cannot_read(one.pop())
    for stopping in (node(client, "a"), node(client, "b"), node(client, "c")):
        tries = {each.data: each.tries for _ in range(2) for each in stopping.takes(Demand(8, 8))}
        assert tries == {b"slow": 1, b"blamed": 0}
        result_of(stopping.sync(working=True, stopping=True))
        assert not client.zscore(stopping.keys.key("nodes"), stopping.node)
        stopping.dies()
    assert [two.pop().tries for _ in range(2)] == [1, 0]


def test_a_leaving_nodes_requests_go_back_to_their_old_place(one: Node, two: Node) -> None:
    for page in (b"done", b"first", b"second", b"third"):
        two.push(page, score=5, fingerprint=page.decode())
    done, first, _ = one.pop(), one.pop(), one.pop()
    two.push(b"urgent", score=-5)
    assert two.pop().data == b"urgent"
    two.push(b"more urgent", score=-10)
    one.leaves(done)
    assert not two.push(b"", fingerprint="first")
    taken = [two.pop() for _ in range(4)]
    assert [each.data for each in taken] == [b"more urgent", b"first", b"second", b"third"]
    assert (taken[1], taken[1].tries) == (first, 0)


@pytest.mark.parametrize("way", ["leaves", "idles"])
def test_a_node_gets_one_request_of_a_dead_one(
    client: Redis, one: Node, two: Node, way: str
) -> None:
    dead = node(client, "dead")
    for page in (b"first", b"second", b"third"):
        one.push(page, score=5)
    assert [dead.pop().data, dead.pop().data] == [b"first", b"second"]
    dead.dies()
    (poison,) = one.takes(Demand(3, 3))
    assert (poison.data, poison.tries) == (b"first", 1)
    (plain,) = one.takes(Demand(3, 3, poison=False))
    assert (plain.data, plain.tries) == (b"third", 0)
    assert one.takes(Demand(3, 3, poison=False)) == []
    assert two.pop().data == b"second"
    getattr(one, way)(plain)  # a poison request that goes back remains one
    assert two.takes(Demand(3, 3, poison=False)) == []
    assert two.pop() == poison


@pytest.mark.parametrize("has_another", [False, True])
def test_what_a_silent_node_has_finished_counts(one: Node, two: Node, has_another: bool) -> None:
    one.push(b"page")
    taken = one.pop()
    one.dies()
    assert one.take() is None  # it loses none to itself
    other = two.pop() if has_another else two.idles()
    assert other != taken
    expired = [result_of(one.sync(working=True)).lease_expired for _ in range(2)]
    assert expired == [True, False]  # this is reported once
    one.works(taken)
    assert (two.size.unfinished, two.size.pages) == (0, 1)
    two.leaves(taken)  # too late
    assert (one.size.unfinished, one.size.pages) == (0, 1)
    assert one.take() is None


# What a site may have, and what comes from outside ------------------------------------------------


def test_a_site_has_so_many_pages_of_all_nodes(client: Redis) -> None:
    one, two = (node(client, name, max_pages_per_site=3) for name in ("one", "two"))
    one.fill(a=4, b=1)
    taken = one.takes(Demand(8, 2))
    assert [each.site for each in taken] == ["a", "a", "b"]
    more = two.takes(Demand(8, 8))
    assert [each.site for each in more] == ["a"]
    assert two.idles().next_step is NextStep.TAKE_MORE  # its requests go back
    more = two.takes(Demand(8, 8))
    two.finishes(more[0], Outcome.NOTHING)
    more = two.takes(Demand(8, 8))
    one.works(*taken)
    two.works(*more)
    assert two.takes(Demand(8, 8)) == []
    assert not one.push(b"")
    assert one.pushes(one.new(site="b"))
    assert two.idles().next_step is NextStep.TAKE_MORE
    assert one.idles(one.pop()).next_step is NextStep.CLOSE
    assert crawl_keys(client) == []


def test_nodes_that_take_part_have_the_same_budgets(client: Redis) -> None:
    one = node(client, "one", max_pages_per_site=3)
    one.fill(a=9)
    taken = one.takes(Demand(2, 2))
    before = dump(client)
    for pages, of_site in ((0, 0), (3, 3), (0, 1)):
        with pytest.raises(OtherBudgetsError) as refused:
            node(client, "two", max_pages=pages, max_pages_per_site=of_site)
        assert refused.value.budgets == {"CRAWL_MAX_PAGES": 0, "CRAWL_MAX_PAGES_PER_SITE": 3}
    assert dump(client) == before
    operator = Node(client, "books", "operator")
    result_of(operator.join())
    one.works(*taken, one.pop())
    assert operator.pushes(operator.new()) == [False], "those of the run count"
    operator.leaves()
    assert one.idles().next_step is NextStep.CLOSE


@pytest.mark.parametrize("end", ["leaves", "killed", "killed, and its lease lost"])
@pytest.mark.parametrize(
    ("before", "then", "more"), [(9, 2, 0), (9, 4, 1), (0, 2, 2), (2, 3, 1), (2, 0, 7)]
)
def test_a_stopped_crawl_goes_on_with_the_budgets_of_the_next_node(
    client: Redis, before: int, then: int, more: int, end: str
) -> None:
    first = node(client, "first", max_pages_per_site=before)
    first.fill(a=9)
    taken = first.takes(Demand(4, 4))
    first.works(*taken[:3])
    if end == "leaves":
        first.leaves()
    else:
        client.hincrbyfloat(first.keys.key("run"), "wall", -AN_HOUR_MS)  # nobody has called since
    if "lost" in end:
        client.delete(first.keys.key("working"))
    next_node = node(client, "next", max_pages_per_site=then)
    fetched = 0
    while next_node.idles().next_step is NextStep.TAKE_MORE:
        taken = next_node.takes(Demand(9, 9))
        fetched += len(taken)
        next_node.works(*taken)
    assert fetched == more


def test_many_sites_over_a_lowered_budget_hold_up_no_other_site(client: Redis) -> None:
    first = node(client, "first", max_pages_per_site=2)
    first.fill(poison=1)
    for _ in range(2):
        first.cannot_read(first.pop())
    for _ in range(2):
        first.pushes(*(first.new(site=f"full{number}") for number in range(500)))
    first.works(*first.takes(Demand(500, 1)))
    first.leaves()
    one = node(client, "one", max_pages_per_site=1)
    one.fill(other=1)
    demand = Demand(8, 8, alone=True)
    with client.pubsub(ignore_subscribe_messages=True) as listener:  # type: ignore[no-untyped-call]
        listener.subscribe(one.channel)
        wait_until(lambda: client.pubsub_numsub(one.channel)[0][1])
        calls = 1
        while not (others := one.takes(demand)):
            wait_until(lambda: listener.get_message(timeout=1.0))  # it is notified, and asks again
            calls += 1
    assert (calls, [each.site for each in others]) == (500 // 8 + 1, ["other"])
    alone = one.pop(*others)
    assert alone.site == "poison", "there is no other request any more"
    one.works(alone)
    while (reply := one.idles()).next_step is NextStep.TAKE_MORE:
        assert not one.takes(Demand(8, 8))
    assert reply.missing == Missing(left=500)


def test_what_a_dead_node_had_of_a_sites_pages_goes_to_others(client: Redis) -> None:
    dead, other = (node(client, name, max_pages_per_site=1) for name in ("dead", "other"))
    for page in (b"first", b"second"):
        other.push(page)
    assert dead.pop().data == b"first"
    assert other.take() is None
    dead.dies()
    (taken,) = other.takes(Demand(1, 1, poison=False))
    assert taken.data == b"second"


def test_a_crawl_waits_for_more_until_an_operator_ends_it(client: Redis, one: Node) -> None:
    def idle() -> NextStep:
        return result_of(one.idle(wait=True)).next_step

    assert idle() is NextStep.WAIT
    one.push(b"page")
    assert idle() is NextStep.TAKE_MORE
    one.works(one.pop())
    assert idle() is NextStep.WAIT
    one.push(b"another")
    page = one.pop()
    assert result_of(Node(client, "books", "operator").end()) is Ending.LATER
    one.works(page)
    assert idle() is NextStep.CLOSE
    assert result_of(one.end()) is Ending.NO_RUN


def test_a_crawl_waits_for_so_long_since_it_had_requests(
    client: Redis, one: Node, two: Node
) -> None:
    run = one.keys.key("run")
    result_of(two.idle(wait=600.0))
    assert 100.0 < result_of(one.idle(wait=600.0)).wait_s <= 600.0
    client.hincrbyfloat(run, "idle_since", -500_000)
    assert 0.0 < result_of(two.idle(wait=600.0)).wait_s <= 100.0
    one.push(b"page")
    one.works(one.pop())
    assert result_of(two.idle(wait=600.0)).next_step is NextStep.WAIT
    assert result_of(one.idle(wait=600.0)).wait_s > 100.0
    client.hincrbyfloat(run, "idle_since", -600_000)
    assert result_of(two.idle(wait=600.0)).next_step is NextStep.CLOSE
    assert crawl_keys(client) == []


@pytest.mark.parametrize("at_once", [False, True])
def test_an_operator_ends_what_nobody_works_on(client: Redis, one: Node, at_once: bool) -> None:
    one.push(b"page")
    if not at_once:
        one.leaves(one.pop())
    assert result_of(one.end(at_once)) is Ending.NOW
    assert crawl_keys(client) == []
    with pytest.raises(CrawlEndedError):
        node(client, "late")


FILLED: dict[str, Callable[[Any], object]] = {
    "list": lambda client: client.rpush("starts", "first", "second"),
    "set": lambda client: client.sadd("starts", "first", "second"),
    "zset": lambda client: client.zadd("starts", {"second": 1, "first": 2}),
    "stream": lambda client: [client.xadd("starts", {"url": url}) for url in ("first", "second")],
}


@pytest.mark.parametrize("kind", FILLED)
def test_start_requests_of_users_are_taken_once(client: Redis, one: Node, kind: str) -> None:
    def take(node: Node, most: int) -> list[tuple[bytes, bytes]]:
        return result_of(node.take_starts("starts", most))

    FILLED[kind](client)
    dead = node(client, "dead")
    ((reservation, text),) = take(dead, 1)
    assert take(dead, 1) == [(reservation, text)], "the reply may have been lost"
    assert take(one, 0) == []
    dead.dies()
    assert take(one, 1) == [(reservation, text)]
    _, (another, other_text) = take(one, 2)
    assert {text, other_text} >= {b"first", b"second"} or kind in ("set", "stream")
    assert client.exists("starts") == (kind == "stream")
    assert client.type("starts") != b"stream" or client.xlen("starts") == 0
    new = [
        NewRequest(PLACES.new_place("a", 0), text, reservation=reservation),
        unreadable_start(another),
    ]
    assert one.pushes(*new, *new) == [True] * 4
    late = NewRequest(PLACES.new_place("a", 0), text, reservation=reservation)
    assert dead.pushes(late) == [True]
    assert (one.queued, client.exists(one.keys.key("claims"))) == (1, 0)
    assert one.size.dead_letters == 1
    one.works(one.pop())
    reply = one.idles()
    assert (reply.next_step, reply.missing.dead_letters) == (NextStep.CLOSE, 1)
    assert (result_of(one.retry()), one.size.queued) == (1, 1)
    without_key = node(client, "without the key")
    assert without_key.idles().next_step is NextStep.TAKE_STARTS
    assert result_of(without_key.take_starts(None, 1)) == [(another, other_text)]
    assert without_key.pushes(NewRequest(PLACES.new_place("a", 0), other_text, reservation=another))
    assert without_key.idles(without_key.pop()).next_step is NextStep.CLOSE
    assert crawl_keys(client) == []


def test_a_crawl_that_ends_takes_no_more_of_the_users_key(client: Redis, one: Node) -> None:
    client.rpush("starts", "first", "second")
    ((reservation, text),) = result_of(one.take_starts("starts", 1))
    assert result_of(one.end()) is Ending.LATER
    assert result_of(one.take_starts("starts", 9)) == [(reservation, text)]
    assert one.pushes(NewRequest(PLACES.new_place("a", 0), text, reservation=reservation))
    page = one.pop()
    assert result_of(one.take_starts("starts", 9)) == []
    assert one.idles(page).next_step is NextStep.CLOSE
    assert client.lrange("starts", 0, -1) == [b"second"]


def test_what_the_nodes_have_counted_is_summed(client: Redis, one: Node, two: Node) -> None:
    one.push(b"page")
    result_of(one.sync(stats={"item_scraped_count": 5}))
    result_of(one.sync(stats={"item_scraped_count": 7, "a/b": 1}))
    assert one.idles(one.pop()).next_step is NextStep.CLOSE
    result_of(two.leave(stats={"item_scraped_count": 1}))
    assert result_of(one.stats()) == {"a/b": 1, "item_scraped_count": 8}
    assert client.ttl(one.keys.key("stats")) > 0
    node_of_next = Node(client, "books", "next")
    node_of_next.joins(new_run=True)
    assert result_of(node_of_next.stats()) == {}


# Which crawl ------------------------------------------------------------------------------------


def test_nodes_that_do_not_fit_do_not_join(client: Redis) -> None:
    one, two = (Node(client, "books", name) for name in ("one", "two"))
    identity = {"spider": "books", "start_urls": "a"}
    result_of(one.join(identity))
    before = dump(client)
    with pytest.raises(OtherCrawlError) as refused:
        result_of(two.join({**identity, "start_urls": "b"}))
    assert refused.value.identity == identity
    assert dump(client) == before
    result_of(two.join(dict(reversed(identity.items()))))
    one.drops()
    result_of(two.join({"spider": "another"}, new_run=True))


def test_a_run_of_a_new_name_begins_when_no_node_of_another_is_left(client: Redis) -> None:
    monday = node(client, "one", run="monday")
    monday.fill(a=3)
    monday.finishes(monday.pop(), Outcome.PAGE)
    late, tuesday = (Node(client, "books", "late", run=run) for run in ("monday", "tuesday"))
    assert result_of(late.join({})) == Joined(2, {}, was_stopped=False)
    late.leaves()
    before = dump(client)
    with pytest.raises(OtherRunError, match="nodes take part in the run 'monday'"):
        result_of(tuesday.join({"spider": "another"}))
    assert dump(client) == before
    monday.leaves()
    assert result_of(late.join({})).was_stopped
    late.leaves()
    assert result_of(tuesday.join({"spider": "another"})) == Joined(
        0, {"spider": "another"}, was_stopped=False, left=2
    )
    for stale in (monday.works, late.joins):
        with pytest.raises(CrawlEndedError):
            stale()
    assert tuesday.take() is None
    tuesday.push(b"page")
    tuesday.push(b"failed")
    tuesday.finishes(tuesday.pop(), Outcome.FAILED)
    assert tuesday.idles(tuesday.pop()).next_step is NextStep.CLOSE
    for name in ("monday", "tuesday"):
        with pytest.raises(CrawlEndedError):
            node(client, "later", run=name)
    wednesday = result_of(Node(client, "books", "next", run="wednesday").join({}))
    assert (wednesday.left, wednesday.forgotten) == (0, 1)


def test_the_last_hundred_names_of_runs_are_known(client: Redis) -> None:
    for number in range(102):
        each = node(client, "one", run=f"run {number}")
        each.leaves()
    for number in (2, 50, 100):
        with pytest.raises(CrawlEndedError):
            node(client, "late", run=f"run {number}")
    assert node(client, "one", run="run 1").size.state == "running"


def test_crawls_of_any_name_do_not_mix(client: Redis) -> None:
    names = ["50%s %(spider)s", "{a}:b", "line\nbreak", "🕸", "", "x" * 10_000, "\udcff"]
    for name in names:
        node(client, "one", crawl=name).push(name.encode(errors="surrogateescape"))
    for name in names:
        one = node(client, "one", crawl=name)
        taken = one.pop()
        assert taken.data == name.encode(errors="surrogateescape")
        assert one.idles(taken).next_step is NextStep.CLOSE
    assert crawl_keys(client) == []


# Sums --------------------------------------------------------------------------------------------


def test_the_numbers_of_nodes_that_have_gone_become_one_sum(client: Redis, one: Node) -> None:
    stats = one.keys.key("stats")
    for name in ("a", "b"):
        gone = node(client, name)
        result_of(gone.sync(stats={"item_scraped_count": 2, "retry/count": 1}))
        gone.leaves()
        client.hincrby(stats, gone.node + "\0", -AN_HOUR_MS)  # so long ago
    result_of(one.sync(stats={"item_scraped_count": 3}, working=True))
    sums = {"item_scraped_count": 7, "retry/count": 2}
    assert result_of(one.stats()) == sums
    node(client, "new")
    assert result_of(one.stats()) == sums
    assert client.hlen(stats) == 2 + 2


def test_the_numbers_of_a_node_that_returns_stay_its_own(client: Redis, one: Node) -> None:
    two = node(client, "two")
    result_of(two.sync(stats={"item_scraped_count": 2}))
    two.leaves()
    client.hincrby(one.keys.key("stats"), two.node + "\0", -AN_HOUR_MS)
    two.joins()
    result_of(two.sync(stats={"item_scraped_count": 3}))  # its total
    assert result_of(one.stats()) == {"item_scraped_count": 3}


# Another version ---------------------------------------------------------------------------------


def test_a_run_of_another_version_is_not_joined(client: Redis, one: Node) -> None:
    one.fill(a=1)
    for version in (None, "1"):
        if version is None:
            client.hdel(one.keys.key("run"), "version")
        else:
            client.hset(one.keys.key("run"), "version", version)
        before = dump(client)
        with pytest.raises(OtherVersionError, match=f"shared crawl 1, this one uses {VERSION}"):
            node(client, "two")
        assert dump(client) == before
    one.drops()
    one.joins(new_run=True)
    assert node(client, "two").push(b"page")


def test_an_ended_run_of_another_version_may_be_followed_by_one_of_this(client: Redis) -> None:
    one = node(client, "one", recrawl_after=60.0)
    one.push(b"page", fingerprint="a")
    assert one.idles(one.pop()).next_step is NextStep.CLOSE
    client.hset(one.keys.key("run"), "version", "1")
    with pytest.raises(CrawlEndedError):
        node(client, "two")
    one.joins(new_run=True)
    assert client.hget(one.keys.key("run"), "version") == VERSION.encode()
    assert one.push(b"page", fingerprint="a"), "fingerprints are stored in another way"
