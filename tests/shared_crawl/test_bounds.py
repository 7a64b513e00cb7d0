"""No call of a shared crawl holds the server for long, however much there is to do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from redis import Redis

from semaphore_middleware.shared_crawl.client import Missing, NextStep, RequestInFlight
from tests.support.blocking import result_of
from tests.support.server_time import Reading
from tests.support.shared_crawl import PLACES, Node, node

MOST_COMMANDS = 5000  # in a call: some 5 ms
MOST_S = 0.02  # of the server's processor time
NODES, REQUESTS, POISONED, RESERVATIONS = 60, 30, 6000, 3000


def commands(client: Redis, call: Callable[[], object]) -> int:
    """How many commands the server has executed for a call, with those of scripts."""
    client.config_resetstat()
    call()
    stats = client.info("commandstats")
    return sum(of_command["calls"] for of_command in stats.values())


def taken_by_others(
    client: Redis, one: Node, lease_end: float, nodes: int = NODES, requests: int = REQUESTS
) -> list[bytes]:
    """Let many nodes take many requests; returns the places of these."""
    key = one.keys.key
    found = []
    with client.pipeline(transaction=False) as calls:
        for name in (b"%d" % number for number in range(nodes)):
            calls.zadd(key("working"), {name: lease_end})
            calls.zadd(key("nodes"), {name: lease_end})
            for _ in range(requests):
                found.append(place := PLACES.new_place("a", 0))
                taken_at = int(time.time()).to_bytes(4, "big")
                calls.hset(key("requests"), place, b"data")
                calls.zadd(key("taken"), {b"%b\0%b0%b" % (name, place, taken_at): 0})
                calls.hset(key("takers"), place, name)
        calls.execute()
    return found


def test_the_requests_of_many_dead_nodes_go_back_in_steps(client: Redis, one: Node) -> None:
    taken_by_others(client, one, lease_end=1)
    steps = 0
    while client.zcount(one.keys.key("working"), 1, 1):
        assert commands(client, one.take) < MOST_COMMANDS
        steps += 1
    assert steps > 1
    blamed = client.zcard(one.keys.key("suspects"))
    assert blamed + one.size.in_flight == NODES * REQUESTS


def test_many_pages_that_are_late_are_found_at_once(client: Redis, one: Node) -> None:
    places = taken_by_others(client, one, lease_end=9e15)
    late = [RequestInFlight(place, b"") for place in places[::6]]
    assert commands(client, lambda: one.works(*late)) < MOST_COMMANDS
    assert one.size.pages == len(late)
    assert one.size.in_flight == len(places) - len(late)


def test_one_page_that_is_late_is_found_among_many(client: Redis, one: Node) -> None:
    places = taken_by_others(client, one, lease_end=9e15, nodes=300, requests=100)
    late = RequestInFlight(places[-1], b"")
    one.works()
    before = Reading.now(client)
    one.works(late)
    assert (Reading.now(client) - before).seconds < MOST_S
    assert (one.size.pages, one.size.in_flight) == (1, len(places) - 1)


def test_many_poison_requests_over_the_budget_are_checked_in_steps(client: Redis) -> None:
    one = node(client, "one", max_pages_per_site=1)
    key = one.keys.key
    with client.pipeline(transaction=False) as calls:
        for number in range(POISONED):
            place = PLACES.new_place("a" if number < POISONED - 1 else "b", 0)
            calls.zadd(key("suspects"), {place: 1})
            calls.hset(key("requests"), place, b"data")
        calls.hset(key("budgets"), "a", 1)
        calls.hincrby(key("run"), "unfinished", POISONED)
        calls.execute()
    assert commands(client, one.take) < MOST_COMMANDS
    while (reply := one.idles()).next_step is NextStep.TAKE_MORE:
        if taken := one.take():
            one.works(taken)
    assert (reply.missing, one.size.pages) == (Missing(left=POISONED - 1), 1)


def test_many_reservations_are_checked_in_steps(client: Redis, one: Node) -> None:
    reserved: dict[Any, Any] = {
        str(number): f"dead\0http://a/{number}" for number in range(RESERVATIONS)
    }
    client.hset(one.keys.key("claims"), mapping=reserved)
    found = set()
    for _ in range(RESERVATIONS):
        some = result_of(one.take_starts(None, 100))
        assert len(some) < RESERVATIONS / 2
        found |= {text.decode() for _, text in some}
        if len(found) == RESERVATIONS:
            break
    assert found == {f"http://a/{number}" for number in range(RESERVATIONS)}


def test_other_budgets_hold_when_all_that_dead_nodes_had_is_back(client: Redis) -> None:
    one = node(client, "one", max_pages_per_site=10_000)
    taken_by_others(client, one, lease_end=1)
    one.leaves()
    two = Node(client, "books", "two", max_pages_per_site=20_000)
    before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    two.joins({})
    assert client.info("commandstats")["cmdstat_evalsha"]["calls"] > before + 1
    assert client.zcard(one.keys.key("suspects")) == NODES * REQUESTS
