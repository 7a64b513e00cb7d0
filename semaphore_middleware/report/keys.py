"""The names of the history's keys, the same on every node."""

from __future__ import annotations

from collections.abc import Iterable

from semaphore_middleware.core.keys import Keys
from semaphore_middleware.link.text import encoded


class HistoryKeys:
    """The names of the history's keys, in the same hash slot as those of the semaphore."""

    def __init__(self, prefix: str) -> None:
        self.sites = Keys(prefix).named("history")
        """The sites with a history; also the first part of all keys."""
        self.nodes = self.sites + b":nodes"
        """Nodes that have not written a last batch, by the time of their newest one."""

    def of_files(self, host: str) -> bytes:
        """The key of a host's robots.txt files that nodes have obeyed."""
        return self.sites + b":robotstxt:" + encoded(host)

    def of_batch(self, node: bytes, minute: int, scopes: Iterable[str]) -> list[bytes]:
        """The keys of a node's batch for these scopes in a minute, in the order of the script."""
        of_node = b"%b:said:%b" % (self.sites, node)
        of_minute = b"%b:seconds:%d" % (self.sites, minute)
        hours = (self.of_hour(scope, minute // 60) for scope in scopes)
        return [self.sites, self.nodes, of_node, of_minute, *hours]

    def of_hour(self, scope: str, hour: int) -> bytes:
        """The key of a scope's history in an hour, counted in hours of Unix time."""
        return b"%b:%d:%b" % (self.sites, hour, encoded(scope))
