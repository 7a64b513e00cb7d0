"""The example site counts what it should, and all its pages can be reached."""

from __future__ import annotations

import json
import re
from contextlib import closing
from http.client import HTTPConnection

import pytest

from crawler.example_site import FORBIDDEN, ExampleSite, page, path_of
from tests.crawler.conftest import serving
from tests.support.frontier import wait_until


def fetch(site: ExampleSite, path: str, host: str = "127.0.0.1") -> bytes:
    with closing(HTTPConnection("127.0.0.1", site.port)) as connection:
        connection.request("GET", path, headers={"Host": host})
        return connection.getresponse().read()


@pytest.mark.parametrize("pages", [1, 2, 9, 100, 300])
def test_every_page_is_reachable_by_links(pages: int) -> None:
    numbers = {path_of(number): number for number in range(pages)}
    found, to_visit = {"/"}, ["/"]
    while to_visit:
        links = re.findall('href="(.*?)"', page(numbers[to_visit.pop()], pages))
        new = {link for link in links if link != FORBIDDEN} - found
        found |= new
        to_visit += new
    assert found == set(numbers)


def test_the_judge_counts_pages_missed_and_fetched_twice() -> None:
    with serving(pages=3, latency=0) as site:
        for path in ("/", "/page/1", "/page/1", "/robots.txt", FORBIDDEN):
            fetch(site, path)
        fetch(site, "/page/2", host="other:80")
        record = site.judge.record("127.0.0.1")
        wait_until(lambda: not record.now)
        state = json.loads(fetch(site, "/_judge"))["127.0.0.1"]
    assert (record.robots, record.forbidden, record.most) == (1, 1, 1)
    assert state["pages"] == {"/": 1, "/page/1": 2}
    assert (state["missed"], state["twice"]) == (["/page/2"], ["/page/1"])
    assert site.judge.record("other").pages == {"/page/2": 1}
