"""This process's own network: whether it reaches any site at all."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from semaphore_middleware.core.observer import CountedEvent
from semaphore_middleware.model.feedback import Backoff
from semaphore_middleware.model.hosts import registered_domain_finder
from semaphore_middleware.model.reasons import digits

logger = logging.getLogger(__name__)

SITES = 5
"""Sites that did not respond, while none did: then the trouble is this node's."""
IN_A_ROW = 3
"""Requests that found no network, while none got a response, that say the same."""
NO_NETWORK = {errno.ENETUNREACH, errno.ENETDOWN}


@dataclass(frozen=True, slots=True)
class NetworkLost(CountedEvent):
    """No site responds to this node any more."""

    counter = "network_losses"


class Network:
    """Notices that no site responds, and then blames none: the trouble is this node's own.

    The node makes one request at a time, in growing pauses, until one gets a response. So an outage
    costs a few attempts, and no page. Times are on the loop's clock, in seconds.
    """

    def __init__(
        self,
        backoff: Backoff,
        emit: Callable[[type[NetworkLost]], object],
    ) -> None:
        self._backoff = backoff
        self._emit = emit
        self.is_lost = False
        """True while no site responds to this node."""
        self._silent: set[str] = set()  # registered domains of hosts, since the last response
        self._without_network = 0  # requests, since then
        self._pause = 0.0  # after the next try
        self._next_try = 0.0
        self._tries = 0  # on the wire
        self._changed = asyncio.Event()  # set when a try has ended

    @cached_property
    def _domain_of(self) -> Callable[[str], str]:
        return registered_domain_finder()

    def may_begin(self) -> bool:
        """True if a request may begin now. While the network is lost, no other one may then until
        the next pause is over.
        """
        if not self.is_lost:
            return True
        now = asyncio.get_running_loop().time()
        if self._tries or now < self._next_try:
            return False
        self._next_try = now + self._pause
        self._pause = min(self._backoff.most, 2 * self._pause)
        return True

    async def wait(self) -> None:
        """Wait until a request may be tried, or the network is back."""
        while self.is_lost:
            left = self._next_try - asyncio.get_running_loop().time()
            if not self._tries and left <= 0:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), None if self._tries else left)

    def begin(self) -> bool:
        """A request begins. True if it is a try, whose end is to be told by `end_try`."""
        self._tries += self.is_lost
        return self.is_lost

    def end_try(self) -> None:
        """A try has ended."""
        self._tries -= 1
        self._tell()

    def answered(self) -> None:
        """A site has responded."""
        if not self._silent:
            return
        self._silent.clear()
        self._without_network = 0
        if self.is_lost:
            self.is_lost = False
            self._tell()
            logger.info("A site responds to this node again: requests continue.")

    def failed(self, host: str, error_number: int | None) -> bool:
        """A request got no response. True if that is this node's fault, and not the site's."""
        has_no_network = error_number in NO_NETWORK
        self._silent.add(self._domain_of(host))
        self._without_network += has_no_network
        if self.is_lost:
            left = max(0.0, self._next_try - asyncio.get_running_loop().time())
            text = "Still no site responds to this node; the next try is in %s s."
            logger.info(text, digits(left))
        elif len(self._silent) >= SITES or self._without_network >= IN_A_ROW:
            self._lose()
        return self.is_lost or has_no_network

    def _lose(self) -> None:
        self.is_lost = True
        self._pause = self._backoff.start
        self._next_try = asyncio.get_running_loop().time()
        self._emit(NetworkLost)
        logger.warning(
            "No site responds to this node; the last ones it tried were %s. It blames none of "
            "them: it makes one request at a time, in growing pauses, until one gets a response.",
            ", ".join(sorted(self._silent)[:SITES]),
        )

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
