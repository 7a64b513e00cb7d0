"""Fingerprints take few bytes, are not forgotten, and are not confused with each other."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import count
from typing import Any

import pytest
from redis import Redis

from semaphore_middleware.errors import ServerUnreachableError
from semaphore_middleware.link.scripts import Script, source_of
from semaphore_middleware.shared_crawl import client as module
from semaphore_middleware.shared_crawl.client import SCRIPTS, NewRequest
from tests.support.blocking import result_of
from tests.support.shared_crawl import PLACES, Node, crawl_keys, node

LENGTH, TIME_LENGTH = 8, 4
MOST_BYTES = 20  # of a fingerprint, on the server


def push(crawl: Node, fingerprints: Iterable[bytes]) -> list[bool]:
    """Which of these fingerprints the server has not seen before."""
    place = PLACES.new_place
    return crawl.pushes(*(NewRequest(place("a", 0), b"", text) for text in fingerprints))


def buckets(crawl: Node) -> list[bytes]:
    """The fingerprints that the server keeps, in any order."""
    found: Any = crawl.client.hgetall(crawl.keys.key("seen"))
    assert int(found.pop(b"count", 0)) == sum(map(len, found.values())) / LENGTH
    return list(found.values())


def in_buckets(crawl: Node) -> list[bytes]:
    return [
        bucket[at : at + LENGTH]
        for bucket in buckets(crawl)
        for at in range(0, len(bucket), LENGTH)
    ]


@pytest.fixture
def chosen(client: Redis, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A node whose fingerprints the server keeps as they are, in buckets of two."""
    monkeypatch.setattr(module, "short_fingerprint", lambda fingerprint, _run: fingerprint)
    of_32 = "PER_BUCKET = 8, 4, 32"
    assert of_32 in SCRIPTS["sync"].source
    of_two = of_32.replace("32", "2")
    source = property(lambda script: source_of(script).replace(of_32, of_two))
    monkeypatch.setattr(Script, "source", source)
    return node(client, "one")


def test_what_was_seen_stays_seen_in_few_bytes(client: Redis, one: Node) -> None:
    chance = random.Random(7)
    known = [chance.randbytes(chance.randrange(1, 300)) for _ in range(5000)]  # of any length
    found = [chance.choice(known) for _ in range(5000)] + known
    first = {fingerprint: at for at, fingerprint in reversed(list(enumerate(found)))}
    assert push(one, found) == [first[each] == at for at, each in enumerate(found)]
    assert one.size.seen == len(set(in_buckets(one))) == len(first)
    memory = client.memory_usage(one.keys.key("seen"), samples=0)
    assert memory is not None
    assert memory / len(first) < MOST_BYTES
    again = node(client, "one", crawl="the same with other short fingerprints")
    assert all(push(again, first))
    assert not set(in_buckets(again)) & set(in_buckets(one))


@pytest.mark.parametrize("seed", range(20))
def test_the_server_replies_as_a_set_would_whatever_is_split(chosen: Node, seed: int) -> None:
    """Many are in some buckets, none in others, and the middle of two may look like a third one."""
    chance, seen = random.Random(seed), set[bytes]()
    for _ in range(6):
        call = [bytes(chance.choices([0, 1], k=LENGTH)) for _ in range(chance.randrange(40))]
        fresh = [each not in seen and each not in call[:at] for at, each in enumerate(call)]
        assert push(chosen, call) == fresh
        seen.update(call)
        assert sorted(in_buckets(chosen)) == sorted(seen)


def ages(crawl: Node, seconds: int) -> None:
    """Move all earlier fingerprints back in time."""
    key, entry = crawl.keys.key("seen"), LENGTH + TIME_LENGTH
    buckets: Any = crawl.client.hgetall(key)
    buckets.pop(b"count")
    buckets.pop(b"buckets", None)
    for name, bucket in buckets.items():
        entries = [bucket[at : at + entry] for at in range(0, len(bucket), entry)]
        older = [
            text[:LENGTH]
            + (int.from_bytes(text[LENGTH:], "big") - seconds).to_bytes(TIME_LENGTH, "big")
            for text in entries
        ]
        crawl.client.hset(key, name, b"".join(older))


def test_after_some_time_a_page_may_be_fetched_again(client: Redis) -> None:
    def begins() -> Node:
        crawl = Node(client, "books", "one", recrawl_after=10_000.0)
        crawl.joins(new_run=True)
        start = NewRequest(PLACES.new_place("a", 0), b"", b"start", of_run=True)
        assert crawl.pushes(start, start) == [True, True]  # sent twice, queued once
        return crawl

    first, known = begins(), [b"%d" % number for number in range(200)]
    assert all(push(first, known))
    ages(first, 9_000)
    assert not any(push(first, known))
    ages(first, 1_001)
    assert all(push(first, known[:50]))
    assert not any(push(first, known[:50]))
    assert result_of(first.end(at_once=True))
    assert client.ttl(first.keys.key("seen")) > 0
    second = begins()
    assert client.ttl(first.keys.key("seen")) == -1  # it does not expire in this run
    assert push(second, known) == [False] * 50 + [True] * 150
    second.drops()
    assert crawl_keys(client) == []


def test_times_of_a_clock_that_was_ahead_delay_no_recrawl(client: Redis) -> None:
    crawl, ahead, later = node(client, "one", recrawl_after=10_000.0), [b"ahead"], [b"later"]
    assert all(push(crawl, ahead))
    ages(crawl, -1_000_000)
    assert all(push(crawl, later))
    assert not any(push(crawl, later))
    ages(crawl, 10_001)
    assert all(push(crawl, later + ahead))
    assert crawl.size.seen == 2


def test_what_counts_as_new_again_takes_no_room_for_ever(client: Redis) -> None:
    crawl = node(client, "one", recrawl_after=10_000.0)
    chance, sizes = random.Random(7), []
    for _ in range(12):
        assert all(push(crawl, [chance.randbytes(8) for _ in range(500)]))
        ages(crawl, 5_001)
        sizes.append(crawl.size.seen)
    assert sizes[0] == 500
    assert max(sizes) < 2500, "of 6000"


def test_a_server_that_is_full_has_seen_what_it_has_queued(chosen: Node) -> None:
    client, number = chosen.client, count()
    client.config_set("maxmemory", int(client.info("memory")["used_memory"]) + 200_000)
    done: list[bytes] = []
    with pytest.raises(ServerUnreachableError, match="maxmemory"):
        while True:
            call = [next(number).to_bytes(8, "big") for _ in range(25)]
            assert all(push(chosen, call))
            done += call
    before = client.dump(chosen.keys.key("seen"))
    client.config_set("maxmemory", 1)  # what it uses goes up and down: the next call may still fit
    with pytest.raises(ServerUnreachableError, match="maxmemory"):
        push(chosen, [b"another."])
    assert client.dump(chosen.keys.key("seen")) == before
    client.config_set("maxmemory", 0)
    assert chosen.size.seen == chosen.queued == len(in_buckets(chosen)) == len(done) > 0
    assert not any(push(chosen, done))
    assert all(push(chosen, call))
