"""The throttler and its parts, with all their knowledge of Scrapy."""
