"""One browser for all tests of a module; each has a page with a storage of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.browser import Chromium


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    """A browser process."""
    chromium = Chromium()
    try:
        yield chromium.start()
    finally:
        chromium.remove()
