"""Settings of the small spiders: few, and quick."""

from tests.support.times import ENDLESS_S

SPIDER_MODULES = ["tests.habits.spiders"]
ROBOTSTXT_OBEY = False  # the add-on reads a robots.txt in other ways, see docs/robotstxt.md
RETRY_TIMES = 2
TELNETCONSOLE_ENABLED = False
DOWNLOAD_DELAY = 0
SEMAPHORE_RECOVERY_WAIT = 0  # no earlier crawl has used the server
SEMAPHORE_LEASE = CRAWL_LEASE = ENDLESS_S
ITEM_PIPELINES = {"scrapy.pipelines.files.FilesPipeline": 1}
FILES_STORE = "files"
