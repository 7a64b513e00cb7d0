"""Short words for what nodes do in the tests of a shared crawl."""

from __future__ import annotations

from redis import Redis

from semaphore_middleware.frontier.client import Demand, NewRequest, TakenRequest
from tests.support.frontier import BlockingClient

ONE = Demand(requests=1, per_site=1)


def node(
    client: Redis, name: str, crawl: str = "books", lease: float = 60.0, max_pages: int = 0
) -> BlockingClient:
    shared = BlockingClient(client, crawl, name, lease, max_pages)
    shared.joins()
    return shared


def new_request(
    crawl: BlockingClient, data: bytes, score: float = 0, fingerprint: str = "", site: str = "a"
) -> NewRequest:
    return NewRequest(crawl.new_place(site, score), data, fingerprint.encode())


def push(crawl: BlockingClient, data: bytes, score: float = 0, fingerprint: str = "") -> bool:
    (queued,) = crawl.pushes(new_request(crawl, data, score, fingerprint))
    return queued


def take(crawl: BlockingClient, *done: TakenRequest) -> TakenRequest | None:
    return next(iter(crawl.takes(ONE, *done)), None)


def pop(crawl: BlockingClient, *done: TakenRequest) -> TakenRequest:
    taken = take(crawl, *done)
    assert taken is not None
    return taken


def die(crawl: BlockingClient) -> None:
    """Let its lease expire."""
    crawl.client.zadd(crawl.keys.of("working"), {crawl.node: 1})


def fill(crawl: BlockingClient, **counts: int) -> None:
    for site, count in counts.items():
        crawl.pushes(*(new_request(crawl, b"", site=site) for _ in range(count)))
