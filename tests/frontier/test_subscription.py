"""What a crawl's channel tells, and when."""

from __future__ import annotations

from redis import Redis

from tests.crawler.conftest import wait_until
from tests.frontier.verbs import entry, fill, node, pop, push


def test_news_tells_of_first_requests_of_who_leaves_and_of_the_end(client: Redis) -> None:
    one, two = node(client, "one"), node(client, "two")
    with client.pubsub(ignore_subscribe_messages=True) as listener:  # type: ignore[no-untyped-call]
        listener.subscribe(one.key("news"))
        push(one, b"a")
        push(one, b"b")  # there was one: whoever rests has been told
        taken = [pop(one), pop(one)]
        push(one, b"c")
        taken.append(pop(two))
        two.leaves()  # which gives one back
        taken[2] = pop(one)
        one.rests(*taken)
        heard: list[bytes] = []
        wait_until(lambda: _hear(listener, heard) and heard[-1] == b"done")
    assert heard == [b"requests", b"requests", b"requests", b"left", b"done"]


def test_news_tells_of_each_site_s_first_request(client: Redis) -> None:
    one = node(client, "one")
    with client.pubsub(ignore_subscribe_messages=True) as listener:  # type: ignore[no-untyped-call]
        listener.subscribe(one.key("news"))
        fill(one, a=3)
        one.pushes(*(entry(one, b"", site=site) for site in "abcb"))  # once, for b and c
        one.ends()
        heard: list[bytes] = []
        wait_until(lambda: _hear(listener, heard) and heard[-1] == b"done")
    assert heard == [b"requests", b"requests", b"done"]


def _hear(listener: object, heard: list[bytes]) -> bool:
    message = listener.get_message(timeout=1.0)  # type: ignore[attr-defined]
    if message:
        heard.append(message["data"])
    return bool(heard)
