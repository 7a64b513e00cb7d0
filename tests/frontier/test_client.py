"""The rules of a shared crawl, verb by verb, on a real client."""

from __future__ import annotations

import pytest
from redis import Redis

from semaphore_middleware.errors import ServerUnreachableError
from semaphore_middleware.frontier.client import (
    CrawlEndedError,
    Demand,
    FinishedRequest,
    NextStep,
    OtherCrawlError,
)
from tests.support.frontier import ONE, Node, crawl_keys, node, result_of, wait_until

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
    assert taken == pages[:106]  # each time its share of what is left
    assert [two.pop().data for _ in range(15)][-2:] == [pages[-1], b"later"]


def test_a_node_waits_while_others_may_have_the_last_pages(client: Redis) -> None:
    one, two = node(client, "one", max_pages=1), node(client, "two", max_pages=1)
    one.fill(a=2)
    (taken,) = one.takes(Demand(8, 8))
    assert two.takes(Demand(8, 8)) == []
    assert two.idles().next_step is NextStep.WAIT
    with client.pubsub(ignore_subscribe_messages=True) as listener:  # type: ignore[no-untyped-call]
        listener.subscribe(one.keys.channel)
        result_of(one.sync(finished=[FinishedRequest(taken.place, is_page=False)]))
        wait_until(lambda: listener.get_message(timeout=1.0))
    assert two.idles(two.pop()).next_step is NextStep.WAIT  # `one` still works
    assert one.idles().next_step is NextStep.CLOSE


def test_nothing_is_finished_or_taken_if_queueing_fails(client: Redis, one: Node) -> None:
    one.push(b"page")
    page = one.pop()
    one.push(b"next")
    seen = one.keys.of("seen")
    client.set(seen, "of another type", ex=60)
    new = [one.new(b"plain"), one.new(b"link", fingerprint="a"), one.new(b"", fingerprint="b")]
    with pytest.raises(ServerUnreachableError, match="WRONGTYPE"):
        result_of(one.sync(new, [FinishedRequest(page.place, is_page=True)], ONE))
    client.delete(seen)
    assert (one.queued, one.size.unfinished, one.taken) == (2, 3, 1)


def test_what_a_crawl_tells_its_nodes(client: Redis, one: Node) -> None:
    def receive() -> bool:
        message = listener.get_message(timeout=1.0)
        received.extend([message["data"]] if message else [])
        return received[-1:] == [b"done"]

    two, received = node(client, "two"), list[bytes]()
    with client.pubsub(ignore_subscribe_messages=True) as listener:  # type: ignore[no-untyped-call]
        listener.subscribe(one.keys.channel)
        one.push(b"a")
        one.push(b"b")  # not the first: idle nodes have been told
        taken = [one.pop(), one.pop()]
        one.pushes(*(one.new(site=site) for site in "ab"))  # once, for both sites
        taken += [one.pop(), two.pop()]
        two.leaves()  # its request goes back
        taken[-1] = one.pop()
        one.idles(*taken)
        wait_until(receive)
    assert received == [b"requests", b"requests", b"requests", b"left", b"done"]


# Finished, dead, idle ----------------------------------------------------------------------------


def test_an_idle_node_waits_and_the_last_one_ends_the_crawl(
    client: Redis, one: Node, two: Node
) -> None:
    one.push(b"page", fingerprint="a")
    assert two.idles().next_step is NextStep.TAKE_MORE
    taken = one.pop()
    reply = two.idles()
    assert reply.next_step is NextStep.WAIT
    assert 0.0 < reply.wait_s <= 60.0  # the rest of the lease of `one`
    starting = Node(client, "books", "starting")
    result_of(starting.join())  # it works from then on
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


def test_a_crawl_that_is_dropped_leaves_no_keys(client: Redis, one: Node, two: Node) -> None:
    one.push(b"a", fingerprint="a")
    one.fill(b=3, c=3)
    two.pop()
    one.drops()
    assert crawl_keys(client) == []
    assert client.ttl(one.keys.of("run")) <= 3600
    with pytest.raises(CrawlEndedError):
        two.idles()
    two.leaves()
    assert crawl_keys(client) == []
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
    client.hincrbyfloat(dead.keys.of("run"), "wall", -AN_HOUR_MS)  # nobody has called since
    assert (operator.size.state, operator.size.nodes) == ("stopped", 0)
    operator.drops()
    assert not operator.size.exists
    assert node(client, "new").push(b"page", fingerprint="a")


def test_what_was_set_aside_can_be_put_back_also_after_the_end(client: Redis) -> None:
    nodes = [node(client, f"node-{number}") for number in range(3)]
    nodes[0].push(b"page", fingerprint="a")
    assert [each.cannot_read(each.pop()) for each in nodes] == [[], [], [b"page"]]
    for each in nodes:
        client.zrem(each.keys.of("working"), each.node)
    assert nodes[0].idles().next_step is NextStep.CLOSE
    assert nodes[0].size.ended_at is not None
    assert all(client.ttl(nodes[0].keys.of(part)) > 0 for part in ("aside", "seen", "requests"))
    assert result_of(nodes[0].retry()) == 1
    late = node(client, "late")
    assert not late.push(b"page", fingerprint="a")
    taken = late.pop()
    assert (taken.data, taken.tries) == (b"page", 0)
    assert late.idles(taken).next_step is NextStep.CLOSE
    assert crawl_keys(client) == []
    assert result_of(late.retry()) == 0


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
    (suspect,) = one.takes(Demand(3, 3))
    assert (suspect.data, suspect.tries) == (b"first", 1)
    (plain,) = one.takes(Demand(3, 3, suspect=False))
    assert (plain.data, plain.tries) == (b"third", 0)
    assert one.takes(Demand(3, 3, suspect=False)) == []
    assert two.pop().data == b"second"
    getattr(one, way)(plain)  # what it gives back of them stays one
    assert two.takes(Demand(3, 3, suspect=False)) == []
    assert two.pop() == suspect


def test_a_node_whose_lease_expired_cannot_finish_requests_of_others(one: Node, two: Node) -> None:
    one.push(b"page")
    taken = one.pop()
    one.dies()
    assert one.take() is None  # it loses none to itself
    assert two.pop().place == taken.place
    expired = [result_of(one.sync(working=True)).lease_expired for _ in range(2)]
    assert expired == [True, False]  # it is told once
    one.works(taken)
    assert two.size.unfinished == 1
    two.leaves()  # the page goes back
    assert one.pop().data == b"page"


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
