"""Scopes of the kind `ip`: the addresses of hosts, looked up once, and then connected to.

The rest of the package uses them only by the hook `scopes.LookUp`, made by `look_up_for`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Container, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from scrapy.resolver import HostResolution
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.misc import load_object
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import IHostnameResolver, IResolutionReceiver
from zope.interface import implementer  # type: ignore[import-untyped]

from semaphore_middleware.errors import SettingsError
from semaphore_middleware.model.hosts import is_address, normal_host
from semaphore_middleware.scrapy.scopes import SCOPE_KEY, SKIP_KEY, host_of
from semaphore_middleware.scrapy.versions import CannotResolveHostError, has_reactor

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.settings import BaseSettings

HOSTS_MAX = 10_000
"""Addresses kept though no request uses them, as many as in Scrapy's own cache by default."""
Address = IPv4Address | IPv6Address
HANDLERS = ("HTTP11DownloadHandler", "H2DownloadHandler")
"""Scrapy's download handlers. They connect by the reactor's resolver, so to these addresses."""


def look_up_for(kinds: Container[object], settings: BaseSettings) -> Addresses | None:
    """The hook of a crawl with these kinds of scopes; None if `ip` is not one of them."""
    return Addresses(settings) if Addresses.kind in kinds else None


class Addresses:
    """Looks up the address of each host once, for all crawls of this process.

    A host keeps the first address of its look-up while there are requests to the host, and then
    until `HOSTS_MAX` other hosts have been requested. So the `ip` scope of a host is the address
    of its kept-alive connections. Raises `SettingsError` if a download handler looks up addresses
    by itself.
    """

    kind = "ip"

    def __init__(self, settings: BaseSettings) -> None:
        if not has_reactor(settings):
            raise SettingsError(
                "SEMAPHORE_SCOPES: 'ip' needs TWISTED_REACTOR_ENABLED = True, as handlers without "
                "a reactor look up addresses by themselves"
            )
        for scheme in ("http", "https"):
            path = settings.getwithbase("DOWNLOAD_HANDLERS").get(scheme)
            if path is not None and not _is_scrapys(load_object(path)):
                raise SettingsError(
                    f"SEMAPHORE_SCOPES: 'ip' needs Scrapy's {' or '.join(HANDLERS)} for "
                    f"{scheme}; DOWNLOAD_HANDLERS has {path!r}, which may look up addresses by "
                    "itself"
                )
        self._timeout_s = settings.getfloat("DNS_TIMEOUT")
        self._lookups: dict[str, asyncio.Future[Address]] = {}

    def applies_to(self, request: Request) -> bool:
        """False if the request names its scopes itself, or its proxy looks up the address."""
        meta = request.meta
        return not (
            meta.get(SKIP_KEY) or meta.get("proxy") or meta.get(SCOPE_KEY) is not None
        ) and urlparse_cached(request).scheme in ("http", "https")

    def scope_of(self, host: str) -> str | None:
        """The scope of a host's address; None if the address was not looked up yet."""
        if is_address(host):
            return f"ip:{host}"
        address = _addresses.get(host)
        return f"ip:{normal_host(address.host)}" if address is not None else None

    async def look_up(self, request: Request) -> tuple[object, Exception | None]:
        """Look up the address of a request's host. Its scope is known as long as the first result
        is kept; the second is the error if there is no address.
        """
        if not self.applies_to(request):
            return None, None
        try:
            return await self.resolve(host_of(request)), None
        except CannotResolveHostError as error:
            return None, error

    async def resolve(self, host: str) -> Address | None:
        """The address of a host, known as long as it is kept; None if the host is an address.

        Raises `CannotResolveHostError`.
        """
        if is_address(host):
            return None
        _install()
        address = _addresses.get(host)
        if address is None:
            lookup = self._lookups.get(host)
            if lookup is None:
                lookup = asyncio.ensure_future(self._look_up(host))
                lookup.add_done_callback(partial(self._looked_up, host))
                self._lookups[host] = lookup
            address = await asyncio.shield(lookup)  # other requests may wait for it
        _latest[host] = address
        _latest.move_to_end(host)
        while len(_latest) > HOSTS_MAX:
            _latest.popitem(last=False)
        return address

    def _looked_up(self, host: str, lookup: asyncio.Future[Address]) -> None:
        del self._lookups[host]
        if not lookup.cancelled():
            lookup.exception()  # retrieved, even if no request waits for it any more

    async def _look_up(self, host: str) -> Address:
        receiver = FirstAddress()
        try:
            async with asyncio.timeout(self._timeout_s):
                _resolver.resolveHostName(receiver, host)
                address = await receiver.found
        except TimeoutError:
            raise CannotResolveHostError(
                f"no address found for {host!r} within {self._timeout_s:g} s (DNS_TIMEOUT)"
            ) from None
        if address is None:
            raise CannotResolveHostError(f"no address found for {host!r}")
        # Another crawl of this process may have found an address meanwhile, and its requests may
        # have permits of that address: a host has one address.
        return _addresses.setdefault(host, address)


def _is_scrapys(handler: Any) -> bool:
    return any(
        base.__name__ in HANDLERS and base.__module__.startswith("scrapy.core.downloader.")
        for base in getattr(handler, "__mro__", ())
    )


# Before the reactor's resolver -------------------------------------------------------------------


@implementer(IResolutionReceiver)
class FirstAddress:
    """Waits for the first address of a host; `found` is None if there is none."""

    def __init__(self) -> None:
        self.found: asyncio.Future[Address | None] = asyncio.get_running_loop().create_future()

    def resolutionBegan(self, resolutionInProgress: object) -> None:  # noqa: N802, N803
        pass

    def addressResolved(self, address: Address) -> None:  # noqa: N802
        if not self.found.done():
            self.found.set_result(address)

    def resolutionComplete(self) -> None:  # noqa: N802
        if not self.found.done():
            self.found.set_result(None)


@implementer(IHostnameResolver)
class KnownAddresses:
    """The reactor's resolver, with one address for each known host."""

    def __init__(self) -> None:
        self.other: Any = None
        """The reactor's own resolver, for all other hosts."""

    def resolveHostName(  # noqa: N802
        self,
        resolutionReceiver: Any,  # noqa: N803
        hostName: str,  # noqa: N803
        portNumber: int = 0,  # noqa: N803
        addressTypes: Sequence[type] | None = None,  # noqa: N803
        transportSemantics: str = "TCP",  # noqa: N803
    ) -> Any:
        """Give a host's known address, or ask the reactor's own resolver (`IHostnameResolver`)."""
        known = _addresses.get(normal_host(hostName))
        if known is None or (addressTypes is not None and type(known) not in addressTypes):
            return self.other.resolveHostName(
                resolutionReceiver, hostName, portNumber, addressTypes, transportSemantics
            )
        resolution = HostResolution(hostName)
        resolutionReceiver.resolutionBegan(resolution)
        resolutionReceiver.addressResolved(type(known)("TCP", known.host, portNumber))
        resolutionReceiver.resolutionComplete()
        return resolution


_addresses: WeakValueDictionary[str, Address] = WeakValueDictionary()
"""By host: the addresses kept by requests, and the latest."""
_latest: OrderedDict[str, Address] = OrderedDict()
_resolver = KnownAddresses()


def _install() -> None:
    """Put our resolver before the reactor's. Scrapy may install its own after a crawl has begun."""
    from twisted.internet import reactor

    current: Any = reactor
    if current.nameResolver is not _resolver:
        _resolver.other = current.installNameResolver(_resolver)
