"""One node's calls about robots.txt: each site's is kept on the server, for all nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from semaphore_middleware.model.hosts import encoded
from semaphore_middleware.model.robotstxt import RobotsTxt
from semaphore_middleware.redis.keys import Keys
from semaphore_middleware.redis.protocol import milliseconds


@dataclass(frozen=True, slots=True)
class RobotsTxtReply:
    """The server's reply to a node that asks for a site's robots.txt. Times are in seconds."""

    step: str
    """`valid`: here it is. `fetch`: this node is to fetch it. `wait`: another node does."""
    robotstxt: RobotsTxt | None
    """The file; with `fetch` as it was before, if that is known."""
    left: float
    """For how long it is valid, or is to be waited for."""


class RobotsTxtStore:
    """Packs one node's calls. `lease` is for how many seconds a fetch is left to one node."""

    def __init__(self, keys: Keys, node: str, lease: float) -> None:
        self._keys = (keys.robotstxt, keys.robotstxt_ends)
        self._head = (encoded(node), milliseconds(lease))

    def ask(self, origin: str) -> tuple[Any, ...]:
        """The call that asks for the robots.txt of an origin (scheme, host and port)."""
        return ("ask_robotstxt", len(self._keys), *self._keys, *self._head, encoded(origin))

    def put(self, origin: str, robotstxt: RobotsTxt | None, valid: float) -> tuple[Any, ...]:
        """The call that ends a fetch, with what is valid for so many seconds; None: without."""
        data = b"" if robotstxt is None else robotstxt.pack()
        arguments = (*self._head, encoded(origin), data, milliseconds(max(0.0, valid)))
        return ("put_robotstxt", len(self._keys), *self._keys, *arguments)

    @staticmethod
    def read(reply: Any) -> RobotsTxtReply:
        """From the reply to `ask`."""
        step, data, left = reply
        return RobotsTxtReply(step.decode(), RobotsTxt.unpack(data), left / 1000)
