"""The items of the spiders."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Page:
    """A page of a site, even if it is missing."""

    url: str
    status: int
    title: str | None
    depth: int  # links from the start URL
