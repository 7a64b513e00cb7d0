"""Sections of the page that other packages add."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest
from scrapy.settings import Settings

from semaphore_middleware.console import sections


def test_one_that_is_broken_breaks_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    points = [
        EntryPoint("gone", "not_installed:Section", sections.GROUP),
        EntryPoint("dict", "builtins:dict", sections.GROUP),
    ]
    monkeypatch.setattr(sections, "entry_points", lambda **_: points)
    assert list(sections.load_sections(Settings())) == ["dict"]
    assert caplog.messages == ["The section 'gone' of the page cannot be loaded."]
