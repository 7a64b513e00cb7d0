"""The page's section of shared crawls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from scrapy.settings import BaseSettings

from semaphore_middleware.shared_crawl.commands import crawls_of
from semaphore_middleware.shared_crawl.counts import STATES


class CrawlsSection:
    """The shared crawls on the server of these settings."""

    label = "crawl"
    gauges: Mapping[str, str] = {
        "nodes": "Nodes that take part in a shared crawl.",
        "queued": "Requests in the queues of a shared crawl.",
        "in_flight": "Requests of a shared crawl that nodes have taken and not finished.",
        "failed": "Requests of a shared crawl that have brought no page.",
        "dead_letters": "Requests that no node of a shared crawl could fetch or read.",
        "pages": "Pages that a shared crawl has fetched.",
    }

    def __init__(self, settings: BaseSettings) -> None:
        self._crawls = crawls_of(settings)

    @property
    def server(self) -> str:
        """The server's address, without a password."""
        return self._crawls.server

    @property
    def keys(self) -> str:
        """The beginning of all crawls' keys."""
        return f"{{{self._crawls.prefix}:"

    async def survey(self) -> list[dict[str, Any]]:
        """The crawls by state, running ones first, then by name."""
        rows = []
        for name, counts in (await self._crawls.survey()).items():
            row = {"name": name, "state": counts.state, **asdict(counts)}
            del row["exists"]
            rows.append(row)
        return sorted(rows, key=lambda row: (STATES.index(row["state"]), row["name"]))
