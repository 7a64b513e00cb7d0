"""Names for the tests' loopback addresses: a resolver in the place of Scrapy's."""

from __future__ import annotations

from collections import Counter
from typing import Any, Self

from twisted.internet.base import ThreadedResolver
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import DNSLookupError

FIRST, SECOND = "127.0.0.1", "127.0.0.2"


class LoopbackNames(ThreadedResolver):
    """All names below example.org and example.net are this machine's, those that begin with
    `second` at the second address, and those that begin with `both` at either, in turn. Those below
    `invalid` are none.
    """

    def __init__(self, reactor: Any) -> None:
        super().__init__(reactor)
        self.lookups: Counter[str] = Counter()

    @classmethod
    def from_crawler(cls, crawler: Any, reactor: Any) -> Self:  # noqa: ARG003 - Scrapy's
        return cls(reactor)

    def install_on_reactor(self) -> None:
        reactor: Any = self.reactor
        reactor.installResolver(self)

    def getHostByName(self, name: str, timeout: Any = (1, 3, 11, 45)) -> Deferred[str]:  # noqa: N802
        if name.endswith(".invalid"):
            return fail(DNSLookupError(name))
        if not name.endswith((".example.org", ".example.net")):
            found: Deferred[str] = super().getHostByName(name, timeout)
            return found
        self.lookups[name] += 1
        is_even = self.lookups[name] % 2 == 0
        is_second = name.startswith("second") or (name.startswith("both") and is_even)
        return succeed(SECOND if is_second else FIRST)
