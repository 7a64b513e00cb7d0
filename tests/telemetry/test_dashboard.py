"""What docs/metrics.md and the dashboard ask Prometheus for is there, and says what it should."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request

from semaphore_middleware.telemetry import prometheus as metrics
from tests.support.crawls import Crawl, Log
from tests.support.paths import REPOSITORY
from tests.support.servers import RedisServer
from tests.support.site import Site
from tests.telemetry.scrapes import address, scrape

DASHBOARD: dict[str, Any] = json.loads(
    (REPOSITORY / "docker/grafana/dashboards/scrapy-semaphore.json").read_text("utf-8")
)
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
DOCS = (REPOSITORY / "docs/metrics.md").read_text("utf-8")
BLOCKS = dict(re.findall(r"```yaml\n# (\S+)\n(.*?)```", DOCS, re.DOTALL))
RULES = "scrapy-semaphore.rules.yml"
METRIC = r"\bsemaphore_[a-z_]+"


def expressions() -> list[str]:
    return [target["expr"] for panel in PANELS for target in panel.get("targets", [])]


def families(names: Iterable[str]) -> set[str]:
    """Without what a histogram's series end in."""
    return {re.sub("_(bucket|count|sum)$", "", name) for name in names}


async def test_they_ask_for_what_is_exported(server: RedisServer, site: Site, caplog: Log) -> None:
    caplog.set_level("INFO", metrics.__name__)
    crawl = Crawl(server, Request(site.url("/slow/")), SEMAPHORE_METRICS_PORT=0)
    await site.until(lambda: site.now == 1)
    exported = {name for name, _ in (await scrape(await address(caplog))).samples}
    await crawl.gave_back(1, site)
    variables = [str(variable.get("query")) for variable in DASHBOARD["templating"]["list"]]
    for text in (*expressions(), *variables, BLOCKS[RULES]):
        assert set(re.findall(METRIC, text)) <= exported
    assert set(re.findall(rf"^\| `({METRIC})`", DOCS, re.MULTILINE)) == families(exported)
    assert families(re.findall(METRIC, "\n".join(expressions()))) == families(exported)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here")
def test_prometheus_understands_the_dashboard_and_the_docs(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": expr.replace("$__rate_interval", "5m")}
        for number, expr in enumerate(expressions())
    ]
    rules_file = {"groups": [{"name": "dashboard", "rules": rules}]}
    (tmp_path / "dashboard.yml").write_text(json.dumps(rules_file))  # JSON is YAML, too
    for name, text in BLOCKS.items():
        (tmp_path / name).write_text(text)
    for check in (("rules", "dashboard.yml"), ("config", "prometheus.yml")):
        subprocess.run(["promtool", "check", *check], cwd=tmp_path, check=True)
