"""This process's own network: whether it reaches any site at all."""

from __future__ import annotations

import asyncio
import errno
import logging
import ssl
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from urllib.parse import ParseResult

from scrapy import Request
from scrapy.utils.datatypes import LocalCache
from scrapy.utils.httpobj import urlparse_cached

from semaphore_middleware.errors import SemaphoreError
from semaphore_middleware.link.text import digits
from semaphore_middleware.model.events import CountedEvent
from semaphore_middleware.model.feedback import Backoff
from semaphore_middleware.model.hosts import registered_domain
from semaphore_middleware.scrapy.scopes import DEFAULT_PORTS, host_of

logger = logging.getLogger(__name__)

SITES = 5
"""If so many sites in a row do not respond, this node's network may be lost."""
IN_A_ROW = 3
"""So it may if so many requests in a row find no network."""
REACHABLE = 5
"""The number of sites that responded last, to which the node then connects: if a host of one of
them accepts, the network is not lost.
"""
CONNECT_TIMEOUT_S = 5.0
CONNECT_INTERVAL_S = 30.0
"""The time until the node connects to them again, unless a site responds, or one of them fails."""
HEAD = """\
HEAD /robots.txt HTTP/1.1\r
Host: {host}\r
User-Agent: {user_agent}\r
Connection: close\r
\r
"""
NO_NETWORK = {errno.ENETUNREACH, errno.ENETDOWN}


@dataclass(frozen=True, slots=True)
class NetworkLost(CountedEvent):
    """No site responds to this node any more."""

    counter = "network_losses"


class Network:
    """Notices that no site responds, and then counts no failures of sites: the cause is this node.

    If many sites in a row did not respond, the node connects to those that responded last: if one
    accepts, the silent ones are dead. If a silent one closed the connection, the node's own network
    may close all: then one that is not silent must respond to a HEAD request for its robots.txt.
    Otherwise the node makes one request at a time, at growing intervals, until one gets a response
    or such a connection. So an outage costs a few attempts, and no page. A node without any
    response yet, except through a proxy, cannot distinguish these cases: it also makes one request
    at a time, but their failures count. Times are on the loop's clock, in seconds.
    """

    def __init__(
        self,
        backoff: Backoff,
        emit: Callable[[type[NetworkLost]], object],
        probe: Callable[[Request], AbstractAsyncContextManager[None]],
        user_agent: str,
    ) -> None:
        self._backoff = backoff
        self._emit = emit
        self._probe = probe
        """Holds the permits of a request that this node makes only as a test."""
        self._user_agent = user_agent
        self.is_lost = False
        """True while no site responds to this node."""
        self._reachable: LocalCache[str, ParseResult] = LocalCache(REACHABLE)
        """URLs, by registered domain, the one that responded last at the end."""
        self._responses = 0
        self._silent: set[str] = set()  # registered domains of hosts, since the last response
        self._has_closed = False  # one of them closed a connection
        self._without_network = 0  # requests, since then
        self._pause = 0.0  # after the next try
        self._next_try = 0.0
        self._checks = 0
        self._next_check = 0.0
        self._tries = 0  # on the wire
        self._connecting = asyncio.Lock()
        self._changed = asyncio.Event()  # set when a try has ended

    def may_begin(self) -> bool:
        """True if a request may begin now. While the network is lost, this request is a try: no
        other may begin before the next pause is over.
        """
        if not self.is_lost:
            return True
        if self._tries or self._seconds_left() > 0:
            return False
        self._next_try = asyncio.get_running_loop().time() + self._pause
        self._pause = min(self._backoff.most, 2 * self._pause)
        return True

    async def wait(self) -> None:
        """Wait until a request may be tried, or the network is back."""
        while self.is_lost:
            left = self._seconds_left()
            if not self._tries and left <= 0:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), None if self._tries else left)

    def begin(self) -> bool:
        """Record a request's start. True if it is a try; then call `end_try` at its end."""
        self._tries += self.is_lost
        return self.is_lost

    def end_try(self) -> None:
        self._tries -= 1
        self._wake_waiting()

    def answered(self, request: Request) -> None:
        if not request.meta.get("proxy"):
            self._note_reachable(request)
        self._responses += 1
        if not self._silent:
            return
        self._silent.clear()
        self._has_closed = False
        self._without_network = 0
        self._next_check = 0.0
        self._recover()

    async def failed(
        self, request: Request, error_number: int | None, is_try: bool, is_closed: bool = False
    ) -> bool:
        """Record a request without a response; or whose connection was closed, if `is_closed`. True
        if this node is at fault, not the site.
        """
        was_lost = self.is_lost
        site = registered_domain(host_of(request))
        self._silent.add(site)
        self._has_closed |= is_closed
        self._without_network += error_number in NO_NETWORK
        checks = self._checks
        async with self._connecting:
            should_check = is_try if self.is_lost else self._seems_lost(site)
            if should_check and self._checks == checks:  # once for all that fail together
                await self._check()
                self._checks += 1
        return (was_lost or self.is_lost) and bool(self._reachable)

    def _seems_lost(self, site: str) -> bool:
        """True if the node should check whether any site can be reached: enough sites are silent,
        `site` being the latest.
        """
        is_due = asyncio.get_running_loop().time() >= self._next_check or site in self._reachable
        is_silent = len(self._silent) >= SITES or self._without_network >= IN_A_ROW
        return is_silent and is_due

    async def _check(self) -> None:
        """Test whether one of the sites that responded last can be reached. The network is lost if
        none can, and no site responds meanwhile.
        """
        responses = self._responses
        if self._has_closed:
            # A silent one has not responded just now, and its request still holds the permit.
            others = [url for site, url in self._reachable.items() if site not in self._silent]
            tests = map(self._responds, others)
        else:
            tests = map(_accepts, self._reachable.values())
        if any(await asyncio.gather(*tests)):
            self._next_check = asyncio.get_running_loop().time() + CONNECT_INTERVAL_S
            self._recover()
        elif self._responses > responses:
            pass
        elif self.is_lost:
            text = "Still no site responds to this node; the next try is in %s s."
            logger.info(text, digits(max(0.0, self._seconds_left())))
        else:
            self._lose()

    def _note_reachable(self, request: Request) -> None:
        url = urlparse_cached(request)
        if url.hostname and url.scheme in DEFAULT_PORTS:
            site = registered_domain(host_of(request))
            self._reachable.pop(site, None)
            self._reachable[site] = url

    async def _responds(self, url: ParseResult) -> bool:
        """True if a site responds to a HEAD request for its robots.txt."""
        request = Request(f"{url.scheme}://{url.netloc}/robots.txt", method="HEAD")
        with suppress(OSError, UnicodeError, SemaphoreError):  # a TimeoutError, too
            async with asyncio.timeout(CONNECT_TIMEOUT_S), self._probe(request):
                tls = _any_certificate() if url.scheme == "https" else None
                reader, writer = await _connect(url, tls)
                try:
                    host = url.netloc.rpartition("@")[2]
                    head = HEAD.format(host=host, user_agent=self._user_agent)
                    writer.write(head.encode("latin-1", "replace"))
                    return bool(await reader.read(1))
                finally:
                    writer.close()
        return False

    def _lose(self) -> None:
        self.is_lost = True
        self._pause = self._backoff.start
        self._next_try = asyncio.get_running_loop().time()
        self._emit(NetworkLost)
        if self._reachable:
            text = "counts no failures of sites, and makes"
        else:
            text = "has got no response yet, so these failures count; it makes"
        logger.warning(
            "No site responds to this node; the last ones it tried were %s. It %s one request at "
            "a time, at growing intervals, until one gets a response.",
            ", ".join(sorted(self._silent)[:SITES]),
            text,
        )

    def _recover(self) -> None:
        if self.is_lost:
            self.is_lost = False
            self._wake_waiting()
            logger.info("A site responds to this node again: requests continue.")

    def _seconds_left(self) -> float:
        return self._next_try - asyncio.get_running_loop().time()

    def _wake_waiting(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


async def _accepts(url: ParseResult) -> bool:
    """True if a host accepts a connection."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, writer = await _connect(url)
    except (OSError, UnicodeError):  # a TimeoutError, too; a name that the system cannot look up
        return False
    writer.close()
    return True


async def _connect(
    url: ParseResult, tls: ssl.SSLContext | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    port = url.port or DEFAULT_PORTS[url.scheme]
    return await asyncio.open_connection(url.hostname, port, happy_eyeballs_delay=0.25, ssl=tls)


def _any_certificate() -> ssl.SSLContext:
    """TLS with any certificate, as Scrapy connects by default."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
