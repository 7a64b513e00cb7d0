"""docs/production.md, deployment.md: server, systemd unit and Kubernetes Job work for a crawl."""

from __future__ import annotations

import configparser
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lab.demo.site import ExampleSite
from tests.crawler.conftest import HOST, serving
from tests.docs.pages import blocks
from tests.docs.test_commands import PAGES, Place
from tests.support.servers import RedisServer


def block(kind: str) -> str:
    """The first of its kind."""
    pages = ("docs/production.md", "docs/deployment.md")
    return next(block.text for block in blocks() if block.page in pages and block.kind == kind)


def server_options() -> list[list[str]]:
    return [line.split() for line in block("conf").splitlines() if not line.startswith("#")]


def user_and_password(name: str) -> str:
    (words,) = [words for words in server_options() if words[:2] == ["user", name]]
    (password,) = [word[1:] for word in words if word.startswith(">")]
    return f"{name}:{password}@"


@pytest.fixture
def site() -> Iterator[ExampleSite]:
    with serving(PAGES, latency=0) as site:
        yield site


@pytest.mark.slow
def test_crawl_with_the_rights_of_redis_conf(tmp_path: Path, site: ExampleSite) -> None:
    network = ("bind", "port", "tls-")  # a test's server has a socket
    options = [words for words in server_options() if not words[0].startswith(network)]
    given = (f"--{word}" if n == 0 else word for words in options for n, word in enumerate(words))
    with RedisServer(*given) as server:
        crawler, operator, viewer = (
            Place(tmp_path, server, site, user_and_password(name))
            for name in ("crawler", "operator", "viewer")
        )
        crawler.run("scrapy crawl site -a url=https://example.com -s SEMAPHORE_RECOVERY_WAIT=0")
        operator.run("scrapy semaphore limit www.example.com 2")
        assert "www.example.com" in viewer.run("scrapy semaphore status")
        assert site.record(HOST).missed == site.record(HOST).twice == []


def command_of_systemd() -> list[str]:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(block("ini"))
    program, *arguments = shlex.split(unit["Service"]["ExecStart"])
    assert program.startswith(f"{unit['Service']['WorkingDirectory']}/")
    return ["scrapy", *arguments]


def command_of_kubernetes() -> list[str]:
    (job,) = (one for one in yaml.safe_load_all(block("yaml")) if one["kind"] == "Job")
    (node,) = job["spec"]["template"]["spec"]["containers"]
    return list(node["args"])


@pytest.mark.slow
@pytest.mark.parametrize("command", [command_of_systemd(), command_of_kubernetes()])
def test_their_commands_crawl(
    tmp_path: Path, server: RedisServer, site: ExampleSite, command: list[str]
) -> None:
    Place(tmp_path, server, site).run(shlex.join(command).replace("941%i", "0"))
    assert site.record(HOST).missed == []
