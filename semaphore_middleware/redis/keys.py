"""The names of keys and channels, the same on every node."""

from __future__ import annotations

import binascii
import re
from functools import lru_cache
from typing import Any, NamedTuple

from semaphore_middleware.model.hosts import encoded
from semaphore_middleware.model.validation import not_allowed

BUCKETS = 256  # never a setting: nodes that disagreed would each have a limit of their own


class ScopeKeys(NamedTuple):
    """The keys of one scope, in the order in which scripts take them; all are in one hash slot."""

    held: bytes
    line: bytes
    waiting: bytes
    state: bytes
    epoch: bytes
    """Of the bucket."""
    rules: bytes
    """Of the bucket."""


class Keys:
    """The names of all keys that begin with `prefix`."""

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
    def recovered(self) -> bytes:
        """The key that says that a whole recovery wait has passed since the server's last loss."""
        return self._prefix + b":recovered"

    @property
    def grants(self) -> bytes:
        """First part of the channel on which a node is notified of its grants."""
        return self._prefix + b":grants:"

    @property
    def changes(self) -> bytes:
        """The channel on which all nodes are notified that an operator has changed a rule."""
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
    """Check the first part of every key: braces would move a scope's keys to different slots.

    Raises `SettingsError`.
    """
    if not isinstance(prefix, str) or not prefix or "{" in prefix or "}" in prefix:
        raise not_allowed(prefix, where, "a text without '{' and '}'")
    return prefix
