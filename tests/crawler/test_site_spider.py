"""A response becomes one item, and its links become requests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scrapy import Request
from scrapy.crawler import Crawler
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


GOOD = {"url": "https://example.com"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "no start URL"),
        ({"url": " , "}, "no start URL"),
        ({"url": "ftp://example.com"}, "'ftp://example.com'"),
        ({"url": "example.com"}, "begins with http:// or https://"),
        ({"url": "https://"}, "'https://'"),
        ({"url": "https://example.com:port"}, "'https://example.com:port'"),
        ({"url": "https://[::1"}, "'https://[::1'"),
        ({**GOOD, "allow": "("}, "-a allow=(: not a regular expression"),
        ({**GOOD, "deny": "*"}, "-a deny=*: not a regular expression"),
        ({**GOOD, "max_pages": "-1"}, "-a max_pages=-1: a whole number from 0"),
        ({**GOOD, "depth": "1.5"}, "-a depth=1.5: a whole number from 0"),
        ({**GOOD, "depth": ""}, "-a depth=: a whole number from 0"),
        ({"urls": "/no/such/file"}, "-a urls=/no/such/file: cannot read this file: No such file"),
        ({**GOOD, "colour": "red"}, "-a colour: no such argument, allowed are url, urls"),
    ],
)
def test_a_bad_argument_is_reported_in_one_line(given: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        SiteArguments.parse(given)
    assert "\n" not in str(error.value)


def test_start_urls_come_from_arguments_and_files_each_once(tmp_path: Path) -> None:
    urls = tmp_path / "urls"
    urls.write_text("\ufeff# ours\nhttp://c.org/\n\n  http://a.org/  \n")
    given = {"url": "http://a.org/, http://b.org/ http://a.org/", "urls": str(urls)}
    assert SiteArguments.parse(given).urls == ("http://a.org/", "http://b.org/", "http://c.org/")
    urls.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="it is not UTF-8 text"):
        SiteArguments.parse(given)


@pytest.mark.parametrize(
    ("urls", "host"),
    [
        ("https://www.example.com/ http://example.com:8080/a", "example.com"),
        ("http://www.com/", "www.com"),
        ("http://b\u00fccher.example/ http://WWW.xn--bcher-kva.example/", "xn--bcher-kva.example"),
    ],
)
def test_www_stands_for_the_whole_site(urls: str, host: str) -> None:
    assert SiteArguments.parse({"url": urls}).hosts == [host]


def test_the_same_arguments_make_the_same_crawl_and_others_another() -> None:
    name = SiteArguments.parse(GOOD).crawl_name
    assert name.startswith("example.com-")
    assert name == SiteArguments.parse({**GOOD, "depth": "0"}).crawl_name
    for other in ({**GOOD, "max_pages": "5"}, {"url": "https://example.com/a"}):
        assert name != SiteArguments.parse(other).crawl_name


def test_an_empty_name_on_the_command_line_leaves_the_arguments_to_name_the_crawl() -> None:
    """As docker-compose.yml passes it."""
    crawler = Crawler(SiteSpider, Settings({"CRAWL": ""}, priority="cmdline"))
    SiteSpider.from_crawler(crawler, **GOOD)
    assert crawler.settings["CRAWL"] == SiteArguments.parse(GOOD).crawl_name
