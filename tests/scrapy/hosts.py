"""Several hosts at one judging site, for tests that walk through many cases in one crawl."""

from __future__ import annotations

from urllib.parse import urlsplit

from tests.support.site import Site


async def more_hosts(site: Site, count: int) -> list[str]:
    """Addresses at which the site listens from now on, on the same port."""
    hosts = [f"127.0.0.{number + 2}" for number in range(count)]
    for host in hosts:
        await site.listen(host, site.port)
    return hosts


def host_of(url: str) -> str:
    return urlsplit(url).hostname or ""
