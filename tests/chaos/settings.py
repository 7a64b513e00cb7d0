"""The crawler's settings, for nodes of a chaos run: `scrapy crawl pages`."""

from crawler.settings import *  # noqa: F403

SPIDER_MODULES = ["tests.chaos.spider"]
EXTENSIONS = {"tests.chaos.recorder.Recorder": 500}
# The site judges pages, each of which it counts; a robots.txt would be one more that nobody links.
ROBOTSTXT_OBEY = False
DOWNLOADER_MIDDLEWARES = {"tests.chaos.recorder.Signature": 960}
# A node has waiters at every host, however long some of the host's pages take.
CONCURRENT_REQUESTS = 64
