"""What is spoken of: plain, checked, frozen values. No I/O, no Redis, no Scrapy."""
