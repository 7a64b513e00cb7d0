"""What keys and channels are called, on every node alike."""

from __future__ import annotations

import binascii
import re
from functools import lru_cache
from typing import Any, NamedTuple

from semaphore_middleware.errors import SettingsError
from semaphore_middleware.model.hosts import encoded

BUCKETS = 256  # never a setting: nodes that disagreed would each have a limit of their own


class ScopeKeys(NamedTuple):
    """In the order in which the scripts take them. All are in one hash slot."""

    held: bytes
    line: bytes
    waiting: bytes
    state: bytes
    epoch: bytes
    """Of the bucket."""
    rules: bytes
    """Of the bucket."""


class Keys:
    def __init__(self, prefix: str) -> None:
        self._prefix = encoded(prefix)
        self.of = lru_cache(maxsize=512)(self._of)
        """The keys of a scope."""

    def _of(self, scope: str) -> ScopeKeys:
        name = encoded(scope)
        bucket = binascii.crc_hqx(name, 0) % BUCKETS  # CRC16 as in Redis Cluster
        of_scope = [name + b":" + part for part in (b"held", b"line", b"waiting", b"state")]
        return ScopeKeys._make(self._in(bucket, p) for p in (*of_scope, b"epoch", b"rules"))

    def _in(self, bucket: int, name: bytes) -> bytes:
        return b"%s:{%d}:%s" % (self._prefix, bucket, name)

    @property
    def all_rules(self) -> list[bytes]:
        """Of all buckets: a pattern's rule is in each."""
        return [self._in(bucket, b"rules") for bucket in range(BUCKETS)]

    @property
    def quiet(self) -> bytes:
        """A note for new nodes, that a server that once was flushed has been quiet since."""
        return self._prefix + b":quiet"

    @property
    def grants(self) -> bytes:
        """First part of the channel on which a node is told of its grants."""
        return self._prefix + b":grants:"

    @property
    def changes(self) -> bytes:
        """The channel on which all nodes are told that an operator has changed a rule."""
        return self._prefix + b":rules"

    @property
    def states(self) -> bytes:
        """The glob-style pattern of all scopes' state keys."""
        return re.sub(rb"([*?\[\]\\])", rb"\\\1", self._prefix) + b":{*}:*:state"

    def scope_of(self, state: bytes) -> str:
        """The scope that has this state key."""
        name = state.removeprefix(self._prefix).partition(b"}:")[2].removesuffix(b":state")
        return name.decode("utf-8", "surrogatepass")


def check_prefix(prefix: Any, where: str) -> str:
    """The first part of every key. Braces would move the keys of a scope to different slots."""
    if not isinstance(prefix, str) or not prefix or "{" in prefix or "}" in prefix:
        raise SettingsError(f"{where} = {prefix!r}: allowed is a text without '{{' and '}}'")
    return prefix
