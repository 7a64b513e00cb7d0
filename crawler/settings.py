"""Settings of this project; `-s NAME=value` overrides any of them.

docs/settings.md describes the settings of the add-on, docs/shared-crawl.md those of the scheduler.
"""

import os
import socket

BOT_NAME = "crawler"
SPIDER_MODULES = ["crawler.spiders"]

# Limits -----------------------------------------------------------------------------------------

# With the add-on each limit holds for all nodes together, whichever crawls they run.
ADDONS = {"semaphore_middleware.SemaphoreAddon": 500}

# The Redis server that the nodes share, such as redis://redis.example.internal:6379/0. If there is
# none, the first node starts one for all nodes on this machine.
SEMAPHORE_REDIS_URL = os.environ.get("REDIS_URL")

# Limits of single sites: requests open at once, seconds between two starts, or a rate of starts.
SEMAPHORE_LIMITS = {
    "www.example.org": 2,  # DOWNLOAD_DELAY holds, too
    "*.example.net": {"concurrency": 4, "delay": 0.5},  # each host
    "api.example.edu": {"concurrency": 2, "rate": "30/m"},  # 30 a minute
}
# The limit of all other sites.
CONCURRENT_REQUESTS_PER_DOMAIN = 4
DOWNLOAD_DELAY = 0

# One crawl -------------------------------------------------------------------------------------

# Nodes of one crawl share its queue, so that each page is fetched once. Without this line, each
# node fetches all pages.
SCHEDULER = "semaphore_middleware.Scheduler"

# A page may be fetched by one node, and its links by another: their cookies would not match.
COOKIES_ENABLED = False

# A file for each node. Give -o to write another one as well.
FEEDS = {
    f"pages/{socket.gethostname()}-{os.getpid()}.jsonl": {
        "format": "jsonlines",
        "encoding": "utf-8",
        "store_empty": False,
    }
}

# Politeness -------------------------------------------------------------------------------------

# Name a page, or an address, where a site's owner can reach you.
USER_AGENT = "scrapy-semaphore (Scrapy)"
ROBOTSTXT_OBEY = True

# The spider gets missing pages, too. Do not add 429 or 503, or set HTTPERROR_ALLOW_ALL: Scrapy's
# two retries would replace the add-on's, and refusals would become items.
HTTPERROR_ALLOWED_CODES = [404, 410]

# Operation --------------------------------------------------------------------------------------

LOG_LEVEL = "INFO"

# Where this node serves its metrics, if set. Containers set it: each has ports of its own.
SEMAPHORE_METRICS = os.environ.get("SEMAPHORE_METRICS")

# A node that is one of many needs no console of its own.
TELNETCONSOLE_ENABLED = False
REMOTE_CONTROL_ENABLED = False
