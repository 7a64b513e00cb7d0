"""Habits of ordinary projects: small spiders, run alone by Scrapy and as a crawl of three nodes."""
