"""The example site counts what it should, and all its pages can be reached."""

from __future__ import annotations

import json
from contextlib import closing
from http.client import HTTPConnection

from crawler.example_site import FORBIDDEN, ExampleSite
from tests.crawler.conftest import serving
from tests.support.frontier import wait_until


def fetch(site: ExampleSite, path: str, host: str = "127.0.0.1") -> bytes:
    with closing(HTTPConnection("127.0.0.1", site.port)) as connection:
        connection.request("GET", path, headers={"Host": host})
        return connection.getresponse().read()


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
