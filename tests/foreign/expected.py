"""Scrapy's tests that may come out otherwise with the add-on, and why that is right."""

from __future__ import annotations

EXPECTED = {
    "tests.test_crawl.TestCrawl.test_retry_503": (
        "a 503 is a refusal: the add-on lets the site rest and retries, not RETRY_TIMES times"
    ),
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
