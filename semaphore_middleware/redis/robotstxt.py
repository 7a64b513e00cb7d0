"""Calls about robots.txt: each site's is kept on the server, for all nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from semaphore_middleware.model import chance
from semaphore_middleware.model.hosts import encoded
from semaphore_middleware.model.robotstxt import RobotsTxt
from semaphore_middleware.redis.keys import Keys
from semaphore_middleware.redis.protocol import milliseconds


@dataclass(frozen=True, slots=True)
class RobotsTxtReply:
    """The server's reply to who asks for a site's robots.txt. Times are in seconds."""

    step: str
    """`valid`: here it is. `fetch`: it is to be fetched now. `wait`: another fetches it."""
    robotstxt: RobotsTxt | None
    """The file; with `fetch` as it was before, if that is known."""
    left: float
    """For how long it is valid, or is to be waited for."""


class RobotsTxtStore:
    """Packs the calls of one crawl. `lease`: for how many seconds a fetch is left to one crawl."""

    def __init__(self, keys: Keys, lease: float) -> None:
        self._keys = (keys.robotstxt, keys.robotstxt_ends)
        self._lease = milliseconds(lease)
        self._asker = chance.token(8)  # several crawls of a process are one node

    def ask(self, node: str, origin: str) -> tuple[Any, ...]:
        """The call that asks for the robots.txt of an origin (scheme, host and port). The node is
        told on its channel when it is worth asking again.
        """
        return self._pack("ask_robotstxt", node, origin)

    def put(
        self, node: str, origin: str, robotstxt: RobotsTxt | None, valid: float
    ) -> tuple[Any, ...]:
        """The call that ends a fetch, with what is valid for so many seconds; None: without."""
        data = b"" if robotstxt is None else robotstxt.pack()
        return self._pack("put_robotstxt", node, origin, data, milliseconds(max(0.0, valid)))

    def _pack(self, script: str, node: str, origin: str, *more: Any) -> tuple[Any, ...]:
        who = (encoded(node), self._asker, self._lease)
        return (script, len(self._keys), *self._keys, *who, encoded(origin), *more)

    @staticmethod
    def read(reply: Any) -> RobotsTxtReply:
        """From the reply to `ask`."""
        step, data, left = reply
        return RobotsTxtReply(step.decode(), RobotsTxt.unpack(data), left / 1000)
