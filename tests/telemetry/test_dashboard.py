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
from tests.support.crawls import Crawl, asyncio_test
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

with_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool, of Debian's package prometheus, is not here"
)


def expressions() -> list[str]:
    return [target["expr"] for panel in PANELS for target in panel.get("targets", [])]


def families(names: Iterable[str]) -> set[str]:
    """Without what a histogram's series end in."""
    return {re.sub("_(bucket|count|sum)$", "", name) for name in names}


def promtool(*arguments: str, cwd: Path) -> None:
    run = subprocess.run(
        ["promtool", *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr


# Names ------------------------------------------------------------------------------------------


@asyncio_test
async def test_they_ask_for_what_a_node_exports_and_the_docs_name_all_of_it(
    server: RedisServer, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
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


# As Prometheus reads them -----------------------------------------------------------------------


@with_promtool
def test_prometheus_understands_the_dashboard_and_the_docs(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": expr.replace("$__rate_interval", "5m")}
        for number, expr in enumerate(expressions())
    ]
    rules_file = {"groups": [{"name": "dashboard", "rules": rules}]}
    (tmp_path / "dashboard.yml").write_text(json.dumps(rules_file))  # JSON is YAML, too
    promtool("check", "rules", "dashboard.yml", cwd=tmp_path)
    for name, text in BLOCKS.items():
        (tmp_path / name).write_text(text)
    promtool("check", "config", "prometheus.yml", cwd=tmp_path)


def crawl_of(held: str, waiting: str, granted: str, slow: str) -> list[dict[str, str]]:
    """The series of two nodes that share a scope with a limit of 4."""
    series = [
        {"series": f'semaphore_{name}{{scope="s", instance="{node}"}}', "values": values}
        for node in "ab"
        for name, values in (
            ("permits_held", held),
            ("limit", "4+0x80"),
            ("requests_waiting", waiting),
            ("permits_granted_total", granted),
        )
    ]
    for bound, values in (("0.1", slow), ("0.25", "0+100x80"), ("+Inf", "0+100x80")):
        name = f'semaphore_server_round_trip_seconds_bucket{{le="{bound}", instance="a"}}'
        series.append({"series": name, "values": values})
    return series


@with_promtool
@pytest.mark.parametrize(
    ("series", "alert"),
    [
        (crawl_of("2+0x80", "5+0x80", "0+9x80", "0+100x80"), None),
        (crawl_of("2 3 1 2 " * 20, "0+0x80", "0+9x80", "0+99x80"), None),
        (crawl_of("3+0x80", "5+0x80", "0+9x80", "0+100x80"), "SiteAboveItsLimit"),
        (crawl_of("0+0x80", "5+0x80", "9+0x80", "0+100x80"), "RequestsWaitInVain"),
        (crawl_of("0+0x80", "0+0x80", "9+0x80", "0+100x80"), None),
        (crawl_of("2+0x80", "0+0x80", "0+9x80", "0+90x80"), "SemaphoreServerIsSlow"),
    ],
    ids=["full", "read one after another", "above", "in vain", "idle", "slow"],
)
def test_the_rules_tell_trouble_from_work(
    tmp_path: Path, series: list[dict[str, str]], alert: str | None
) -> None:
    (tmp_path / RULES).write_text(BLOCKS[RULES])
    names = re.findall(r"alert: (\w+)", BLOCKS[RULES])
    queries = [
        {
            "expr": f'count(ALERTS{{alertname="{name}", alertstate="firing"}}) or vector(0)',
            "eval_time": "20m",
            "exp_samples": [{"labels": "{}", "value": int(name == alert)}],
        }
        for name in names
    ]
    test = {"interval": "15s", "input_series": series, "promql_expr_test": queries}
    tests = {"rule_files": [RULES], "evaluation_interval": "15s", "tests": [test]}
    (tmp_path / "tests.yml").write_text(json.dumps(tests))
    promtool("test", "rules", "tests.yml", cwd=tmp_path)
