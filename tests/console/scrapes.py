"""Scrapes of metrics, as Prometheus makes them."""

from __future__ import annotations

import re
import socket

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.nodes import eventually
from tests.support.times import TIMEOUT_S

HOST = "127.0.0.1"


class Scrape:
    """The samples of one scrape."""

    def __init__(self, text: str) -> None:
        self.samples = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def __getitem__(self, name: str) -> float | None:
        return self.get(name)

    def get(self, name: str, **labels: str) -> float | None:
        return self.samples.get((name, tuple(sorted(labels.items()))))

    def of(self, scope: str) -> tuple[float | None, ...]:
        """A scope's permits held, requests waiting and permits granted."""
        names = ("permits_held", "requests_waiting", "permits_granted_total")
        return tuple(self.get(f"scrapy_semaphore_{name}", scope=scope) for name in names)

    def waits(self, scope: str) -> float | None:
        """The number of requests that have got a permit, from the histogram of waits."""
        return self.get("scrapy_semaphore_wait_seconds_count", scope=scope)

    def scopes(self, name: str) -> set[str]:
        return {dict(labels)["scope"] for sample, labels in self.samples if sample == name}


async def visit(url: str, method: str = "GET", **headers: str) -> tuple[int, str, str]:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session,
        session.request(method, url, headers=headers) as response,
    ):
        return response.status, response.headers.get("Content-Type", ""), await response.text()


async def scrape(url: str) -> Scrape:
    status, _, text = await visit(url)
    assert status == 200
    return Scrape(text)


def addresses(log: str) -> list[str]:
    """The addresses of metrics in a log, in its order."""
    return re.findall(r"Metrics for Prometheus are at (\S+)", log)


async def address(caplog: pytest.LogCaptureFixture) -> str:
    await eventually(lambda: addresses(caplog.text))
    return addresses(caplog.text)[0]


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2].removesuffix("/metrics"))


def is_free(url: str) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port_of(url)))
        except OSError:
            return False
        return True
