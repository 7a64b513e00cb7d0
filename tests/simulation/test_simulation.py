"""The semaphore keeps its promises in simulated time, whatever fails, and the judge can tell."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from semaphore_middleware.redis.keys import Keys
from semaphore_middleware.redis.protocol import REPLY, STATEMENT, VERSION, pack_head
from semaphore_middleware.redis.scripts import script, sha1_of
from tests.simulation.plan import plan_for
from tests.simulation.power import RULES, convicts
from tests.simulation.run import run
from tests.simulation.server import Server
from tests.support.servers import RedisServer

# Some, and those that convict the code without a rule: with it they must not. `make sim` and CI run
# thousands.
SEEDS = sorted({*range(1, 31), *(rule.seed for rule in RULES.values())} - {0})
CHUNKS = 4  # that workers may share
LEASE_S = 5.0
# Delay, jitter, adaptive, interval and burst; most statements have none.
LIMITS = 20 * ((0, 0.5, 0, 0, 1),) + ((200, 0.5, 0, 0, 1), (0, 0, 1, 0, 1), (0, 0, 0, 300, 2))


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_promises_are_kept_under_faults(chunk: int) -> None:
    broken = {seed: run(plan_for(seed)).violations for seed in SEEDS[chunk::CHUNKS]}
    assert {seed: found for seed, found in broken.items() if found} == {}


def test_a_seed_gives_the_same_run_to_the_last_digit() -> None:
    one, other = (run(plan_for(5)) for _ in range(2))
    assert one.log == other.log
    assert one.calls == other.calls > 0


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.seed])
def test_a_rule_that_is_switched_off_is_seen(name: str) -> None:
    """If plans have changed: `python -m tests.simulation.power --only` and a part of the name."""
    assert convicts(RULES[name].seed, RULES[name])


@pytest.mark.parametrize("seed", range(2))
def test_the_fast_part_of_sync_does_what_the_rest_of_it_would_do(seed: int) -> None:
    server, random = Server(lambda *_: None, pytest.fail, lambda *_: None), Random(seed)
    server.compare_every = 1
    for name in ("begin_epoch", "sync"):
        server.execute((b"SCRIPT", b"LOAD", script(name).encode()), 0.0)
    keys, now = Keys("semaphore"), 0.0
    begun, epoch = (keys.epoch, keys.rules, pack_head(LEASE_S)), f"{VERSION}-epoch".encode()
    _evaluate(server, now, "begin_epoch", 2, *begun, epoch, VERSION.encode(), b"0", b"0", b"1")
    said = {node: [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0] for node in (b"a", b"b")}
    for step in range(3000):
        now += random.choice((0.0, 0.1, 1.0))
        lively = [b"a", b"b"][step // 50 % 2]  # the other one's lease may end
        node = lively if random.random() < 0.9 else random.choice(list(said))
        head, statement = pack_head(LEASE_S, random.random()), _statement(random, said[node])
        names = (keys.epoch, keys.rules, *keys.of("s"))
        reply = _evaluate(
            server, now, "sync", 4, *names, head, node, epoch, b"job", b"1", statement
        )
        _, term, granted, *_ = REPLY.unpack_from(reply[0])
        if term == said[node][0] and random.random() < 0.9:
            said[node][4] = max(said[node][4], granted)


def _evaluate(server: Server, now: float, name: str, count: int, *arguments: bytes) -> Any:
    sha = sha1_of(script(name)).encode()
    return server.execute((b"EVALSHA", sha, b"%d" % count, *arguments), now)


def _statement(random: Random, said: list[float]) -> bytes:
    """A node goes on, mostly by the rules; `said` is what it said before, and is changed."""
    term, seq, asked, returned, believed, started, _ = said
    if random.random() < (0.2 if returned == believed else 0.01):
        term, seq, asked, returned, believed, started = term + 1, 0.0, 0.0, 0.0, 0.0, 0.0
    returned = random.choice((returned, returned, believed))
    started += random.choice((0, 0, 1))
    asked = max(believed, asked + random.choice((-1, 0, 1, 1, 2)))
    pending = random.choice((0.0, believed - returned))
    said[:] = (term, seq + 1, asked, returned, believed, started, pending)
    wrong = list(said)
    if random.random() < 0.1:
        wrong[random.randrange(len(wrong))] += random.choice((-1, 1))
    limit = (random.choice((5, 5, 5, 5, 5, 5, 2)), *random.choice(LIMITS))
    return STATEMENT.pack(*wrong, 0.1, 0.2, *limit)


@pytest.mark.parametrize("seed", range(5))
def test_the_small_redis_replies_as_a_real_server_does(seed: int, server: RedisServer) -> None:
    simulated = Server(lambda *_: None, pytest.fail, lambda *_: None)
    real = server.client()
    for command in _commands(Random(seed)):
        reply = real.execute_command(*command)  # type: ignore[no-untyped-call]
        assert simulated.execute(command, 0.0) == _plain(reply), command


def _commands(random: Random) -> Iterator[list[bytes]]:
    """Of the kinds that our scripts use, on keys of one kind each."""

    def name() -> str:
        return random.choice(("a", "b", "c", "d"))

    def number() -> str:
        return str(random.choice((-1, 0, 1, 2.5)))

    for _ in range(400):
        ends = (random.choice(("-inf", "(0", "0", "1")), random.choice(("inf", "(2.5", "1")))
        names = (random.choice(("-", "[a", "(b")), random.choice(("+", "[c", "(d")))
        command = random.choice(
            (
                ("HSET", "hash", name(), number(), name(), number()),
                ("HINCRBY", "count", name(), "2"),
                ("HMGET", "hash", name(), name()),
                ("HEXISTS", "hash", name()),
                ("HLEN", "hash"),
                ("HDEL", "hash", name(), name()),
                ("ZADD", "zset", number(), name()),
                ("ZREM", "zset", name()),
                ("ZSCORE", "zset", name()),
                ("ZCARD", "zset"),
                ("ZRANGE", "zset", "0", random.choice(("0", "1", "-1", "-2")), "WITHSCORES"),
                ("ZRANGE", "zset", *ends, "BYSCORE"),
                ("ZRANGE", "zset", *ends, "BYSCORE", "LIMIT", "1", "2"),
                ("ZREMRANGEBYSCORE", "zset", *ends),
                ("ZADD", "names", "0", name()),
                ("ZRANGE", "names", *names, "BYLEX", "LIMIT", "0", "2"),
                ("ZLEXCOUNT", "names", *names),
                ("EXISTS", random.choice(("hash", "zset")), random.choice(("names", "none"))),
                ("UNLINK", random.choice(("hash", "names")), "zset"),
                ("PEXPIRE", "hash", "100000"),
                ("PERSIST", "hash"),
                ("PEXPIREAT", "count", "1"),
            )
        )
        yield [part.encode() for part in command]


def _plain(reply: object) -> object:
    """Scores as text, and lists."""
    if isinstance(reply, float):
        return f"{reply:g}".encode()
    if isinstance(reply, list):
        pairs = [one if isinstance(one, tuple | list) else [one] for one in reply]
        return [_plain(part) for pair in pairs for part in pair]
    return int(reply) if isinstance(reply, bool) else reply
