"""Settings of this project's crawls; `-s NAME=value` overrides any of them.

Besides Scrapy's and the add-on's settings, the shared frontier reads:

    REDIS_URL        the server that all nodes of a crawl share, by default the environment's
    CRAWL            the crawl's name: nodes with the same name share one crawl
    CRAWL_MAX_PAGES  most URLs that all nodes together ask for, 0 for no limit
    CRAWL_LEASE      seconds after which a silent node's unfinished requests go to the others
"""

import os

BOT_NAME = "crawler"
SPIDER_MODULES = ["crawler.spiders"]
COMMANDS_MODULE = "crawler.commands"

# A site's limit holds for all nodes together.
ADDONS = {"semaphore_middleware.addon.SemaphoreAddon": 500}
CONCURRENT_REQUESTS_PER_DOMAIN = 4

# All nodes of a crawl share its requests and what it has seen.
SCHEDULER = "semaphore_middleware.frontier.Scheduler"
CRAWL_MAX_PAGES = 0
CRAWL_LEASE = 15.0
REDIS_URL = os.environ.get("REDIS_URL", "")
# Where this node serves its metrics, if at all. Containers set it: each has its ports to itself.
SEMAPHORE_METRICS_PORT = os.environ.get("SEMAPHORE_METRICS_PORT")
SEMAPHORE_METRICS_HOST = os.environ.get("SEMAPHORE_METRICS_HOST")

# Manners. Add how to reach you to the user agent before you crawl sites of others.
USER_AGENT = "scrapy-semaphore (Scrapy)"
ROBOTSTXT_OBEY = True

# Near pages first, so that depth and max_pages keep what matters most.
DEPTH_PRIORITY = 1
# Cookies would tie pages to the node that happened to fetch the ones before.
COOKIES_ENABLED = False
# A page that is missing is a finding, not a failure.
HTTPERROR_ALLOW_ALL = True
DOWNLOAD_MAXSIZE = 32 * 1024 * 1024

FEED_EXPORT_ENCODING = "utf-8"

EXTENSIONS = {"crawler.output.StatsFile": 500}
LOG_LEVEL = "INFO"
TELNETCONSOLE_ENABLED = False
REMOTE_CONTROL_ENABLED = False
