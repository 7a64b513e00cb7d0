"""The spider `site`: follows a site's links and writes one item for each page."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any, Self
from urllib.parse import urldefrag

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.http import HtmlResponse, Response
from scrapy.linkextractors import LinkExtractor

from crawler.arguments import SiteArguments
from crawler.items import Page
from crawler.output import set_default_feed
from shared_crawl import end_crawl, node_name


class SiteSpider(Spider):
    """Crawl a site: `scrapy crawl site -a url=https://example.com`.

    url        one start URL or several, separated by spaces or commas
    urls       a file of start URLs, one per line; # begins a comment
    allow      follow only links whose URL matches this regular expression somewhere
    deny       do not follow links whose URL matches this one somewhere
    max_pages  pages to fetch at most, all nodes together
    depth      links to follow from a start URL, one after another, at most

    Links are followed on the hosts of the start URLs and their subdomains.
    """

    name = "site"
    links = LinkExtractor(deny_extensions=())  # files of any type are part of the site

    def __init__(self, arguments: SiteArguments) -> None:
        super().__init__(start_urls=list(arguments.urls), allowed_domains=arguments.hosts)
        self.allow = re.compile(arguments.allow)
        self.deny = re.compile(arguments.deny) if arguments.deny else None

    @classmethod
    def from_crawler(cls, crawler: Crawler, *_: Any, **given: Any) -> Self:
        """Called by Scrapy. A wrong argument ends the crawl with one line in the log."""
        try:
            arguments = SiteArguments.parse(given)
        except ValueError as error:
            end_crawl(error, crawler)
        settings = crawler.settings
        if not settings.get("CRAWL"):
            settings.set("CRAWL", arguments.crawl_name, priority="cmdline")  # `-s CRAWL=` is none
        if arguments.max_pages:
            settings.set("CRAWL_MAX_PAGES", arguments.max_pages, priority="spider")
        if arguments.depth:
            settings.set("DEPTH_LIMIT", arguments.depth, priority="spider")
        set_default_feed(settings)
        return super().from_crawler(crawler, arguments)

    async def start(self) -> AsyncIterator[Request]:
        """Request the start URLs."""
        # All nodes do, so duplicates must be filtered: Scrapy's own start() prevents that.
        for url in self.start_urls:
            yield Request(url)

    def parse(self, response: Response) -> Iterator[Page | Request]:
        """The page as an item, and requests for its links."""
        links = self.links_of(response)
        yield self.page(response, links)
        for url in links:
            if self.allow.search(url) and not (self.deny and self.deny.search(url)):
                yield Request(url)

    def links_of(self, response: Response) -> list[str]:
        """All http(s) links of a page, each once."""
        if not isinstance(response, HtmlResponse):
            return []
        urls = (urldefrag(link.url).url for link in self.links.extract_links(response))
        return list(dict.fromkeys(url for url in urls if url.startswith(("http://", "https://"))))

    def page(self, response: Response, links: list[str]) -> Page:
        """The item for a response."""
        request = response.request
        return Page(
            url=response.url,
            status=response.status,
            title=title_of(response),
            depth=response.meta.get("depth", 0),
            content_type=_text(response.headers.get("Content-Type")),
            size=len(response.body),
            links=links,
            referrer=_text(request.headers.get("Referer")) if request else None,
            node=node_name(self.settings, self.name),
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )


def title_of(response: Response) -> str | None:
    """The title of an HTML page."""
    if not isinstance(response, HtmlResponse):
        return None
    words = response.xpath("string(//title)").get(default="").split()
    return " ".join(words) or None


def _text(header: bytes | None) -> str | None:
    return header.decode("latin-1") if header is not None else None
