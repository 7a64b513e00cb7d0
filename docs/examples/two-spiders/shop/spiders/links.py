from scrapy import Spider


class Links(Spider):
    name = "links"
    start_urls = ["https://example.com/"]

    def parse(self, response):
        yield {"url": response.url, "links": response.css("a::attr(href)").getall()}
        yield from response.follow_all(css="a")
