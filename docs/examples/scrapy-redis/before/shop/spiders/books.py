from scrapy_redis.spiders import RedisSpider


class Books(RedisSpider):
    name = "books"
    redis_key = "shop:start_urls"

    def parse(self, response):
        yield {"url": response.url}
        yield from response.follow_all(css="a")
