"""The item for each page of a crawl."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Page:
    """A response of any status and content type: one line of the feed."""

    url: str
    status: int
    title: str | None
    depth: int
    content_type: str | None
    size: int  # of the decompressed body, in bytes
    links: list[str]  # all http(s) links of the page, on the site or not
    referrer: str | None
    node: str
    time: str  # ISO 8601, UTC
