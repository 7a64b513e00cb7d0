"""docs/many-machines.md: its server, its systemd unit and its Kubernetes Job work for a crawl."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from crawler.example_site import ExampleSite
from tests.crawler.conftest import HOST, in_a_thread
from tests.docs.pages import Block, blocks, page
from tests.docs.test_commands import PAGES, Place
from tests.support.servers import RedisServer

NAME = "docs/many-machines.md"
DOCKERFILE = page("Dockerfile")


def block(kind: str) -> Block:
    """The first of its kind."""
    return next(block for block in blocks() if block.page == NAME and block.kind == kind)


# The server -------------------------------------------------------------------------------------


def server_options() -> list[list[str]]:
    return [line.split() for line in block("conf").text.splitlines() if not line.startswith("#")]


@pytest.mark.slow
def test_crawl_with_the_rights_of_redis_conf(tmp_path: Path) -> None:
    network = ("bind", "port", "tls-")  # a test's server has a socket
    options = [words for words in server_options() if not words[0].startswith(network)]
    server = RedisServer(
        *(f"--{word}" if n == 0 else word for words in options for n, word in enumerate(words))
    )
    site = ExampleSite(PAGES, latency=0)
    server.start()
    try:
        with in_a_thread(site):
            crawler, operator, viewer = (
                Place(tmp_path, server, site, ":".join(user_and_password(name)) + "@")
                for name in ("crawler", "operator", "viewer")
            )
            crawler.run("scrapy crawl site -a url=https://example.com -s SEMAPHORE_RECOVERY_WAIT=0")
            operator.run("scrapy semaphore limit www.example.com 2")
            assert "www.example.com" in viewer.run("scrapy semaphore status")
            assert site.judge.missed(HOST) == site.judge.twice(HOST) == []
    finally:
        server.remove()


def user_and_password(name: str) -> tuple[str, str]:
    (words,) = [words for words in server_options() if words[:2] == ["user", name]]
    (password,) = [word[1:] for word in words if word.startswith(">")]
    return words[1], password


# systemd ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_systemd_unit_starts_a_crawl(tmp_path: Path, server: RedisServer) -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(block("ini").text)
    program, *arguments = shlex.split(unit["Service"]["ExecStart"])
    assert program.startswith(f"{unit['Service']['WorkingDirectory']}/")
    site = ExampleSite(PAGES, latency=0)
    with in_a_thread(site):
        line = shlex.join(["scrapy", *arguments]).replace("941%i", "0")
        Place(tmp_path, server, site).run(line)
    assert site.judge.missed(HOST) == []


@pytest.mark.slow
def test_systemd_verifies_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze")
    unit = tmp_path / "scrapy-crawl@.service"
    text = block("ini").text.replace("/srv/crawler/.venv/bin/scrapy", f"{sys.prefix}/bin/scrapy")
    unit.write_text(text)
    verified = subprocess.run(
        [analyze, "verify", "--man=no", str(unit).replace("@.", "@1.")],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    ours = [line for line in verified.stderr.splitlines() if "scrapy-crawl" in line]
    assert (verified.returncode, ours) == (0, [])


# Kubernetes -------------------------------------------------------------------------------------


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(block("yaml").text))


def job() -> dict[str, Any]:
    (job,) = [document for document in manifests() if document["kind"] == "Job"]
    return dict(job["spec"])


def test_the_job_agrees_with_the_image_the_server_and_itself() -> None:
    template = job()["template"]
    pod = template["spec"]
    (node,) = pod["containers"]
    assert "command" not in node, "the image's entry point stays"
    assert f"USER {pod['securityContext']['runAsUser']}:" in DOCKERFILE
    (workdir,) = re.findall(r"^WORKDIR (/crawl/data)$", DOCKERFILE, re.MULTILINE)
    mounts = {mount["mountPath"]: mount["name"] for mount in node["volumeMounts"]}
    assert set(mounts) == {workdir, "/tmp"}, "all else is read-only"
    assert set(mounts.values()) == {volume["name"] for volume in pod["volumes"]}
    assert "completions" not in job()
    (secret,) = [document for document in manifests() if document["kind"] == "Secret"]
    environment = {variable["name"]: variable for variable in node["env"]}
    key = environment["REDIS_URL"]["valueFrom"]["secretKeyRef"]
    assert key["name"] == secret["metadata"]["name"]
    user, password = user_and_password("crawler")
    for url in (secret["stringData"][key["key"]], block("python").text):
        assert f"rediss://{user}:{password}@" in url
    port = environment["SEMAPHORE_METRICS_PORT"]["value"]
    assert port == template["metadata"]["annotations"]["prometheus.io/port"]
    assert port == str(node["ports"][0]["containerPort"])


@pytest.mark.slow
def test_job_s_command_crawls(tmp_path: Path, server: RedisServer) -> None:
    (node,) = job()["template"]["spec"]["containers"]
    site = ExampleSite(PAGES, latency=0)
    with in_a_thread(site):
        Place(tmp_path, server, site).run(shlex.join(node["args"]))
    assert site.judge.missed(HOST) == []
