"""The profile `monitoring`: Prometheus finds every node; Grafana wants a password."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.compose.cluster import PROFILE, Cluster
from tests.compose.engine import Engine
from tests.support.paths import REPOSITORY

pytestmark = pytest.mark.compose

needs_prometheus = pytest.mark.skipif(
    not shutil.which("prometheus"), reason="no prometheus here: apt-get install prometheus"
)

TARGETS = """\
import urllib.request
print(urllib.request.urlopen("http://127.0.0.1:9090/api/v1/targets").read().decode())
"""


@pytest.fixture(scope="module")
def cluster(engine: Engine) -> Iterator[Cluster]:
    cluster = Cluster(engine, "monitored")
    try:
        cluster.compose("build", "--quiet")
        yield cluster
    finally:
        cluster.compose(*PROFILE, "down", "--volumes", "--timeout", "1")


@needs_prometheus
def test_the_configuration_of_prometheus_is_valid() -> None:
    file = REPOSITORY / "docker/prometheus.yml"
    subprocess.run(["promtool", "check", "config", file], check=True)


@needs_prometheus
def test_prometheus_finds_the_nodes_however_many_there_are(cluster: Cluster) -> None:
    cluster.compose("up", "--detach", NODES="2", PAGES="3000")
    cluster.compose(*PROFILE, "up", "--detach", "prometheus")
    cluster.until(lambda: targets(cluster).keys() == addresses(cluster, nodes=2))
    cluster.compose("up", "--detach", "--scale", "node=5", PAGES="3000")
    cluster.until(lambda: targets(cluster).keys() == addresses(cluster, nodes=5))
    (prometheus,) = cluster.running("prometheus")
    published = prometheus["HostConfig"]["PortBindings"]
    assert [one["HostIp"] for one in published["9090/tcp"]] == ["127.0.0.1"]


@needs_prometheus
def test_prometheus_reads_every_node(cluster: Cluster) -> None:
    cluster.compose("up", "--detach", PAGES="3000")
    cluster.compose(*PROFILE, "up", "--detach", "prometheus")
    nodes = dict.fromkeys(addresses(cluster, nodes=3), "up")
    cluster.until(lambda: targets(cluster) == nodes)


def targets(cluster: Cluster) -> dict[str, str]:
    """What Prometheus knows of: address to health."""
    try:
        told = json.loads(cluster.inside("prometheus", "python3", "-c", TARGETS))
    except subprocess.CalledProcessError:  # it does not listen yet
        return {}
    found = told["data"]["activeTargets"]
    return {target["labels"]["instance"]: target["health"] for target in found}


def addresses(cluster: Cluster, nodes: int) -> set[str]:
    running = cluster.running("node")
    assert len(running) == nodes
    networks = [one["NetworkSettings"]["Networks"]["monitored_default"] for one in running]
    return {f"{network['IPAddress']}:9410" for network in networks}


def test_grafana_asks_for_a_password_of_its_admin(cluster: Cluster) -> None:
    status, told = cluster.run(service="grafana")
    assert status == 1
    assert told == "no GRAFANA_PASSWORD: set it in the environment or in .env"
