"""The names of keys and channels, the same on every node."""

from __future__ import annotations

from collections.abc import Iterable

from semaphore_middleware.model.hosts import decoded, encoded


class Keys:
    """The names of all keys that begin with `{prefix}`, and so are in one hash slot."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._tag = b"{%b}" % encoded(prefix)
        self.epoch = self._tag + b":epoch"
        """The life of the server, its clock, the protocol's version."""
        self.rules = self._tag + b":rules"
        """What operators have set."""
        self.robotstxt = self._tag + b":robotstxt"
        """The origins whose robots.txt files are kept."""
        self.changes = self._tag + b":changes"
        """The channel on which all nodes are notified that an operator has changed a rule."""
        self.trials = self._tag + b":trial:hash", self._tag + b":trial:queue"
        """Keys that exist only while a script tries what it may do."""
        self.scopes = self._tag + b":scope:"
        """What the keys of all scopes begin with."""
        self._queue = self._tag + b":queue:"
        self.history = self._tag + b":history"
        """The sites of which there is a history; and what the keys of histories begin with."""
        self.changed_rules = self.history + b":rules"
        """What operators have set, and when."""
        self.nodes = self.history + b":nodes"
        """Nodes that have not said the last of what they did, by when they last spoke."""

    def of(self, scope: str) -> tuple[bytes, bytes]:
        """The keys of a scope, in the order in which scripts take them: its state and accounts, and
        the queue of the nodes that wait.
        """
        name = encoded(scope)
        return self.scopes + name, self._queue + name

    def of_robotstxt(self, origin: str) -> tuple[bytes, bytes]:
        """The keys of the robots.txt of a scheme, host and port, in the order of scripts."""
        return self.robotstxt + b":" + encoded(origin), self.robotstxt

    def of_obeyed(self, host: str) -> bytes:
        """The key of the robots.txt files of a host that were obeyed."""
        return self.history + b":robotstxt:" + encoded(host)

    def of_batch(self, node: bytes, minute: int, scopes: Iterable[str]) -> list[bytes]:
        """The keys of the history in which a node notes what it did to these scopes in a minute, in
        the order of scripts.
        """
        of_all = (b"nodes", b"said:%b" % node, b"seconds:%d" % minute)
        hours = (self.of_hour(scope, minute // 60) for scope in scopes)
        return [self.history, *(b"%b:%b" % (self.history, name) for name in of_all), *hours]

    def of_hour(self, scope: str, hour: int) -> bytes:
        """The key of what was done to a scope in an hour, counted in hours of Unix time."""
        return b"%b:%d:%b" % (self.history, hour, encoded(scope))

    def channel(self, node: str) -> bytes:
        """The channel on which a node is notified of what other nodes' calls have caused."""
        return self._tag + b":node:" + encoded(node)

    @property
    def tag(self) -> str:
        """What all keys and channels begin with, for people."""
        return f"{{{self.prefix}}}"

    def scope_of(self, key: bytes) -> str:
        """The scope that has this key."""
        return decoded(key.removeprefix(self.scopes))
