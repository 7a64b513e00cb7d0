BOT_NAME = "shop"
SPIDER_MODULES = ["shop.spiders"]
ADDONS = {"semaphore_middleware.SemaphoreAddon": 500}
SEMAPHORE_REDIS_URL = "redis://redis.example.internal:6379/0"

# Of all nodes and both spiders together.
SEMAPHORE_LIMITS = {"example.com": 2}
DOWNLOAD_DELAY = 0

# The nodes of a spider share its crawl.
SCHEDULER = "semaphore_middleware.Scheduler"

ROBOTSTXT_OBEY = True
USER_AGENT = "shopbot/1.0 (+https://crawler.example/shopbot.html)"
