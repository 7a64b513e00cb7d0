"""The page of `scrapy semaphore serve`: its server, and the files that browsers load."""
