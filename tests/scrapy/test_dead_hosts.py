"""A host that does not respond costs a crawl's other requests nothing."""

from typing import Any

from scrapy import Request

from semaphore_middleware.errors import HostDownError
from tests.support.crawls import Crawl, Log, pages
from tests.support.servers import RedisServer, free_port
from tests.support.site import Site

QUEUED = 60
LIMIT = 4
AT_ONCE: dict[str, Any] = {
    "SEMAPHORE_DOWN_AFTER": 0,
    "SEMAPHORE_BACKOFF_START": 0.3,
    "SEMAPHORE_BACKOFF_MAX": 30,
}


async def test_a_full_queue_of_a_dead_host(server: RedisServer, site: Site, caplog: Log) -> None:
    nobody = f"http://127.0.0.1:{free_port()}/"
    dead = [Request(f"{nobody}{n}", priority=1) for n in range(QUEUED)]
    alive = pages(site, QUEUED, host="localhost")
    crawl = Crawl(server, *dead, *alive, limit=LIMIT, RETRY_TIMES=2, **AT_ONCE)
    of_same_node = Crawl(server, alive[0], limit=LIMIT, RETRY_TIMES=2, **AT_ONCE)
    await crawl.finished()
    await of_same_node.finished()
    assert of_same_node.stat("semaphore/failed_at_once") == 0, "each crawl counts its own"
    assert len(crawl.spider.responses) == QUEUED, "of the site that is alive"
    errors = [type(error) for error in crawl.spider.failures]
    assert len(errors) == QUEUED
    of_down = errors.count(HostDownError)
    assert of_down == crawl.stat("semaphore/failed_at_once") > QUEUED / 2
    assert crawl.stat("semaphore/hosts_down") == 1
    tried = crawl.stat("downloader/exception_count") - of_down
    assert tried < 2 * LIMIT + 5, "each pause costs one attempt"
    retried = "retry/reason_count/semaphore_middleware.errors.HostDownError"
    assert crawl.stat(retried) == 0
    said = [message for message in caplog.messages if "is down. It has not responded" in message]
    assert len(said) == 1
    assert server.members() == {}
