"""The command `scrapy frontier`."""
