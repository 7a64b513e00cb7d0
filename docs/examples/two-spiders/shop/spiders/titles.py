from scrapy import Spider


class Titles(Spider):
    name = "titles"
    start_urls = ["https://example.com/"]

    def parse(self, response):
        yield {"url": response.url, "title": response.css("title::text").get()}
        yield from response.follow_all(css="a")
