"""The page of `scrapy semaphore serve`: its server, and what browsers load."""
