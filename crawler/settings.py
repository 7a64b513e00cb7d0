"""Settings of this project's crawls; `-s NAME=value` overrides any of them.

docs/settings.md and docs/shared-crawl.md explain those that are not Scrapy's own.
"""

import os

BOT_NAME = "crawler"
SPIDER_MODULES = ["crawler.spiders"]

# A site's limit holds for all nodes together.
ADDONS = {"semaphore_middleware.addon.SemaphoreAddon": 500}
CONCURRENT_REQUESTS_PER_DOMAIN = 4

# All nodes of a crawl share its queued requests and its record of seen ones.
SCHEDULER = "shared_crawl.Scheduler"
REDIS_URL = os.environ.get("REDIS_URL", "")
# Where this node serves its metrics, if set. Containers set it: each has ports of its own.
SEMAPHORE_METRICS_PORT = os.environ.get("SEMAPHORE_METRICS_PORT")
SEMAPHORE_METRICS_HOST = os.environ.get("SEMAPHORE_METRICS_HOST")

# Politeness. Add your contact to the user agent before you crawl the sites of others.
USER_AGENT = "scrapy-semaphore (Scrapy)"
ROBOTSTXT_OBEY = True

# Breadth first, so that max_pages keeps the pages near the start.
DEPTH_PRIORITY = 1
# One node may fetch a page, and another node its links: cookies would not match.
COOKIES_ENABLED = False
# A missing page becomes an item, too.
HTTPERROR_ALLOW_ALL = True
DOWNLOAD_MAXSIZE = 32 * 1024 * 1024

FEED_EXPORT_ENCODING = "utf-8"

EXTENSIONS = {"crawler.output.StatsFile": 500}
LOG_LEVEL = "INFO"
TELNETCONSOLE_ENABLED = False
REMOTE_CONTROL_ENABLED = False
