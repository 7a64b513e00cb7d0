"""The alert rules and the dashboard query metrics that exist, and find the right values."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import aiohttp
import pytest
import yaml
from scrapy import Request

from semaphore_middleware.console import node_metrics as metrics
from tests.console.pages import serving
from tests.console.scrapes import address, scrape, visit
from tests.support.crawls import Crawl, Log
from tests.support.paths import REPOSITORY
from tests.support.servers import RedisServer, free_port
from tests.support.shared_crawl import set_one_aside
from tests.support.site import Site
from tests.support.times import TIMEOUT_S

DASHBOARD: dict[str, Any] = json.loads(
    (REPOSITORY / "docker/grafana/dashboards/scrapy-semaphore.json").read_text("utf-8")
)
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
DOCS = (REPOSITORY / "docs/metrics.md").read_text("utf-8")
[CONFIGURATION] = re.findall(r"```yaml\n# prometheus.yml\n(.*?)```", DOCS, re.DOTALL)
RULES = REPOSITORY / "docker/scrapy-semaphore.rules.yml"
TESTS_OF_RULES = RULES.with_name("scrapy-semaphore.rules.test.yml")
VARIABLES = {"$__rate_interval": "1m", "$scope": ".*", "$node": ".*", "15s": "1s"}  # short steps
NEEDS_PROMETHEUS = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="no prometheus: apt-get install prometheus"
)
NEEDS_PROMTOOL = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool: apt-get install prometheus"
)
METRIC = r"\bscrapy_semaphore_[a-z_]+"


def expressions() -> list[str]:
    return [target["expr"] for panel in PANELS for target in panel.get("targets", [])]


def families(names: Iterable[str]) -> set[str]:
    """The name without the suffix of a histogram's series."""
    return {re.sub("_(bucket|count|sum)$", "", name) for name in names}


def documented(text: str) -> set[str]:
    """The metrics before the colons of list items."""
    items = re.findall(rf"^- (`{METRIC}`.*?):", text, re.MULTILINE)
    return {name for item in items for name in re.findall(METRIC, item)}


async def test_they_ask_for_what_is_exported(server: RedisServer, site: Site, caplog: Log) -> None:
    caplog.set_level("INFO", metrics.__name__)
    crawl = Crawl(server, Request(site.url("/slow/")), SEMAPHORE_METRICS=0)
    await site.until(lambda: site.now == 1)
    exported = {name for name, _ in (await scrape(await address(caplog))).samples}
    variables = [str(variable.get("query")) for variable in DASHBOARD["templating"]["list"]]
    await set_one_aside(server, "shop")
    async with serving(server, None) as page:
        by_page = {name for name, _ in (await scrape(f"{page.url}metrics")).samples}
    for text in variables:
        assert set(re.findall(METRIC, text)) <= exported | by_page
    assert set(re.findall(METRIC, RULES.read_text("utf-8"))) <= exported | by_page
    of_all, of_node = DOCS.split("## Of a node")
    assert documented(of_node) == families(exported)
    assert documented(of_all) == by_page
    assert families(re.findall(METRIC, "\n".join(expressions()))) == families(exported | by_page)
    await crawl.gave_back(1, site)


@NEEDS_PROMTOOL
def test_prometheus_understands_the_dashboard_and_the_docs(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": expr.replace("$__rate_interval", "5m")}
        for number, expr in enumerate(expressions())
    ]
    rules_file = {"groups": [{"name": "dashboard", "rules": rules}]}
    (tmp_path / "dashboard.yml").write_text(json.dumps(rules_file))  # JSON is YAML, too
    (tmp_path / "prometheus.yml").write_text(CONFIGURATION)
    shutil.copy(RULES, tmp_path)
    for check in (("rules", "dashboard.yml"), ("rules", RULES), ("config", "prometheus.yml")):
        subprocess.run(["promtool", "check", *check], cwd=tmp_path, check=True)


@NEEDS_PROMTOOL
def test_each_alert_fires_and_ends() -> None:
    subprocess.run(["promtool", "test", "rules", TESTS_OF_RULES], check=True)


def test_each_alert_has_a_time_when_it_fires_and_later_one_when_it_does_not() -> None:
    fired = set()
    for test in yaml.safe_load(TESTS_OF_RULES.read_text("utf-8"))["tests"]:
        times = [one.get("exp_samples", []) for one in test["promql_expr_test"]]
        assert (times[0], times[-1]) == ([], []), test["name"]
        for sample in itertools.chain(*times):
            fired |= set(re.findall('alertname="(.*?)"', sample["labels"]))
    assert fired == set(re.findall("- alert: (.*)", RULES.read_text("utf-8")))


@NEEDS_PROMTOOL
async def test_prometheus_understands_the_metrics_of_all_nodes(server: RedisServer) -> None:
    async with serving(server, None) as page:
        _, _, text = await visit(f"{page.url}metrics")
    check = await asyncio.create_subprocess_exec(
        *("promtool", "check", "metrics"), stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    _, told = await check.communicate(text.encode())
    assert (check.returncode, told) == (0, b"")


@asynccontextmanager
async def prometheus(directory: Path, **targets: str) -> AsyncIterator[str]:
    """The address of a Prometheus that scrapes these addresses, by job."""
    jobs = [
        {"job_name": name, "static_configs": [{"targets": [target]}]}
        for name, target in targets.items()
    ]
    (directory / "prometheus.yml").write_text(
        json.dumps({"global": {"scrape_interval": "250ms"}, "scrape_configs": jobs})
    )
    own = f"127.0.0.1:{free_port()}"
    process = await asyncio.create_subprocess_exec(
        "prometheus",
        f"--config.file={directory}/prometheus.yml",
        f"--storage.tsdb.path={directory}/data",
        f"--web.listen-address={own}",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://{own}"
    finally:
        process.terminate()
        await process.wait()


async def evaluated(prometheus: str, expression: str) -> list[float]:
    """The values that Prometheus finds now; empty while it does not answer."""
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    query = urlencode({"query": expression})
    with suppress(aiohttp.ClientError):
        status, _, text = await visit(f"{prometheus}/api/v1/query?{query}")
        if status == 200:
            return [float(found["value"][1]) for found in json.loads(text)["data"]["result"]]
    return []


@pytest.mark.slow
@NEEDS_PROMETHEUS
async def test_each_panel_shows_something_and_nothing_is_counted_twice(
    server: RedisServer, site: Site, caplog: Log, tmp_path: Path
) -> None:
    caplog.set_level("INFO", metrics.__name__)
    requests = [Request(site.url(f"/slow/{number}")) for number in range(3)]
    crawl = Crawl(server, *requests, SEMAPHORE_METRICS=0, SEMAPHORE_LIMITS={"127.0.0.1": 2})
    await site.until(lambda: site.now == 2)
    await set_one_aside(server, "shop")
    async with serving(server, None) as page:
        node = urlsplit(await address(caplog)).netloc
        both = {"nodes": node, "serve": urlsplit(page.url).netloc}
        async with prometheus(tmp_path, **both) as asked:
            for expression in expressions():
                async with asyncio.timeout(TIMEOUT_S):
                    while not await evaluated(asked, expression):  # noqa: ASYNC110
                        await asyncio.sleep(0.1)
            held, limit = (target["expr"] for target in PANELS[1]["targets"])
            assert await evaluated(asked, "sum(up)") == [2]
            assert await evaluated(asked, held) == await evaluated(asked, limit) == [2]
            assert await evaluated(asked, PANELS[2]["targets"][0]["expr"]) == [0]
    await crawl.finished(site)
