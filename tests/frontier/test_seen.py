"""What a crawl has seen takes few bytes, is not forgotten, and is taken for nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import core, given, settings
from hypothesis import strategies as st
from redis import Redis

from semaphore_middleware.errors import ServerUnreachableError
from semaphore_middleware.frontier import client as module
from semaphore_middleware.frontier import scripts
from semaphore_middleware.frontier.client import NewRequest
from tests.frontier.verbs import node
from tests.support.frontier import BlockingClient
from tests.support.mutants import plant_in_lua

LENGTH = 8
MOST_BYTES = 20  # of a fingerprint, on the server


def push(crawl: BlockingClient, fingerprints: Iterable[bytes]) -> list[bool]:
    """Which of them the server has not seen before."""
    place = crawl.new_place
    return crawl.pushes(*(NewRequest(place("a", 0), b"", one) for one in fingerprints))


def in_buckets(crawl: BlockingClient) -> list[bytes]:
    """What the server keeps, in any order."""
    buckets: Any = crawl.client.hgetall(crawl.keys.of("seen"))
    buckets.pop(b"count", None)
    return [one for bucket in buckets.values() for one in _pieces(bucket)]


def _pieces(bucket: bytes) -> Iterator[bytes]:
    assert len(bucket) % LENGTH == 0
    for at in range(0, len(bucket), LENGTH):
        yield bucket[at : at + LENGTH]


@pytest.fixture
def chosen(client: Redis, monkeypatch: pytest.MonkeyPatch) -> BlockingClient:
    """A node whose fingerprints the server keeps as they are, in buckets of two."""
    monkeypatch.setattr(module, "short_fingerprint", lambda fingerprint, _run: fingerprint)
    of_two = "shared/seen", "LENGTH, PER_BUCKET = 8, 32", "LENGTH, PER_BUCKET = 8, 2"
    plant_in_lua(of_two, monkeypatch, scripts)
    return node(client, "one")


def test_what_was_seen_stays_seen_in_few_bytes(client: Redis) -> None:
    one, chance = node(client, "one"), random.Random(7)
    known = [chance.randbytes(20) for _ in range(5000)]
    found = [chance.choice(known) for _ in range(5000)] + known
    first = {fingerprint: at for at, fingerprint in reversed(list(enumerate(found)))}
    assert push(one, found) == [first[each] == at for at, each in enumerate(found)]
    assert one.size.seen == len(set(in_buckets(one))) == len(in_buckets(one)) == len(known)
    memory = client.memory_usage(one.keys.of("seen"), samples=0)
    assert memory is not None
    assert memory / len(known) < MOST_BYTES
    again = node(client, "one", crawl="the same with other short fingerprints")
    assert all(push(again, known))
    assert not set(in_buckets(again)) & set(in_buckets(one))


def test_fingerprints_may_have_any_length(client: Redis) -> None:
    one = node(client, "one")
    lengths = [b"x" * length for length in range(1, 300)]
    assert all(push(one, lengths))
    assert not any(push(one, lengths))


# Many of them in some buckets, none in others, and the middle of two may look like a third one.
alike = st.lists(st.sampled_from([0, 1]), min_size=LENGTH, max_size=LENGTH).map(bytes)
crawls = st.lists(st.lists(alike, max_size=40), max_size=6)


def test_the_server_replies_as_a_set_would_whatever_is_split(chosen: BlockingClient) -> None:
    @settings(
        max_examples=40,
        database=None,
        derandomize=core.global_force_seed is None,
        report_multiple_bugs=False,
    )
    @given(crawls)
    def replies_as_a_set(calls: list[list[bytes]]) -> None:
        chosen.client.delete(chosen.keys.of("seen"))
        seen: set[bytes] = set()
        for call in calls:
            fresh = [each not in seen and each not in call[:at] for at, each in enumerate(call)]
            assert push(chosen, call) == fresh
            seen.update(call)
            assert sorted(in_buckets(chosen)) == sorted(seen)
            assert chosen.size.seen == len(seen)

    replies_as_a_set()


def test_buckets_may_be_empty(chosen: BlockingClient) -> None:
    """All fingerprints belong in the same bucket, however many there are."""
    known = [bytes(4) + number.to_bytes(4, "big") for number in range(40)]
    assert all(push(chosen, known))
    assert not any(push(chosen, reversed(known)))
    buckets = chosen.client.hgetall(chosen.keys.of("seen"))
    assert buckets.pop(b"count") == b"40"
    assert sorted(map(len, buckets.values())) == [*[0] * 20, 40 * LENGTH]


def test_the_middle_of_two_is_no_third(chosen: BlockingClient) -> None:
    known = [b"\0\0\0\0abcd", b"\0\0\0\0efgh"]
    assert push(chosen, known) == [True, True]
    assert push(chosen, [b"abcd\0\0\0\0", b"cd\0\0\0\0ef", *known]) == [True, True, False, False]


def test_a_server_that_is_full_has_seen_what_it_has_queued(chosen: BlockingClient) -> None:
    client, number = chosen.client, count()
    client.config_set("maxmemory", int(client.info("memory")["used_memory"]) + 200_000)
    done: list[bytes] = []
    with pytest.raises(ServerUnreachableError, match="maxmemory"):
        while True:
            call = [next(number).to_bytes(8, "big") for _ in range(25)]
            assert all(push(chosen, call))
            done += call
    before = client.dump(chosen.keys.of("seen"))
    client.config_set("maxmemory", 1)  # what it uses goes up and down: the next call may still fit
    with pytest.raises(ServerUnreachableError, match="maxmemory"):
        push(chosen, [b"another."])
    assert client.dump(chosen.keys.of("seen")) == before
    client.config_set("maxmemory", 0)
    assert chosen.size.seen == chosen.queued == len(in_buckets(chosen)) == len(done) > 0
    assert not any(push(chosen, done))
    assert all(push(chosen, call))
