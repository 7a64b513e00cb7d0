"""Connections that one site has closed to this node without any response. No I/O."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum

PAGES = 3
"""The fewest different pages whose closings may be refusals."""
REMEMBERED = 10
"""Pages that are remembered, the last ones closed."""
AMONG = 300
"""The number of answers after which a closing is forgotten."""


class Closing(Enum):
    """What a closed connection means."""

    REFUSAL = "refusal"
    """The site answers this node, and closes some connections instead of refusing the requests."""
    FAILURE = "failure"
    """The site, or this node's network, gives no response."""
    SAME_MOMENT = "same moment"
    """Others were closed at the same moment, and count for it: the page may not be at fault."""
    NOTHING = "nothing"
    """It is known already that the page always closes. Or the connection may have been an idle one,
    which a site may close at any time.
    """


@dataclass(slots=True)
class _Page:
    first_at: float
    last_at: float
    answers: int
    """This node's answers until its last closing."""


@dataclass(slots=True)
class Closings:
    """Tells sites that refuse requests by closing connections from those that do not respond.

    A site refuses if it has closed connections at several moments, for several pages, and has
    answered requests of this node that began in between: an answer to another node shows nothing,
    as this node's own network may close connections. Times are on the loop's clock.
    """

    closed_at: float = -math.inf
    """When the last one was closed."""
    unanswered: int = 0
    """How many that count as failures were closed since a request has been answered that began
    later. After one the node makes one request at a time, as it may be refused.
    """
    _answered_at: float = -math.inf  # when the newest answered request began
    _answers: int = 0
    _pages: OrderedDict[str, _Page] = field(default_factory=OrderedDict)
    """The one closed last is at the end."""

    def is_after_last(self, began_at: float) -> bool:
        """Whether a request that began at this time began after the last closing."""
        return began_at >= self.closed_at

    def note_answer(self, began_at: float) -> None:
        """Note that the site has answered a request that began at this time, whatever it was."""
        self._answers += 1
        if self.is_after_last(began_at):  # rule 31: later answers
            self.unanswered = 0
        self._answered_at = max(self._answered_at, began_at)

    def note(self, page: str, began_at: float, now: float, may_be_idle: bool) -> Closing:
        """Note that a request for a page, begun at `began_at`, found its connection closed.
        `may_be_idle`: the connection may have been idle before, and closed for that reason.
        """
        is_first = self.is_after_last(began_at)  # rule 31: once a moment
        had_answers = self._answers > 0 and self.is_after_last(self._answered_at)
        if is_first:
            self.closed_at = now
        if may_be_idle and had_answers:  # rule 31: idle connections
            return Closing.NOTHING
        if not is_first:
            return Closing.REFUSAL if self._is_refusing else Closing.SAME_MOMENT
        before = self._pages.pop(page, None)
        first_at = before.first_at if before else now
        self._pages[page] = _Page(first_at, now, self._answers)
        if len(self._pages) > REMEMBERED:
            self._pages.popitem(last=False)
        if self._is_refusing:  # rule 31: refusals
            return Closing.REFUSAL
        if before and self._answered_at >= first_at:  # rule 31: one page
            return Closing.NOTHING
        self.unanswered += 1
        return Closing.FAILURE

    @property
    def are_many(self) -> bool:
        """Whether so many are unanswered that the node should pause: a page's retries would be used
        up within a second. One is enough if no request of this node has got an answer yet.
        """
        return self.unanswered >= (2 if self._answers else 1)  # rule 31: pause

    @property
    def _is_refusing(self) -> bool:
        while self._pages and self._oldest.answers < self._answers - AMONG:
            self._pages.popitem(last=False)
        if len(self._pages) < PAGES:  # rule 31: several pages
            return False
        return self._answered_at >= self._oldest.last_at  # rule 31: answers in between

    @property
    def _oldest(self) -> _Page:
        return next(iter(self._pages.values()))
