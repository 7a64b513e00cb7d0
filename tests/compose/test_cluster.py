"""`docker compose up` and its variants, really run in podman, with a site that judges the nodes.

It takes minutes, root and packages: `make compose-test`, or `-m compose`.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compose import images
from tests.compose.cluster import Cluster
from tests.compose.engine import Engine, missing

pytestmark = pytest.mark.compose

LIMIT = 4
PAGES = "300"
NAMES = ("alone", "halted", "killed")  # of the site, one a test


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Up with three nodes, which crawl the example site."""
    if reason := missing():
        pytest.skip(reason)
    with (
        tempfile.TemporaryDirectory(prefix="sem-compose-") as directory,
        Engine(Path(directory)).running() as engine,
    ):
        images.make(engine)
        cluster = Cluster(engine, "semaphore", NAMES)
        cluster.compose("build", "--quiet")
        try:
            cluster.compose("up", "--detach")
            yield cluster
        finally:
            cluster.compose("down", "--volumes", "--timeout", "1")


def assert_well_crawled(cluster: Cluster, host: str) -> None:
    judged = cluster.judge(host)
    assert judged["missed"] == [], cluster.last_words()
    assert judged["twice"] == [], cluster.last_words()
    assert judged["forbidden"] == 0
    assert judged["now"] == 0
    assert judged["most"] == LIMIT  # it was used, and never passed


def test_up_crawls_the_example_site_with_three_nodes_that_then_stay_down(cluster: Cluster) -> None:
    cluster.until(cluster.nodes_have_ended)
    assert cluster.exit_statuses() == [0, 0, 0], cluster.last_words()
    assert_well_crawled(cluster, "site")
    assert cluster.log("node").count("Spider closed (finished)") == 3
    assert [one["RestartCount"] for one in cluster.containers("node")] == [0, 0, 0]


def test_run_crawls_with_one_node_and_its_pages_are_on_the_volume(cluster: Cluster) -> None:
    crawl = ("scrapy", "crawl", "site", "-a", "url=http://alone:8000/", "-O", "alone.jsonl")
    status, said = cluster.run(*crawl)
    assert status == 0, said
    assert_well_crawled(cluster, "alone")
    lines = cluster.run("cat", "alone.jsonl")[1].splitlines()
    assert len({json.loads(line)["url"] for line in lines}) == len(lines) == int(PAGES)


def test_a_crawl_that_was_stopped_goes_on_with_a_new_server_container(cluster: Cluster) -> None:
    up = ("up", "--detach", "--scale", "node=3")
    cluster.compose(*up, URL="http://halted:8000/")
    cluster.until(lambda: cluster.pages_asked_for("halted") > 40)
    cluster.compose("stop", "node")  # SIGTERM
    assert cluster.exit_statuses() == [1, 1, 1]  # there is work left
    assert cluster.log("node").count("Spider closed (shutdown)") == 3
    halfway = cluster.judge("halted")
    assert halfway["now"] == 0
    assert halfway["missed"]
    cluster.compose("rm", "--stop", "--force", "redis")
    cluster.compose(*up, URL="http://halted:8000/")
    cluster.until(cluster.nodes_have_ended)
    assert_well_crawled(cluster, "halted")


def test_a_killed_node_comes_back_and_the_crawl_is_finished(cluster: Cluster) -> None:
    cluster.compose("up", "--detach", "--scale", "node=10", URL="http://killed:8000/")
    cluster.until(lambda: cluster.pages_asked_for("killed") > 40)
    node = cluster.running("node")[0]
    assert node["State"]["Pid"] > 1
    os.kill(node["State"]["Pid"], signal.SIGKILL)
    cluster.until(cluster.nodes_have_ended)
    assert cluster.engine.ask(f"/containers/{node['Id']}/json")["RestartCount"] == 1
    judged = cluster.judge("killed")
    assert judged["missed"] == []
    assert judged["most"] <= LIMIT
    assert len(judged["twice"]) <= LIMIT  # what it had in hand


def test_the_server_asks_for_a_password_and_keeps_everything(cluster: Cluster) -> None:
    assert "NOAUTH" in cluster.inside("redis", "valkey-cli", "ping")
    assert cluster.server("ping") == "PONG"
    assert cluster.server("config get appendonly") == "appendonly yes"
    assert cluster.server("config get maxmemory-policy") == "maxmemory-policy noeviction"
    assert cluster.inside("redis", "stat", "-c", "%U", "/proc/1") == "valkey"
    (redis,) = cluster.running("redis")
    assert not redis["HostConfig"]["PortBindings"]
    assert list(redis["NetworkSettings"]["Networks"]) == ["semaphore_redis"]
    password = cluster.inside("redis", "cat", "/password/redis")
    assert len(password) == 64
    for service in ("redis", "node", "site"):
        assert password not in json.dumps(cluster.containers(service))


def test_a_node_is_nobody_special_and_can_build_nothing(cluster: Cluster) -> None:
    assert cluster.run("sh", "-c", "id -u; id -g")[1].split() == ["10001", "10001"]
    assert "Read-only file system" in cluster.run("touch", "/crawl/crawler/x")[1]
    assert "NoNewPrivs:\t1" in cluster.run("cat", "/proc/self/status")[1]
    for tool in ("pip", "hatchling"):  # the base image's own pip is not in the environment
        assert f"No module named {tool}" in cluster.run("python", "-m", tool)[1]


def test_grafana_asks_for_a_password_of_its_admin(cluster: Cluster) -> None:
    told = "no GRAFANA_PASSWORD: set it in the environment or in .env"
    assert cluster.run(service="grafana") == (1, told)
