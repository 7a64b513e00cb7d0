"""The names of keys and channels, the same on every node."""

from __future__ import annotations

from semaphore_middleware.link.index import COMPLETE, INDEX_KEPT_MS
from semaphore_middleware.link.text import decoded, encoded, tag_of

CONSTANTS = {
    "complete": f"'{COMPLETE.decode()}'".replace("\0", r"\0"),
    "index_kept": str(INDEX_KEPT_MS),
}
"""As Lua literals, for scripts."""


class Keys:
    """The names of all keys: they begin with `{prefix}`, so they are in one hash slot."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._tag = tag_of(prefix)
        self.epoch = self._tag + b":epoch"
        """The incarnation of the server, its clock, the protocol's version."""
        self.rules = self._tag + b":rules"
        """Rules of operators."""
        self.index = self._tag + b":index"
        """The scopes on the server, for commands that list them."""
        self.changes = self._tag + b":changes"
        """The channel of all nodes, for changed rules."""
        self.of_all = (self.epoch, self.rules, self.index)
        """The first keys of each script about scopes."""
        self.trial = self.channel("")
        """A key and a channel to try rights on, which no node uses."""
        self.scopes = self._tag + b":scope:"
        """The beginning of all scopes' keys."""
        self._queue = self._tag + b":queue:"
        self.changed_rules = self.rules + b":log"
        """The log of what operators have set, and when."""

    def of(self, scope: str) -> tuple[bytes, bytes]:
        """The keys of a scope, as scripts take them: its state with its entries, and its queue."""
        name = encoded(scope)
        return self.scopes + name, self._queue + name

    def cached(self, name: str) -> bytes:
        """The key of a value shared by nodes for a while."""
        return self._tag + b":cache:" + encoded(name)

    def named(self, name: str) -> bytes:
        """A key of another package, or the beginning of its keys."""
        return self._tag + b":" + encoded(name)

    def channel(self, node: str) -> bytes:
        """A node's channel, for what other nodes' calls have caused."""
        return self._tag + b":node:" + encoded(node)

    @property
    def tag(self) -> str:
        """The beginning of all keys and channels, for messages."""
        return f"{{{self.prefix}}}"

    def scope_of(self, key: bytes) -> str:
        """The scope of a key."""
        return decoded(key.removeprefix(self.scopes))
