"""Which notifications a crawl's channel carries, and when."""

from __future__ import annotations

from redis import Redis

from tests.frontier.verbs import fill, new_request, node, pop, push
from tests.support.frontier import wait_until


def test_notified_of_first_requests_of_leaving_nodes_and_of_the_end(client: Redis) -> None:
    one, two = node(client, "one"), node(client, "two")
    with client.pubsub(ignore_subscribe_messages=True) as listener:  # type: ignore[no-untyped-call]
        listener.subscribe(one.keys.channel)
        push(one, b"a")
        push(one, b"b")  # not the first: idle nodes have been told
        taken = [pop(one), pop(one)]
        push(one, b"c")
        taken.append(pop(two))
        two.leaves()  # its request goes back
        taken[2] = pop(one)
        one.idles(*taken)
        received: list[bytes] = []
        wait_until(lambda: _receive(listener, received) and received[-1] == b"done")
    assert received == [b"requests", b"requests", b"requests", b"left", b"done"]


def test_notified_of_each_sites_first_request(client: Redis) -> None:
    one = node(client, "one")
    with client.pubsub(ignore_subscribe_messages=True) as listener:  # type: ignore[no-untyped-call]
        listener.subscribe(one.keys.channel)
        fill(one, a=3)
        one.pushes(*(new_request(one, b"", site=site) for site in "abcb"))  # once, for b and c
        one.drops()
        received: list[bytes] = []
        wait_until(lambda: _receive(listener, received) and received[-1] == b"done")
    assert received == [b"requests", b"requests", b"done"]


def _receive(listener: object, received: list[bytes]) -> bool:
    message = listener.get_message(timeout=1.0)  # type: ignore[attr-defined]
    if message:
        received.append(message["data"])
    return bool(received)
