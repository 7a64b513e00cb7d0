"""What nodes do in the tests of a shared crawl."""

from __future__ import annotations

from redis import Redis

from semaphore_middleware.frontier.client import Entry, Taken, Wish
from tests.frontier.outside import OutsideCrawl

ONE = Wish(requests=1, of_a_site=1)


def node(
    client: Redis, name: str, crawl: str = "books", lease: float = 60.0, max_pages: int = 0
) -> OutsideCrawl:
    shared = OutsideCrawl(client, crawl, name, lease, max_pages)
    shared.joins()
    return shared


def entry(
    crawl: OutsideCrawl, data: bytes, score: float = 0, fingerprint: str = "", site: str = "a"
) -> Entry:
    return Entry(crawl.new_id(), score, site, data, fingerprint)


def push(crawl: OutsideCrawl, data: bytes, score: float = 0, fingerprint: str = "") -> bool:
    (queued,) = crawl.pushes(entry(crawl, data, score, fingerprint))
    return queued


def take(crawl: OutsideCrawl, *done: Taken) -> Taken | None:
    return next(iter(crawl.takes(ONE, *done)), None)


def pop(crawl: OutsideCrawl, *done: Taken) -> Taken:
    taken = take(crawl, *done)
    assert taken is not None
    return taken


def die(crawl: OutsideCrawl) -> None:
    """Its mark is no longer renewed, and ends."""
    crawl.client.zadd(crawl.key("working"), {crawl.node: 1})


def fill(crawl: OutsideCrawl, **counts: int) -> None:
    for site, count in counts.items():
        crawl.pushes(*(entry(crawl, b"", site=site) for _ in range(count)))
