"""A Scrapy project to crawl one site with many nodes: `scrapy crawl site`."""
