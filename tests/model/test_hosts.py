"""Names, as they are shown."""

from __future__ import annotations

from semaphore_middleware.model.hosts import clean


def test_names_are_cleaned_of_what_terminals_obey() -> None:
    assert clean("bücher.example") == "bücher.example"
    assert clean("a\x1b[2J\u202eb\ud800") == r"a\x1b[2J\u202eb\ud800"
