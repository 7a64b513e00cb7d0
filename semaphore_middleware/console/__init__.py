"""The page of `scrapy semaphore serve`: its server, and its files for browsers."""
