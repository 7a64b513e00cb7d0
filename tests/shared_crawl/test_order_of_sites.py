"""Sites alternate: which requests nodes get from the server."""

from __future__ import annotations

from redis import Redis

from semaphore_middleware.shared_crawl.client import Demand, RequestInFlight
from tests.support.servers import wait_until
from tests.support.shared_crawl import Node, node


def sites(taken: list[RequestInFlight]) -> str:
    return "".join(request.site for request in taken)


def test_sites_alternate_however_much_each_has(one: Node, two: Node) -> None:
    one.fill(a=100, b=3, c=3)
    orders = [sites(taker.takes(Demand(2, 1))) for taker in (one, two, one, two, one)]
    assert orders == ["ab", "ca", "bc", "ab", "ca"]


def test_a_site_with_a_zero_byte_is_not_taken_for_another(one: Node) -> None:
    one.fill(**{"a": 1, "a\0b": 1})
    assert [taken.site for taken in one.takes(Demand(2, 1))] == ["a", "a b"]


def test_a_new_site_waits_for_one_turn_of_the_others(one: Node) -> None:
    one.fill(a=9, b=9)
    assert sites(one.takes(Demand(1, 1))) == "a"
    one.fill(c=9)
    assert sites(one.takes(Demand(3, 1))) == "bac"


def test_one_call_takes_the_same_number_of_each_site(one: Node) -> None:
    one.fill(a=20, b=20, c=20, d=1)
    assert sites(one.takes(Demand(10, 8))) == "aaabbbcccd"
    assert sites(one.takes(Demand(100, 8))) == "aaaaaaaabbbbbbbbcccccccc"


def test_a_skipped_site_stays_first(one: Node) -> None:
    one.fill(a=9, b=9, c=9)
    assert sites(one.takes(Demand(2, 1, frozenset("ac")))) == "b"
    assert sites(one.takes(Demand(3, 1, frozenset("xyz")))) == "acb"
    assert one.takes(Demand(8, 8, frozenset("abc"))) == []


def test_poison_requests_of_many_sites_keep_no_node_from_other_requests(client: Redis) -> None:
    dead = node(client, "dead")
    dead.fill(**{f"dead-{number}": 1 for number in range(40)})
    assert len(dead.takes(Demand(40, 1))) == 40
    dead.dies()
    living = node(client, "living")
    assert [poison.tries for poison in living.takes(Demand(32, 8))] == [1]
    living.fill(**{f"new-{number}": 1 for number in range(40)})
    others = living.takes(Demand(31, 8, poison=False))
    assert [other.tries for other in others] == [0] * 31


def test_a_poison_request_of_a_skipped_site_waits(client: Redis) -> None:
    dead = node(client, "dead")
    dead.fill(a=2, b=1)
    assert len(dead.takes(Demand(3, 2))) == 3
    dead.dies()
    one = node(client, "one")
    one.fill(a=1, c=1)
    assert sites(one.takes(Demand(3, 3, frozenset("a")))) == "bc"
    assert sites(one.takes(Demand(3, 3))) == "a"
    assert [taken.tries for taken in one.takes(Demand(3, 3, poison=False))] == [0]
    assert one.size.sites == 0


def test_of_a_short_queue_a_node_takes_only_its_share_and_the_dead_have_none(client: Redis) -> None:
    nodes = [node(client, f"node-{number}") for number in range(3)]
    nodes[0].fill(a=9)
    assert [len(each.takes(Demand(32, 8))) for each in nodes] == [3, 2, 2]
    living, *dead = [node(client, f"{number}", "music") for number in range(20)]
    for part in ("nodes", "working"):  # their leases end
        client.zadd(living.keys.key(part), {each.node: 1 for each in dead})
    living.fill(a=400)
    wait_until(lambda: living.takes(Demand(1, 1)) and living.size.nodes == 1)
    assert len(living.takes(Demand(32, 32))) == 32, "with 20 others it would be 20 at most"


def test_taking_looks_at_no_more_sites_than_needed(client: Redis, one: Node) -> None:
    one.pushes(*(one.new(site=f"site-{number}") for number in range(2000)))
    client.config_resetstat()
    assert len(one.takes(Demand(8, 8, frozenset({"site-0", "site-1"})))) == 8
    calls = {name: stat["calls"] for name, stat in client.info("commandstats").items()}
    assert calls["cmdstat_zlexcount"] == 8
    assert calls["cmdstat_zrem"] <= 2 * 8 + 1


def test_a_site_may_have_any_name(client: Redis) -> None:
    for number, site in enumerate(("", "a b", "line\nbreak", "🕸", "x" * 10_000)):
        one = node(client, "one", crawl=f"{number}")
        one.pushes(one.new(b"page", -2.5, site=site))
        taken = one.pop()
        assert taken.site == site
        one.leaves()
        one.joins()
        assert one.pop() == taken
