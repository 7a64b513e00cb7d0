"""What the spiders find."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Page:
    """A page of a site, also one that is missing."""

    url: str
    status: int
    title: str | None
    depth: int  # links from the start URL
