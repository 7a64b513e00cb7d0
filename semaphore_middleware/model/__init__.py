"""The values that all rooms share: plain, checked, frozen. No I/O, no Redis, no Scrapy."""
