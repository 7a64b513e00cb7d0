"""The crawler's settings, for nodes of a chaos run: `scrapy crawl pages`."""

from crawler.settings import *  # noqa: F403

SPIDER_MODULES = ["lab.chaos.spider"]
EXTENSIONS = {"lab.chaos.spider.Notes": 500}
DOWNLOADER_MIDDLEWARES = {"lab.chaos.spider.Signature": 960}
# The site judges pages, each of which it counts; a robots.txt would be one more that nobody links.
ROBOTSTXT_OBEY = False
# A node has waiters at every host, however long some of the host's pages take.
CONCURRENT_REQUESTS = 64
