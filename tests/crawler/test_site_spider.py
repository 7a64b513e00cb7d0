"""A response becomes one item, and its links become requests."""

from __future__ import annotations

import pytest
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.http import HtmlResponse, Response
from scrapy.settings import Settings

from crawler.items import Page
from crawler.spiders.site import SiteSpider

URL = "http://www.example.com/"
HTML = b"""<html><head><title>A title</title></head><body>
<a href="/one">1</a> <a href="one">again</a> <a href="https://other.org/">away</a>
<a href="mailto:me@example.com">mail</a> <a href="http://[">?</a>
</body></html>"""
LINKS = ["http://www.example.com/one", "https://other.org/"]


def results_of(response: Response) -> tuple[Page, list[str]]:
    response.request = Request(response.url, meta={"depth": 3})
    page, *requests = SiteSpider(URL).parse(response)
    assert isinstance(page, Page)
    return page, [request.url for request in requests if isinstance(request, Request)]


def html(body: bytes, status: int = 200) -> HtmlResponse:
    return HtmlResponse(URL, status=status, body=body)


def test_a_page_becomes_one_item_and_its_links_requests() -> None:
    page, followed = results_of(html(HTML))
    assert page == Page(url=URL, status=200, title="A title", depth=3)
    assert followed == LINKS


def test_what_is_broken_or_not_html_is_an_item_too() -> None:
    page, followed = results_of(Response(URL, body=b"%PDF"))
    assert (page.title, followed) == (None, [])
    for body in (b"", b"\xff\x00\xfe", b"<title></title>"):
        page, followed = results_of(html(body, status=404))
        assert (page.status, page.title, followed) == (404, None, [])


@pytest.mark.parametrize(
    ("given", "name", "most"),
    [
        ({}, "example.com", 0),
        ({"CRAWL": "mine", "CRAWL_MAX_PAGES": "5"}, "mine", 5),
    ],
)
def test_a_site_is_a_crawl_unless_the_command_line_names_another(
    given: dict[str, str], name: str, most: int
) -> None:
    crawler = Crawler(SiteSpider, Settings(given, priority="cmdline"))
    spider = SiteSpider.from_crawler(crawler, URL)
    assert spider.allowed_domains == ["example.com"]
    assert (crawler.settings["CRAWL"], crawler.settings.getint("CRAWL_MAX_PAGES")) == (name, most)
