"""Small spiders, each a habit of ordinary projects. Each crawls the site of its argument `site`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any, ClassVar

import redis
import scrapy
from scrapy import signals
from scrapy.exceptions import DontCloseSpider
from scrapy.http import Response
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule, SitemapSpider

from tests.habits.site import PAGES


class Book(scrapy.Item):
    title = scrapy.Field()
    copies = scrapy.Field()


@dataclass
class Author:
    name: str
    born: date | None = None


def title_of(response: Response) -> str:
    return response.css("h1::text").get("")


class Habit(scrapy.Spider):
    """Makes an item of each of the pages that it starts with."""

    site = ""
    start_pages: ClassVar = range(1)

    async def start(self) -> AsyncIterator[Any]:
        for number in self.start_pages:
            yield scrapy.Request(f"{self.site}/page/{number}")

    def parse(self, response: Response) -> Any:
        yield {"title": title_of(response)}


class StartUrls(scrapy.Spider):
    """`start_urls`, which Scrapy does not filter: one of them is there twice."""

    name = "start_urls"
    site = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.start_urls = [f"{self.site}/page/{n}" for n in (*range(PAGES), 0)]

    def parse(self, response: Response) -> Iterator[Any]:
        yield {"title": title_of(response)}


class Details(Habit):
    """An item is begun on one page, and goes on in `meta` and `cb_kwargs`."""

    name = "details"

    def parse(self, response: Response) -> Iterator[Any]:
        for number in range(1, PAGES):
            yield response.follow(
                f"/page/{number}",
                self.parse_details,
                meta={
                    "item": Book(copies=number),
                    "range": (1, number),
                    "day": date(2026, 11, number),
                },
                cb_kwargs={"author": Author(f"author {number}"), "seen": {number: "yes"}},
            )

    def parse_details(
        self, response: Response, author: Author, seen: dict[int, str]
    ) -> Iterator[Any]:
        item = response.meta["item"]
        item["title"] = f"{title_of(response)} {author.name} {response.meta['day']}"
        assert isinstance(response.meta["range"], tuple)
        assert seen == {item["copies"]: "yes"}
        yield item


class Popping(Habit):
    """Pops URLs from a list on a Redis server when it is idle, as the spiders of scrapy-redis."""

    name = "popping"
    start_pages = range(0)
    list: redis.Redis

    @classmethod
    def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Popping:
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.list = redis.Redis.from_url(os.environ["HABITS_REDIS_URL"])
        crawler.signals.connect(spider.pop, signals.spider_idle)
        return spider

    def pop(self) -> None:
        found: Any = self.list.lpop("habits:urls", 5)
        for url in found or ():
            self.crawler.engine.crawl(scrapy.Request(url.decode(), self.parse, dont_filter=True))
        if found or not self.list.exists("habits:closed"):
            raise DontCloseSpider


class Sessions(Habit):
    """A form logs each user in; `cookiejar` keeps their sessions apart."""

    name = "sessions"

    async def start(self) -> AsyncIterator[Any]:
        for user in ("ann", "bob", "eve"):
            yield scrapy.FormRequest(
                f"{self.site}/login", formdata={"user": user}, meta={"cookiejar": user}
            )

    def parse(self, response: Response) -> Iterator[Any]:
        for number in range(6):
            user = response.meta["cookiejar"]
            url, meta = f"/private/{number}{user}", {"cookiejar": user}
            yield response.follow(url, self.parse_private, meta=meta)

    def parse_private(self, response: Response) -> Iterator[Any]:
        yield {"title": title_of(response), "user": response.meta["cookiejar"]}


class Login(Habit):
    """A form logs in, and all that follows is read in the default session."""

    name = "login"

    def parse(self, response: Response) -> Iterator[Any]:
        url = response.urljoin("/login")
        yield scrapy.FormRequest(url, self.welcome, formdata={"user": "ann"})

    def welcome(self, response: Response) -> Iterator[Any]:
        yield from response.follow_all([f"/private/{n}" for n in range(20)], self.parse_private)

    def parse_private(self, response: Response) -> Iterator[Any]:
        yield {"title": title_of(response)}


class Async(Habit):
    """A callback awaits a response of its own."""

    name = "async"
    start_pages = range(3)

    async def parse(self, response: Response) -> AsyncIterator[Any]:
        number = int(response.url.rpartition("/")[2])
        url = response.urljoin(f"/page/{number + 3}")
        more = await self.crawler.engine.download_async(scrapy.Request(url))
        yield {"titles": [title_of(response), title_of(more)]}
        yield response.follow(f"/page/{number + 6}", self.parse_last)

    async def parse_last(self, response: Response) -> AsyncIterator[Any]:
        yield {"titles": [title_of(response)]}


class Unfiltered(Habit):
    """Fetches a page more than once, on purpose."""

    name = "dont_filter"

    def parse(self, response: Response) -> Iterator[Any]:
        visit = response.meta.get("visit", 1)
        yield {"title": title_of(response), "visit": visit}
        if visit < 4:
            meta = {"visit": visit + 1}
            yield scrapy.Request(response.url, self.parse, dont_filter=True, meta=meta)
        if visit == 1:
            yield response.follow("/page/1", self.parse, meta={"visit": 4})
            yield response.follow("/page/1", self.parse, meta={"visit": 4})


class Errors(Habit):
    """Errbacks, retries, redirects, and statuses that are handled."""

    name = "errors"
    handle_httpstatus_list = (404,)

    async def start(self) -> AsyncIterator[Any]:
        for path in ("/page/1", "/nothing", "/unstable", "/moved"):
            yield scrapy.Request(f"{self.site}{path}", errback=self.on_error)
        yield scrapy.Request("http://127.0.0.1:1/", errback=self.on_error)

    def parse(self, response: Response) -> Iterator[Any]:
        yield {"status": response.status, "title": title_of(response)}

    def on_error(self, failure: Any) -> Iterator[Any]:
        yield {"error": failure.type.__name__, "url": failure.request.url}


class Rules(CrawlSpider):
    """A `CrawlSpider`, which follows what its rules extract."""

    name = "rules"
    site = ""
    rules = (Rule(LinkExtractor(allow=r"/page/"), callback="parse_page", follow=True),)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.start_urls = [f"{self.site}/page/0"]

    def parse_page(self, response: Response) -> Iterator[Any]:
        yield {"title": title_of(response), "text": response.meta["link_text"]}


class Sitemap(SitemapSpider):
    """A `SitemapSpider`, which reads a sitemap first."""

    name = "sitemap"
    site = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sitemap_urls = [f"{self.site}/sitemap.xml"]

    def parse(self, response: Response) -> Iterator[Any]:
        yield {"title": title_of(response)}


class Files(Habit):
    """A pipeline that downloads the files of items."""

    name = "files"
    start_pages = range(4)

    def parse(self, response: Response) -> Iterator[Any]:
        number = response.url.rpartition("/")[2]
        yield {"title": title_of(response), "file_urls": [response.urljoin(f"/file/{number}")]}


class Idle(Habit):
    """One more page, when everything else is done."""

    name = "idle"
    start_pages = range(4)
    has_asked = False

    @classmethod
    def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Idle:
        spider = super().from_crawler(crawler, *args, **kwargs)
        crawler.signals.connect(spider.ask_once, signals.spider_idle)
        return spider

    def ask_once(self) -> None:
        if not self.has_asked:
            self.has_asked = True
            self.crawler.engine.crawl(scrapy.Request(f"{self.site}/page/11"))
            raise DontCloseSpider


class Custom(Habit):
    """`custom_settings`: how deep, in which order, with which headers."""

    name = "custom_settings"
    custom_settings = {  # noqa: RUF012
        "DEPTH_LIMIT": 2,
        "DEPTH_PRIORITY": 1,
        "SCHEDULER_MEMORY_QUEUE": "scrapy.squeues.FifoMemoryQueue",
        "DEFAULT_REQUEST_HEADERS": {"Cookie": "user=custom"},
        "COOKIES_ENABLED": False,
    }

    async def start(self) -> AsyncIterator[Any]:
        yield scrapy.Request(f"{self.site}/private/0", self.parse_private)
        yield scrapy.Request(f"{self.site}/page/0")

    def parse_private(self, response: Response) -> Iterator[Any]:
        yield {"title": title_of(response)}

    def parse(self, response: Response) -> Iterator[Any]:
        yield {"title": title_of(response), "depth": response.meta["depth"]}
        yield from response.follow_all(response.css("a::attr(href)").getall())
