"""Keys of a crawl are evicted or deleted: requests are queued again, or counted as lost."""

from __future__ import annotations

import pytest
from redis import Redis

from semaphore_middleware.shared_crawl.client import (
    Demand,
    IdleReply,
    Missing,
    NextStep,
    NotDoneError,
    Outcome,
)
from tests.shared_crawl.node import joined
from tests.support.blocking import result_of
from tests.support.shared_crawl import Node, crawl_keys, node

HOUR_MS = 3_600_000
MANY = 1200  # more than one call checks


def lose(client: Redis, node: Node, *parts: str) -> None:
    assert client.delete(*(node.keys.key(part) for part in parts)) == len(parts)


def does_all(node: Node) -> tuple[int, int, IdleReply]:
    """Crawl to the end: how many requests were taken, and queued again; the last reply."""
    taken = queued_again = 0
    in_flight = node.takes(Demand(1000, 1000))
    while True:
        taken += len(in_flight)
        reply = node.idles(*in_flight)
        queued_again += reply.queued_again
        if reply.next_step is not NextStep.TAKE_MORE:
            return taken, queued_again, reply
        in_flight = node.takes(Demand(1000, 1000))


@pytest.mark.parametrize("parts", [["queue"], ["sites"], ["queue", "sites"]])
def test_no_request_is_missed(client: Redis, one: Node, parts: list[str]) -> None:
    one.fill(**{f"site{number}": 2 for number in range(MANY // 2)})
    lose(client, one, *parts)
    assert does_all(one) == (MANY, MANY, IdleReply(NextStep.CLOSE, 0.0, [], 0))
    assert crawl_keys(client) == []


def test_what_is_still_queued_is_not_queued_again(client: Redis, one: Node) -> None:
    one.fill(a=5)
    (poison,) = one.takes(Demand(1, 1))
    result_of(one.sync(unreadable=[poison]))
    lose(client, one, "queue")
    one.fill(b=3)
    taken, queued_again, _ = does_all(one)
    assert (taken, queued_again) == (8, 4)


def test_what_dead_nodes_had_taken_is_queued_again(client: Redis, one: Node, two: Node) -> None:
    one.fill(a=3)
    assert len(two.takes(Demand(2, 2))) == 2
    lose(client, one, "taken")
    two.dies()
    assert does_all(one)[0] == 3


def test_a_node_with_requests_is_waited_for_though_its_lease_is_lost(
    client: Redis, one: Node, two: Node
) -> None:
    one.fill(a=1)
    page = two.pop()
    lose(client, one, "working")
    assert one.idles().next_step is NextStep.WAIT
    two.works(page)
    assert two.idles().next_step is NextStep.CLOSE


def test_a_lease_of_a_lost_clock_is_no_longer_than_others(
    client: Redis, one: Node, two: Node
) -> None:
    client.hincrbyfloat(two.keys.key("run"), "clock", HOUR_MS)  # the wall clock was set back
    two.works()
    lose(client, one, "run")
    one.joins(new_run=True)
    assert one.idles().wait_s <= one.settings.lease


def test_what_a_budget_leaves_is_counted_at_the_end(client: Redis) -> None:
    one = node(client, "one", max_pages_per_site=2)
    one.fill(a=5, b=1)
    taken, queued_again, last = does_all(one)
    assert (taken, queued_again, last.missing) == (3, 0, Missing(left=3))


def test_a_budget_is_not_used_up_by_what_was_taken(client: Redis) -> None:
    one = node(client, "one", max_pages_per_site=3)
    one.fill(a=5)
    assert len(one.takes(Demand(2, 2))) == 2
    lose(client, one, "taken")
    assert does_all(one)[0] == 3


def test_a_budget_that_was_lost_counts_what_is_fetched_since(client: Redis) -> None:
    one = node(client, "one", max_pages_per_site=3)
    one.fill(a=6)
    in_flight = one.takes(Demand(2, 2))
    lose(client, one, "budgets")
    one.works(*in_flight)
    assert len(one.takes(Demand(6, 6))) == 1


def test_a_crawl_that_waits_looks_once_at_what_its_budgets_leave(client: Redis) -> None:
    one = node(client, "one", max_pages_per_site=1)
    one.fill(**{f"site{number}": 2 for number in range(MANY // 2)})
    while taken := one.takes(Demand(1000, 1000)):
        one.works(*taken)
    steps = [result_of(one.idle(wait=True)).next_step for _ in range(4)]
    assert steps == [NextStep.TAKE_MORE, NextStep.WAIT, NextStep.WAIT, NextStep.WAIT]


def test_a_run_that_lacks_lost_requests_is_begun_anew(client: Redis, one: Node, two: Node) -> None:
    one.fill(a=8)
    page, failed = one.takes(Demand(2, 2))
    lose(client, one, "requests")
    one.finishes(failed, Outcome.FAILED)
    one.works(page)
    assert sum(result_of(one.sync(demand=Demand(2, 2))).lost for _ in range(4)) == 6
    reply = one.idles()
    assert (reply.next_step, reply.missing) == (NextStep.CLOSE_UNDONE, Missing(lost=7))
    with pytest.raises(NotDoneError) as raised:
        two.idles()
    assert raised.value.missing == Missing(lost=7)
    assert one.size.state == "stopped"
    late = node(client, "late")
    late.fill(a=1)
    assert late.idles(late.pop()).missing == Missing()


@pytest.mark.parametrize("policy", ["allkeys-lru", "noeviction"])
async def test_a_server_that_evicts_keys_is_warned_of(
    client: Redis, caplog: pytest.LogCaptureFixture, policy: str
) -> None:
    client.config_set("maxmemory", 10**9)
    client.config_set("maxmemory-policy", policy)
    async with joined(client) as node:
        await node.idles()
    warnings = caplog.text.count("evicts keys when its memory is full, and so loses requests")
    assert warnings == (policy != "noeviction")
