"""Stats that a node adds to the sums of all nodes."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from semaphore_middleware.shared_crawl.sums import MOST_STATS, SummedStats


class Evil:
    def __repr__(self) -> str:
        raise RuntimeError("evil")

    __str__ = __int__ = __bool__ = __eq__ = __repr__  # type: ignore[assignment]


@pytest.mark.parametrize("value", [None, "many", b"7", math.nan, 7.5, 10**400, True, Evil()])
def test_a_stat_of_the_projects_own_that_is_no_count_is_left_out(value: Any) -> None:
    own = {"retry/count": value, 5: 7, "mine": value, "item_scraped_count": 3}
    stats: Any = SimpleNamespace(get_stats=lambda: own)
    summed = SummedStats(stats, 1.0)
    assert [summed.changed() for _ in range(2)] == [{"item_scraped_count": 3}] * 2


def test_of_many_stats_some_are_summed_up() -> None:
    own = {f"retry/reason_count/{number}": number for number in range(2 * MOST_STATS)}
    stats: Any = SimpleNamespace(get_stats=lambda: own)
    assert len(SummedStats(stats, 1.0).changed()) == MOST_STATS
