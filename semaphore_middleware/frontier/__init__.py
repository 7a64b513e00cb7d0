"""A scheduler for crawls that many nodes share. It knows nothing of permits."""

from semaphore_middleware.frontier.client import CrawlClient, RunOverError
from semaphore_middleware.frontier.scheduler import Scheduler
from semaphore_middleware.frontier.settings import CrawlSettings, node_name
from semaphore_middleware.scrapy.engine import end_crawl

__all__ = [
    "CrawlClient",
    "CrawlSettings",
    "RunOverError",
    "Scheduler",
    "end_crawl",
    "node_name",
]
