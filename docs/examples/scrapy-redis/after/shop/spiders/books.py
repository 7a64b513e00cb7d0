from scrapy import Spider


class Books(Spider):
    name = "books"

    def parse(self, response):
        yield {"url": response.url}
        yield from response.follow_all(css="a")
