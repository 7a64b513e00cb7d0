"""A Scrapy project that crawls one site with many nodes: `scrapy crawl site`, `scrapy cluster`."""
