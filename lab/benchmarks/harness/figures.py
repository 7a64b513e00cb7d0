"""What is computed of what was measured, and the order in which variants are measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import Protocol, TypeVar

from lab.benchmarks.harness.site import Visit

Variant = TypeVar("Variant")


def alternating(rounds: int, variants: Sequence[Variant]) -> Iterator[Variant]:
    """Each variant once a round; none is always the first."""
    for number in range(rounds):
        first = number % len(variants)
        yield from (*variants[first:], *variants[:first])


def median_ratio(ours: Sequence[float], yardstick: Sequence[float]) -> float:
    """Of the ratios in each round, and so of what ran within seconds of each other."""
    return median(_ratios(ours, yardstick))


def ratios_text(ours: Sequence[float], yardstick: Sequence[float]) -> str:
    """The least and the greatest of the ratios in each round."""
    ratios = _ratios(ours, yardstick)
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def _ratios(ours: Sequence[float], yardstick: Sequence[float]) -> list[float]:
    return [own / other for own, other in zip(ours, yardstick, strict=True)]


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of all does not exceed."""
    ordered = sorted(values)
    return ordered[math.ceil(share * len(ordered)) - 1]


# Open requests at once --------------------------------------------------------------------------


class Span(Protocol):
    """A time in which a request was open."""

    @property
    def begin(self) -> float: ...

    @property
    def end(self) -> float: ...


def open_requests(visits: Iterable[Span]) -> Iterator[tuple[float, int]]:
    """Each change: when, and how many requests were open from then on."""
    changes = [(visit.begin, 1) for visit in visits] + [(visit.end, -1) for visit in visits]
    now = 0
    for when, change in sorted(changes):  # at the same time, the ends first
        now += change
        yield when, now


def most(visits: Iterable[Span]) -> int:
    """How many were open at once, at most."""
    return max(now for _, now in open_requests(visits))


def mean(visits: Iterable[Span], begin: float, end: float) -> float:
    """How many were open on average from begin to end."""
    steps = [*open_requests(visits), (end, 0)]
    area = sum(
        now * (min(until, end) - max(since, begin))
        for (since, now), (until, _) in pairwise(steps)
        if since < end and until > begin
    )
    return area / (end - begin)


def all_at_work(visits: Sequence[Visit]) -> tuple[float, float]:
    """From when each visitor has begun to when the first of them asks for the last time."""
    begins: dict[str, list[float]] = {}
    for visit in visits:
        begins.setdefault(visit.visitor, []).append(visit.begin)
    return max(map(min, begins.values())), min(map(max, begins.values()))
