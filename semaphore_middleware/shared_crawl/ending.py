"""How a shared crawl ends on one node."""

from __future__ import annotations

import logging

from scrapy import Request
from scrapy.statscollectors import StatsCollector

from semaphore_middleware.shared_crawl.client import Missing

logger = logging.getLogger(__name__)


class CrawlEnd:
    """The end of the crawl for this node, and the requests that the crawl lacks then."""

    def __init__(self, crawl: str, stats: StatsCollector) -> None:
        self._crawl = crawl
        self._stats = stats
        self.has_come = False
        """Also if the crawl goes on without this node."""
        self.has_failed = False
        """The crawl lacks requests, so the node exits with status 1."""
        self._was_idle = False

    def come(self, is_idle: bool) -> None:
        self.has_come = True
        self._was_idle = is_idle

    def drop(self, request: Request) -> None:
        """Drop a request made after the end. A node at work at the end may still yield requests,
        for example when the crawl has all its pages. On an idle node, another component has made
        the request, and this is an error.
        """
        self._stats.inc_value("scheduler/dropped_after_end")
        is_error = self._was_idle and not self.has_failed
        logger.log(
            logging.ERROR if is_error else logging.INFO,
            "The crawl %r has ended: %s is dropped. CRAWL_WAIT = True lets a crawl wait for more",
            self._crawl,
            request,
        )
        self.has_failed |= is_error

    def log_undone(self, missing: Missing) -> None:
        """Log the end of a crawl without a page, or with lost requests."""
        self.has_failed = True
        if missing.lost:
            logger.error(
                "The server has lost requests of the crawl %r: %d. So the crawl does not count as "
                "done: the next node starts it over",
                self._crawl,
                missing.lost,
            )
        else:
            logger.error(
                "The crawl %r has fetched nothing, so it does not count as done: the next node "
                "tries again",
                self._crawl,
            )

    def log_lost(self) -> None:
        """Log the loss of a crawl that was only in the embedded server's memory."""
        self.has_failed = True
        logger.error(
            "The embedded server has lost the crawl %r, which was in its memory only: this node "
            "ends, and the next one starts the crawl over. To keep crawls, set REDIS_URL to a "
            "server that saves its data",
            self._crawl,
        )

    def log_missing(self, missing: Missing) -> None:
        if missing.left:
            logger.info(
                "The crawl %r has ended; requests left in the queues: %d", self._crawl, missing.left
            )
        if missing.dead_letters:
            self.has_failed = True
            logger.error(
                "The crawl %r has ended without its dead letters: %d. scrapy "
                "frontier retry %s puts them back, and the next node goes on with them",
                self._crawl,
                missing.dead_letters,
                self._crawl,
            )
        if missing.failed:
            logger.warning(
                "The crawl %r has ended; requests that have brought no page: %d. scrapy frontier "
                "retry %s puts them back, and the next node goes on with them",
                self._crawl,
                missing.failed,
                self._crawl,
            )
