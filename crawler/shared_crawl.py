"""One crawl as its nodes share it on the server."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from importlib.resources import files
from typing import Any

from redis import Redis

LUA = files("crawler") / "lua"


def node_name(settings: Mapping[str, Any]) -> str:
    """This node's name: the add-on's, or one as unique where the add-on is left out."""
    return settings.get("SEMAPHORE_NODE") or f"{socket.gethostname()}-{os.getpid()}"


class Next(Enum):
    """What a node that has no work left is to do."""

    TAKE_MORE = b"more"
    WAIT = b"wait"
    CLOSE = b"done"


@dataclass(frozen=True)
class Counts:
    nodes: int  # that take part
    queued: int
    seen: int


class CrawlEndedError(Exception):
    """The crawl has ended without this node: it came late, or was taken for dead."""


class SharedCrawl:
    """A crawl's keys, and what its nodes do with them.

        crawl:<name>:requests   zset   what is still to be fetched -> score, the lowest first
        crawl:<name>:seen       set    fingerprints of all that was ever queued
        crawl:<name>:working    zset   who may still produce requests -> until when, ms
        crawl:<name>:nodes      set    who takes part

    A node works from the moment it takes a request until it rests. The crawl is done when nobody
    works and nothing is queued; its keys are deleted then, so that its next run starts anew. Who
    dies at work is waited for until its mark ends, by the server's clock. The channel
    crawl:<name>:news tells those who rest when it is worth looking again.
    """

    def __init__(self, server: Redis, name: str, node: str, lease: float = 15.0) -> None:
        def key(part: str) -> bytes:
            return f"crawl:{name}:{part}".encode(errors="surrogateescape")

        self.server = server
        self.name = name
        self.node = node
        self.lease = lease
        self.requests, self.seen, self.nodes = key("requests"), key("seen"), key("nodes")
        self.working, self.news = key("working"), key("news")
        self._keys = [self.requests, self.seen, self.working, self.nodes]
        head = (LUA / "head.lua").read_text()
        self._scripts = {
            verb: server.register_script(head + (LUA / f"{verb}.lua").read_text())
            for verb in ("see", "push", "pop", "work", "rest")
        }

    def join(self) -> None:
        self.server.sadd(self.nodes, self.node)

    def see(self, fingerprint: str, most: int) -> bool:
        """Note a fingerprint: False if it is known, or there are already `most` (0: no limit)."""
        return self._if_taking_part(self._call("see", fingerprint, most)) == 1

    def push(self, score: float, request: bytes) -> None:
        self._if_taking_part(self._call("push", score, request))

    def pop(self) -> bytes | None:
        request: bytes | None = self._call("pop", round(self.lease * 1000))
        return request

    def work(self) -> None:
        """Count as working for one lease from now."""
        self._call("work", round(self.lease * 1000))

    def rest(self) -> Next:
        """Stop working; who finds that nobody works any more ends the crawl."""
        return Next(self._call("rest"))

    def leave(self) -> None:
        """Stop taking part, and let those who rest look whether that was all."""
        with self.server.pipeline() as pipe:
            pipe.zrem(self.working, self.node)
            pipe.srem(self.nodes, self.node)
            pipe.publish(self.news, "left")
            pipe.execute()

    def counts(self) -> Counts:
        with self.server.pipeline() as pipe:
            pipe.scard(self.nodes)
            pipe.zcard(self.requests)
            pipe.scard(self.seen)
            return Counts(*pipe.execute())

    def delete(self) -> None:
        """End the crawl for all, done or not."""
        self.server.delete(*self._keys)

    @staticmethod
    def _if_taking_part(reply: int) -> int:
        if reply == -1:
            raise CrawlEndedError
        return reply

    def _call(self, verb: str, *arguments: Any) -> Any:
        return self._scripts[verb](keys=self._keys, args=[self.news, self.node, *arguments])
