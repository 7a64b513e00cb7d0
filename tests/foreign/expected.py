"""Scrapy's tests that may come out otherwise with the add-on, and why that is right."""

from __future__ import annotations

ATTRIBUTE = (
    "the add-on has read the deprecated attribute already, so Scrapy's warning says in other words "
    "that it is deprecated"
)

EXPECTED = {
    "tests.test_crawl.TestCrawl.test_retry_503": (
        "a 503 is a refusal: the add-on lets the site rest and retries, not RETRY_TIMES times"
    ),
    "tests.test_crawler.TestCrawler.test_deprecated_spider_attr[download_delay-DOWNLOAD_DELAY]": (
        ATTRIBUTE
    ),
    "tests.test_crawler.TestCrawler.test_deprecated_spider_attr"
    "[max_concurrent_requests-CONCURRENT_REQUESTS_PER_DOMAIN]": ATTRIBUTE,
    "tests.test_downloaderslotssettings.test_delay": (
        "meta's download_slot chooses no semaphore: the delay of the host holds"
    ),
    "tests.test_engine.test_download_wrong_type": (
        "the test's downloader returns text where a Deferred belongs, so the error is another one"
    ),
    "tests.test_spider_crawl.TestCrawlSpider.test_closed_signal_call": (
        "the test sends spider_opened and spider_closed without awaiting what they start"
    ),
}
"""By class and name of the test."""
