"""The small Redis of the simulation replies as a real server does."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from random import Random

import pytest
from redis import Redis, RedisError
from redis.client import PubSub

from lab.simulation.server import Server
from semaphore_middleware.link.scripts import sha1_of
from tests.support.servers import RedisServer

NORMAL = (("maxmemory", "0"), ("min-replicas-to-write", "0"))
FULL, LONELY = ("maxmemory", "1"), ("min-replicas-to-write", "1")
COMMAND = "return redis.call(unpack(ARGV))"
SCRIPTS = {
    COMMAND: "EVALSHA",
    COMMAND + " ": "EVALSHA_RO",
    "redis.call('HDEL', 'none', '') " + COMMAND: "EVALSHA",
    "redis.call('HDEL', 'none', '') " + COMMAND + " ": "EVALSHA_RO",
    "local reply = redis.pcall(unpack(ARGV))"
    " return type(reply) == 'table' and reply.err and 'refused' or reply": "EVALSHA",
    "for i = 2, #ARGV do ARGV[i] = tonumber(ARGV[i]) or ARGV[i] end " + COMMAND: "EVALSHA",
    "ARGV[#ARGV] = false " + COMMAND: "EVALSHA",
}
TEXTS = """
local function texts(...)
  local found = {}
  for i = 1, select('#', ...) do
    local value = select(i, ...)
    local text = type(value) == 'number' and string.format('%.17g', value) or tostring(value)
    if type(value) == 'table' then text = texts(value.name, #value, unpack(value)) end
    found[i] = { type(value), text }
  end
  return found
end
local function kept(...)
  redis.call('HSET', 'packed', 'field', cmsgpack.pack(...))
  return cmsgpack.unpack(redis.call('HGET', 'packed', 'field'))
end
"""
LIBRARIES = (
    "texts(kept(0, -1, 2 ^ 40, -2 ^ 53, 0.1, 1e300, -math.huge, true, false, '', 'a\\0b'))",
    "texts(kept({ { name = 'one', 2, 0.5 }, {}, { name = 'two' } }))",
    "texts(kept({ name = 'at' }))",
    "struct.pack('>dd>d', 1, -0.1, math.huge)",
    "texts(struct.unpack('>dI4', struct.pack('>dI4', -2.5, 4294967295)))",
    "texts(struct.unpack('>I4', struct.pack('>I4I4', 1, 2), 5))",
    "struct.unpack('>dd', 'too short')",
    """texts(cjson.decode('{"a": 1.5, "name": "b", "c": [1, "d", {"name": true}]}').c)""",
    "texts(cjson.decode('[1]'), cjson.decode('7'))",
    "cjson.decode('{')",
    "cjson.encode({ rate = '2/s' })",
    "{ 1.9, -1.9, 'text', true, false, { 2 }, redis.call('HGET', 'none', 'field') }",
    "{ 1, nil, 3 }",
    "redis.error_reply('OOM so')",
    "error('so')",
    "nobody",
)


class Both:
    """The small server and a real one, which are sent the same commands."""

    def __init__(self, real: Redis) -> None:
        self.small = Server(lambda *_: None, lambda _: None, lambda *_: None)
        self.small.clock_ahead_ms = 0.0
        self.real = real
        self.listener: PubSub = real.pubsub()  # type: ignore[no-untyped-call]
        self.listener.subscribe("channel")
        self.real.response_callbacks.clear()

    def set_mode(self, mode: tuple[str, str]) -> None:
        for name, value in (*NORMAL, mode):
            self.real.config_set(name, value)
        self.small.set_full(mode == FULL)
        self.small.set_lacking_replicas(mode == LONELY)

    def compare(self, *command: str) -> None:
        packed = [part.encode() for part in command]
        reply: object
        try:
            reply = self.real.execute_command(*packed)  # type: ignore[no-untyped-call]
        except RedisError as error:
            reply = error
        small = self.small.execute(packed, time.time())
        assert _plain(small, command) == _plain(reply, command), command

    def compare_expiries(self) -> None:
        for key, left in self.small.keys_left():
            assert self.real.pttl(key) == (pytest.approx(left, abs=50_000) if left else -1), key


def _plain(reply: object, command: Sequence[str]) -> object:
    """A reply without what is nobody's promise: the words of an error, the order of fields."""
    if isinstance(reply, RedisError):
        return "EVALSHA_RO" in command or type(reply)  # which of several reasons is named
    if isinstance(reply, list) and "HGETALL" in command:
        return sorted(zip(reply[::2], reply[1::2], strict=True))
    if isinstance(reply, list) and {"HSCAN", "ZSCAN", "SCAN"} & {*command}:
        return reply[0], sorted(reply[1])
    return reply


@pytest.fixture
def both() -> Iterator[Both]:
    with RedisServer(started_empty=False) as server, server.client(protocol=2) as real:
        yield Both(real)


@pytest.mark.parametrize("seed", range(5))
def test_commands_reply_as_on_a_real_server(both: Both, seed: int) -> None:
    random = Random(seed)
    for source in SCRIPTS:
        both.compare("SCRIPT", "LOAD", source)
    for command in _commands(random):
        if random.random() < 0.03:
            both.set_mode(random.choice((*NORMAL, FULL, LONELY)))
        source = random.choice(list(SCRIPTS))
        in_script = (SCRIPTS[source], sha1_of(source), "0", *command)
        both.compare(*random.choice((command, in_script)))
        if "PEXPIRE" in command:
            time.sleep(0.002)  # until what expires in a millisecond has
    both.compare("SCAN", "0", "MATCH", "*", "COUNT", "99")
    both.compare_expiries()


def test_every_command_is_compared() -> None:
    drawn = {command[0] for command in _commands(Random(0))}
    assert drawn | {"INFO", "TIME"} >= Server.commands()


@pytest.mark.parametrize("text", LIBRARIES)
def test_what_is_packed_reads_as_on_a_real_server(both: Both, text: str) -> None:
    source = TEXTS + "return " + text
    both.compare("SCRIPT", "LOAD", source)
    both.compare("EVALSHA", sha1_of(source), "0")


def test_what_the_server_says_of_itself_has_the_names_of_a_real_one(both: Both) -> None:
    small = both.small.execute([b"INFO"], 0.0)
    real: bytes = both.real.execute_command("INFO")  # type: ignore[no-untyped-call]
    names, known = (set(re.findall(rb"(?m)^\w+:", text)) for text in (small, real))
    assert names <= known | {b"redis_mode:"}, "which is server_mode since Valkey 9.1"


def _commands(random: Random) -> Iterator[tuple[str, ...]]:
    """Of each kind that scripts use, some of them on a key of the wrong kind, or not whole."""

    def name() -> str:
        return random.choice("abcd")

    def number() -> str:
        return random.choice(("-1", "0", "1", "2.5", "1125899906842625", "inf"))

    for _ in range(1000):
        ends = (random.choice(("-inf", "(0", "0", "1")), random.choice(("inf", "(2.5", "1")))
        last_first = (ends[1], ends[0])
        names = (random.choice(("-", "[a", "(b")), random.choice(("+", "[c", "(d")))
        places = (random.choice(("0", "1", "-2", "-9")), random.choice(("0", "1", "-1", "-2", "9")))
        some = ("LIMIT", random.choice("01"), random.choice(("0", "2", "-1")))
        key = random.choice(("hash", "count", "zset", "names"))
        command = random.choice(
            (
                ("HSET", "hash", name(), number(), name(), number()),
                ("HSET", "count", name(), random.choice("17")),
                ("HINCRBY", random.choice(("count", "hash")), name(), random.choice(("2", "-3"))),
                ("HGET", "hash", name()),
                ("HMGET", "hash", name(), name()),
                ("HGETALL", "hash"),
                ("HSCAN", "hash", "0", "COUNT", "99"),
                ("HEXISTS", "hash", name()),
                ("HLEN", "hash"),
                ("HDEL", random.choice(("hash", "count")), name(), name()),
                ("ZADD", "zset", number(), name(), number(), name()),
                ("ZADD", "names", "0", name()),
                ("ZREM", random.choice(("zset", "names")), name(), name()),
                ("ZSCORE", "zset", name()),
                ("ZSCAN", "zset", "0", "COUNT", "99"),
                ("ZCARD", "zset"),
                ("ZRANGE", "zset", *places, *random.choice(((), ("WITHSCORES",)))),
                ("ZRANGE", "zset", *ends, "BYSCORE", *random.choice(((), some))),
                ("ZRANGE", "zset", *last_first, "BYSCORE", "REV", *some, "WITHSCORES"),
                ("ZRANGE", "names", *names, "BYLEX", *some),
                ("ZREMRANGEBYSCORE", "zset", *ends),
                ("ZREMRANGEBYLEX", "names", *names),
                ("ZLEXCOUNT", "names", *names),
                ("SADD", "set", "a"),
                ("SPOP", "set"),
                ("TYPE", random.choice((key, "set", "none"))),
                ("EXISTS", key, "hash", "none"),
                ("DEL", "none", key),
                ("UNLINK", key, "zset"),
                ("PEXPIRE", key, random.choice(("-1", "0", "1", "100000", "200000"))),
                ("PEXPIREAT", key, random.choice(("1", str(int(1000 * time.time()) + 300_000)))),
                ("PERSIST", key),
                ("SCAN", "0", "MATCH", random.choice(("h*", "zset*", "n*")), "COUNT", "99"),
                ("PUBLISH", "channel", name()),
            )
        )
        is_plain = command[0] in ("SCAN", "HSCAN", "ZSCAN", "PUBLISH")
        mistake = 0 if is_plain else random.randrange(60)
        if mistake == 1:
            command = command[:-1]
        elif mistake == 2:
            command = (command[0], "hash" if command[0][0] == "Z" else "zset", *command[2:])
        elif mistake == 3 and "names" not in command:  # by name is looked up where all scores are 0
            wrong = random.choice(("x", "1.5", "1e17"))
            command = tuple(wrong if part in "0123" else part for part in command)
        yield command
