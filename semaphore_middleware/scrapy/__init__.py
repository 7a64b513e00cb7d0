"""A crawl's use of the semaphore, with all knowledge of Scrapy."""
