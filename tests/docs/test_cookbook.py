"""docs/cookbook.md: two processes crawl with each of its settings, as they are written.

The test's site is their proxy, so they find it under each host's name.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lab.demo.site import ExampleSite
from tests.crawler.conftest import in_a_thread, spider_of
from tests.docs.pages import page
from tests.support.blocking import result_of
from tests.support.scrapy_process import ScrapyProcess
from tests.support.servers import RedisServer

PAGES = 6
ADDRESS = '"redis://redis.example.internal:6379/0"'
PROXIES = '["http://10.0.0.1:3128", "http://10.0.0.2:3128"]'
RECIPES = dict(re.findall(r"^## (.+)\n((?:(?!^## ).*\n)+)", page("docs/cookbook.md"), re.MULTILINE))
HOSTS = {
    "One site": {"example.com": 2, "www.example.com": 2},
    "A broad crawl": {"a.example.org": 1, "b.example.org": 1, "example.com": 1},
    "An API's quota": {"api.example.com": 2},
    "Rotating proxies": {"example.com": 8},
    "Many jobs": {"example.com": 4},
}
"""What each recipe crawls, and how many requests it may have open there."""
SOONER = {"A broad crawl": ("-s", "DOWNLOAD_DELAY=0.05")}


def written(recipe: str, directory: Path, server: RedisServer, site: ExampleSite) -> None:
    """Write a recipe's files into a project, for this server and these proxies."""
    proxies = [site.url, f"http://127.0.0.1:{result_of(site.listen())}"]
    project = directory / "shop"
    (project / "spiders").mkdir(parents=True)
    for name, text in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", RECIPES[recipe], re.DOTALL):
        here = text.replace(ADDRESS, repr(server.url)).replace(PROXIES, repr(proxies))
        (project / name).write_text(here)
    urls = [f"http://{host}/" for host in HOSTS[recipe]]
    for name in ("__init__.py", "spiders/__init__.py"):
        (project / name).touch()
    (project / "spiders/pages.py").write_text(spider_of("pages", *urls))
    (directory / "scrapy.cfg").write_text("[settings]\ndefault = shop.settings\n")


@pytest.mark.parametrize("recipe", RECIPES)
def test_settings_crawl(recipe: str, tmp_path: Path, server: RedisServer) -> None:
    site = ExampleSite(PAGES, latency=0.02)
    with in_a_thread(site):
        written(recipe, tmp_path, server, site)
        nodes = [
            ScrapyProcess(
                *("crawl", "pages", "-o", f"{number}.jsonl", *SOONER.get(recipe, ())),
                directory=tmp_path,
                log_file=tmp_path / f"{number}.log",
                http_proxy=site.url,
                TEAM=f"team-{number}",
            )
            for number in range(2)
        ]
        assert [node.wait() for node in nodes] == [0, 0], nodes[0].log
    for node in nodes:
        assert re.findall(r"^.*\] (?:WARNING|ERROR):.*", node.log, re.MULTILINE) == []
    for host, limit in HOSTS[recipe].items():
        assert site.record(host).missed == []
        assert site.record(host).most <= limit
    ports = {visit.transport.get_extra_info("sockname")[1] for visit in site.visits}
    assert len(ports) == (2 if "proxies.py" in RECIPES[recipe] else 1)
