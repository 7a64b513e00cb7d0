"""The values shared by all packages: plain, checked, frozen. No I/O, no Redis, no Scrapy."""
