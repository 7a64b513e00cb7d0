BOT_NAME = "shop"
SPIDER_MODULES = ["shop.spiders"]
CONCURRENT_REQUESTS_PER_DOMAIN = 2
DOWNLOAD_DELAY = 0

SCHEDULER = "scrapy_redis.scheduler.Scheduler"
DUPEFILTER_CLASS = "scrapy_redis.dupefilter.RFPDupeFilter"
SCHEDULER_PERSIST = True
REDIS_HOST = "redis.example.internal"
ITEM_PIPELINES = {"scrapy_redis.pipelines.RedisPipeline": 300}
