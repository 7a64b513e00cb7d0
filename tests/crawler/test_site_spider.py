"""A response becomes one item, and its links become requests."""

from __future__ import annotations

from scrapy import Request
from scrapy.http import HtmlResponse, Response
from scrapy.settings import Settings

from crawler.arguments import SiteArguments
from crawler.items import Page
from crawler.spiders.site import SiteSpider

HTML = b"""<html><head><title> A
 title </title></head><body>
<a href="/one#part">1</a> <a href="one#other">again</a> <a href="/two.pdf">2</a>
<a href="https://other.org/">away</a> <a href="mailto:me@example.com">mail</a> <a href="http://[">?</a>
</body></html>"""
LINKS = ["http://example.com/one", "http://example.com/two.pdf", "https://other.org/"]


def answer(response: Response, **given: str) -> tuple[Page, list[str]]:
    spider = SiteSpider(SiteArguments.parse({"url": "http://example.com/", **given}))
    spider.settings = Settings({"SEMAPHORE_NODE": "node-7"})
    request = Request(response.url, headers={"Referer": "http://example.com/from"})
    request.meta["depth"] = 3
    response.request = request
    page, *requests = spider.parse(response)
    assert isinstance(page, Page)
    return page, [request.url for request in requests if isinstance(request, Request)]


def html(body: bytes = HTML, status: int = 200) -> HtmlResponse:
    headers = {"Content-Type": "text/html"}
    return HtmlResponse("http://example.com/", status=status, headers=headers, body=body)


def test_a_page_becomes_one_item_and_its_links_requests() -> None:
    page, followed = answer(html())
    assert page.time.endswith("+00:00")
    page.time = ""
    assert page == Page(
        url="http://example.com/",
        status=200,
        title="A title",
        depth=3,
        content_type="text/html",
        size=len(HTML),
        links=LINKS,
        referrer="http://example.com/from",
        node="node-7",
        time="",
    )
    assert followed == LINKS
    assert answer(html(), allow="one")[1] == LINKS[:1]
    some, followed = answer(html(), deny=r"\.pdf$")
    assert (some.links, followed) == (LINKS, [LINKS[0], LINKS[2]])


def test_what_is_broken_or_not_html_is_an_item_too() -> None:
    page, followed = answer(Response("http://example.com/two.pdf", body=b"%PDF"))
    assert (page.title, page.content_type, page.size, followed) == (None, None, 4, [])
    for body in (b"", b"\xff\x00\xfe", b"<title></title>"):
        page, followed = answer(html(body, status=404))
        assert (page.status, page.title, followed) == (404, None, [])
