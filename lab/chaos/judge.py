"""Judges a run by what the site has seen, whatever was done in it."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from lab.chaos.site import node_of
from tests.support.site import Visit

FROZEN_LEASES = 0.6  # a node that stands still for longer may come too late to end its transfers
HASTE_S = 0.2  # within which what was begun before a node stood still may arrive after it


@dataclass
class Verdict:
    """Broken promises, and what was measured."""

    problems: list[str] = field(default_factory=list)
    requests: int = 0
    most: int = 0  # open at one host at once, but for what frozen nodes could not close
    excess: int = 0  # above that, by frozen nodes
    lost: int = 0  # pages
    lost_permits: int = 0  # by the nodes' stat
    gap: float = 0.0  # seconds without a start at any host, the longest
    kept_in: str = ""  # the directory with all that was written down; empty if all is well

    def __str__(self) -> str:
        frozen = f" (+{self.excess} frozen)" if self.excess > 0 else ""
        return (
            f"{self.requests} requests, {self.most}{frozen} at once, {self.lost} pages lost, "
            f"{self.lost_permits} permits lost, gap {self.gap:.1f} s: "
            + (f"BROKEN, see {self.kept_in}" if self.problems else "kept")
        )


@dataclass(frozen=True)
class Span:
    """From when to when a node stood still, or had a request open."""

    node: str
    start: float
    end: float


def judge(
    visits: Sequence[Visit],
    known: Iterable[tuple[str, str]],
    arrived: Container[tuple[str, str]],
    stills: Sequence[Span],
    limit: int,
    lease: float,
) -> Verdict:
    """A node that stands still for longer than its lease is excused for what it had open then, and
    sends as it wakes, until it must have found its permits lost: one lease later.
    """
    starts = sorted(visit.begin for visit in visits)
    lost = [f"{host}{path}" for host, path in known if (host, path) not in arrived]
    verdict = Verdict(
        requests=len(visits),
        lost=len(lost),
        gap=max((after - before for before, after in pairwise(starts)), default=0.0),
    )
    frozen = [still for still in stills if still.end - still.start > FROZEN_LEASES * lease]
    for host in {visit.host for visit in visits}:
        spans = [Span(node_of(v), v.begin, v.end) for v in visits if v.host == host]
        most, at = most_at_once(
            part for span in spans for part in _not_excused(span, frozen, lease)
        )
        verdict.most = max(verdict.most, most)
        verdict.excess = max(verdict.excess, most_at_once(spans)[0] - max(most, limit))
        if most > limit:
            verdict.problems.append(f"{most} open at {host}, limit {limit}, at {at:.3f}")
        for node in {span.node for span in frozen}:
            most, at = most_at_once(span for span in spans if span.node == node)
            if most > limit:
                verdict.problems.append(f"{node} alone had {most} open at {host}, at {at:.3f}")
    if lost:
        verdict.problems.append(f"{len(lost)} pages lost, such as {', '.join(lost[:3])}")
    return verdict


def _not_excused(span: Span, frozen: Iterable[Span], lease: float) -> Iterable[Span]:
    """The parts of a visit that count."""
    for ice in frozen:
        if ice.node == span.node and ice.start < span.end and span.start < ice.end + HASTE_S:
            yield Span(span.node, span.start, max(span.start, ice.start))
            yield Span(span.node, min(span.end, ice.end + lease), span.end)
            return
    yield span


def most_at_once(spans: Iterable[Span]) -> tuple[int, float]:
    changes = sorted(c for span in spans for c in ((span.start, 1), (span.end, -1)))
    counts = itertools.accumulate(change for _, change in changes)
    most, before = max(zip(counts, (-at for at, _ in changes), strict=True), default=(0, 0.0))
    return most, -before
