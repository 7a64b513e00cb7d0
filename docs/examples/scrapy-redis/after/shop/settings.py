BOT_NAME = "shop"
SPIDER_MODULES = ["shop.spiders"]
CONCURRENT_REQUESTS_PER_DOMAIN = 2
DOWNLOAD_DELAY = 0

ADDONS = {"semaphore_middleware.SemaphoreAddon": 500}
SCHEDULER = "semaphore_middleware.Scheduler"
CRAWL_START_KEY = "shop:start_urls"
CRAWL_WAIT = True
REDIS_URL = "redis://redis.example.internal:6379/0"
ITEM_PIPELINES = {"scrapy_redis.pipelines.RedisPipeline": 300}
