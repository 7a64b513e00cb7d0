"""What a crawl writes: one item a page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Page:
    """A response as one line of the feed, whatever its status and type."""

    url: str
    status: int
    title: str | None
    depth: int
    content_type: str | None
    size: int  # bytes of the body, unpacked
    links: list[str]  # every http(s) address the page links to, on the site or not
    referrer: str | None
    node: str
    time: str  # ISO 8601, UTC
