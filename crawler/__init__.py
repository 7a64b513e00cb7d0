"""A Scrapy project to copy: any number of nodes crawl one site together, within its limits."""
