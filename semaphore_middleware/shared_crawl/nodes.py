"""The nodes of a shared crawl, and what they have taken, for operators."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from semaphore_middleware.link.text import decoded
from semaphore_middleware.shared_crawl.counts import silent_ms
from semaphore_middleware.shared_crawl.keys import CrawlKeys, site_of

TIME_LENGTH, DIGIT_LENGTH = 4, 1  # bytes, behind the place in a member of `taken`


@dataclass(frozen=True, slots=True)
class CrawlNode:
    """A node that takes part in a crawl."""

    node: str
    state: str
    """`at work`; `waiting` for requests; `stopping`; or `silent`: its lease is over, and its
    requests go to others with the next call of any node.
    """
    in_flight: int
    """The number of requests that it has taken and not finished."""
    oldest_for: float | None
    """Seconds since it took the oldest of them."""
    oldest: str | None
    """The URL of the oldest; its site, if the server has lost the request."""


def nodes_commands(keys: CrawlKeys) -> list[tuple[Any, ...]]:
    """Read-only commands, for `Holdings`."""
    nodes, working, taken = map(keys.key, ("nodes", "working", "taken"))
    return [
        ("TIME",),
        ("HMGET", keys.key("run"), "wall", "clock"),
        ("ZRANGE", nodes, 0, -1, "WITHSCORES"),
        ("ZRANGE", working, 0, -1, "WITHSCORES"),
        ("ZRANGE", taken, 0, -1),
    ]


class Holdings:
    """The nodes, and the places of what they have taken, from the replies to `nodes_commands`."""

    def __init__(self, replies: Sequence[Any]) -> None:
        time, (wall, clock), nodes, working, taken = replies
        self._now_s = int(time[0])
        now = float(clock or 0) + silent_ms(time, float(wall or 0))
        self._joined = dict(_leases(nodes))
        self._working = dict(_leases(working))
        # mutant <= -> <: no two clocks are that near
        self._silent = {name for name, lease_end in self._working.items() if lease_end <= now}
        self._count = dict.fromkeys((*self._joined, *self._working), 0)
        self._oldest: dict[bytes, tuple[int, bytes]] = {}
        for member in taken:
            node, _, rest = member.partition(b"\0")
            place = rest[: -TIME_LENGTH - DIGIT_LENGTH]
            since = int.from_bytes(rest[-TIME_LENGTH:], "big")
            self._count[node] = self._count.get(node, 0) + 1
            self._oldest[node] = min(self._oldest.get(node, (since, place)), (since, place))

    @property
    def oldest_places(self) -> list[bytes]:
        """The place of each node's oldest request, if it has any."""
        return [place for _, place in self._oldest.values()]

    def nodes(self, data: Mapping[bytes, bytes | None]) -> list[CrawlNode]:
        """The nodes by name, with what is stored at `oldest_places`."""
        found = []
        for node, count in sorted(self._count.items()):
            since, place = self._oldest.get(node, (None, b""))
            oldest_for = None if since is None else max(0.0, float(self._now_s - since))
            url = _url_of(data.get(place)) or site_of(place) if place else None
            found.append(CrawlNode(decoded(node), self._state_of(node), count, oldest_for, url))
        return found

    def _state_of(self, node: bytes) -> str:
        if node not in self._working:
            return "waiting"
        if node in self._silent:
            return "silent"
        return "at work" if node in self._joined else "stopping"


def _leases(reply: Sequence[bytes]) -> Iterable[tuple[bytes, float]]:
    return zip(reply[::2], map(float, reply[1::2]), strict=True)


def _url_of(data: bytes | None) -> str:
    """The URL of a stored request; empty if it is lost."""
    with suppress(ValueError, TypeError, LookupError):
        return str(json.loads(data or b"")["url"])
    return ""
