"""Sections of the page that other packages add: an entry point is a factory given the settings."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)
GROUP = "semaphore_middleware.sections"


class Section(Protocol):
    """Rows of the page, under the entry point's name."""

    label: str
    """The kind of a row, in one word: the prefix of its metrics, and the name of their label."""
    gauges: Mapping[str, str]
    """The parts of a row that are metrics, each with its help."""

    @property
    def server(self) -> str:
        """The address of its server, without a password."""

    @property
    def keys(self) -> str:
        """The beginning of its keys on the server."""

    async def survey(self) -> Sequence[Mapping[str, Any]]:
        """All rows, the most important first; each has a `name`."""


def load_sections(settings: BaseSettings) -> dict[str, Section]:
    """All sections by name. One that cannot be imported is logged and left out."""
    sections = {}
    for point in entry_points(group=GROUP):
        try:
            make = point.load()
        except Exception:
            logger.exception("The section %r of the page cannot be loaded.", point.name)
        else:
            sections[point.name] = make(settings)
    return sections
