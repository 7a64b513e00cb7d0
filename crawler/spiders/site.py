"""The spider `site`: follows the links of one site, and makes an item of each page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Self
from urllib.parse import urlsplit

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.http import HtmlResponse, Response
from scrapy.linkextractors import LinkExtractor

from crawler.items import Page


class SiteSpider(Spider):
    """Crawl a site: `scrapy crawl site -a url=https://example.com -a max_pages=1000`.

    The nodes of a site are one crawl: start as many as you like, with the same arguments.
    """

    name = "site"
    custom_settings = {"DEPTH_PRIORITY": 1}  # breadth first: max_pages keeps pages near the start
    links = LinkExtractor()

    def __init__(self, url: str, max_pages: str | int = 0, **kwargs: Any) -> None:
        super().__init__(start_urls=[url], **kwargs)
        host = urlsplit(url).hostname or ""
        self.allowed_domains = [host.removeprefix("www.")]
        self.max_pages = max_pages

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Self:
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.settings.set("CRAWL", spider.allowed_domains[0], priority="spider")
        crawler.settings.set("CRAWL_MAX_PAGES", spider.max_pages, priority="spider")
        return spider

    async def start(self) -> AsyncIterator[Request]:
        # All nodes start here. Scrapy's own start() would let each of them fetch the page.
        for url in self.start_urls:
            yield Request(url)

    def parse(self, response: Response) -> Iterator[Page | Request]:
        title, links = None, []
        if isinstance(response, HtmlResponse):
            title = response.css("title::text").get()
            links = self.links.extract_links(response)
        yield Page(response.url, response.status, title, response.meta.get("depth", 0))
        yield from response.follow_all(links)
