"""The values shared by all rooms: plain, checked, frozen. No I/O, no Redis, no Scrapy."""
