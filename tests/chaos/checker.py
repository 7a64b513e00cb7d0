"""Judges the history of a run, whatever was done in it.

Two witnesses must agree that there were never too many: the site, which counts what is open at each
host, and the nodes, whose permits live from the grant to the release. Both are inside of what the
server believes, so that an innocent run cannot look guilty.

A node that stands still for longer than its lease is excused for the permits that it held then: its
transfers may stay open until it wakes, and the request of such a permit may even begin as it wakes.
Each has to end when the node finds its permit lost.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise

from tests.chaos.history import Event, History

FROZEN_LEASES = 0.6  # a node that stands still for longer may come too late to end its transfers
HASTE_S = 0.2  # that it may take until a node stands still, or the site sees an end
WORK_LEFT_STATUS = 1  # of a node that is told to end while its crawl goes on
# Times are measured to be reported; a verdict takes only a gross excess for a broken promise.
FACTOR = 2.0  # times a promised time: up to there it may be the machine's fault
SLACK_S = 5.0  # and this much longer


@dataclass
class Verdict:
    """What the checker says of a run: broken promises, and what it has measured."""

    violations: list[str] = field(default_factory=list)
    not_done: list[str] = field(default_factory=list)  # by faults that did not do what they say
    requests: int = 0
    most: int = 0  # open at one host at once, but for what frozen nodes could not close
    most_held: int = 0  # permits of one host that nodes held at once, by their own account
    excess: int = 0  # above the limit, by frozen nodes
    lost: list[str] = field(default_factory=list)  # pages
    twice: int = 0  # pages that were worked on more than once
    gap: float = 0.0  # seconds without a start at any host, the longest
    lost_permits: int = 0  # by the nodes' stat
    recovery: float = 0.0  # seconds to full use, the longest
    promise: float = 0.0  # what was promised for that one
    exit: float = 0.0  # seconds from a node's last transfer to its exit
    stalls: int = 0  # times that a node stood still for long, planned or not
    kept_in: str = ""  # the directory with all that was written down; empty if all is well

    @property
    def is_bad(self) -> bool:
        return bool(self.violations or self.not_done)

    def __str__(self) -> str:
        if self.violations:
            return f"BROKEN, see {self.kept_in}"
        return f"FAULT NOT DONE, see {self.kept_in}" if self.not_done else "kept"


@dataclass(frozen=True)
class Span:
    """From when to when something was so, of which node, at which host, under which permit."""

    node: str
    host: str
    start: float
    end: float
    permit: str = ""


def check(history: History, limit: int, lease: float) -> Verdict:
    """What the history says about the promises."""
    events = list(history)
    verdict = Verdict()
    frozen = [
        span for span in _standstills(events) if span.end - span.start > FROZEN_LEASES * lease
    ]
    verdict.stalls = len(frozen)
    visits = _spans(events, "start", {"end"})
    holds = _spans(events, "grant", {"release", "lost"})
    stuck = {(hold.node, hold.permit): hold for hold in holds if _was_stuck(hold, frozen)}
    free = [hold for hold in holds if (hold.node, hold.permit) not in stuck]
    _check_the_site(verdict, visits, stuck, limit)
    _check_the_nodes(verdict, events, free, limit)
    _check_starts(verdict, events)
    _check_pages(verdict, events)
    _check_times(verdict, events)
    _check_the_end(verdict, events, frozen, lease)
    return verdict


# Never too many ---------------------------------------------------------------------------------


def _check_the_site(
    verdict: Verdict, visits: list[Span], stuck: dict[tuple[str, str], Span], limit: int
) -> None:
    """`stuck` are the permits that nodes held as they stood still, by node and id."""
    verdict.requests = len(visits)
    starts = sorted(visit.start for visit in visits)
    verdict.gap = max((after - before for before, after in pairwise(starts)), default=0.0)
    excused, free = [], []
    for visit in visits:
        hold = stuck.get((visit.node, visit.permit))
        end_of_excuse = min(visit.end, hold.end + HASTE_S) if hold else visit.start
        if end_of_excuse > visit.start:
            excused.append(replace(visit, end=end_of_excuse))
        if end_of_excuse < visit.end:
            free.append(replace(visit, start=max(visit.start, end_of_excuse)))
    for host, most, at in _most(free):
        verdict.most = max(verdict.most, most)
        if most > limit:
            verdict.violations.append(
                f"the site had {most} open at {host}, limit {limit}, at {at:.3f}"
            )
    for _, most, _ in _most(visits):
        verdict.excess = max(verdict.excess, most - max(limit, verdict.most))
    # What a node has open when it is frozen is what it holds: that it holds too many would show in
    # its own account. Together frozen nodes can have no more than that.
    for host, most, at in _most(excused):
        if most > limit * len({visit.node for visit in excused}):
            verdict.violations.append(f"frozen nodes had {most} open at {host} at {at:.3f}")


def _check_the_nodes(verdict: Verdict, events: list[Event], holds: list[Span], limit: int) -> None:
    for host, most, at in _most(holds):
        verdict.most_held = max(verdict.most_held, most)
        if most > limit:
            verdict.violations.append(f"nodes held {most} of {host}, limit {limit}, at {at:.3f}")
    ended = {event.node for event in events if event.what == "closed"}
    over = events[-1].at if events else 0.0
    for hold in holds:
        if hold.end >= over and hold.node in ended:
            verdict.violations.append(f"{hold.node} never gave back a permit of {hold.host}")


def _was_stuck(hold: Span, frozen: list[Span]) -> bool:
    """Whether its node could not give the permit back, being frozen."""
    return any(
        hold.node == ice.node and hold.start <= ice.start + HASTE_S and hold.end >= ice.start
        for ice in frozen
    )


def _check_starts(verdict: Verdict, events: list[Event]) -> None:
    """Each visit needs a permit of its own, granted before."""
    unused: set[tuple[str, str, str]] = set()
    for event in events:
        if event.what == "grant":
            unused.add((event.node, event.host, event.id))
        elif event.what == "start":
            permit = event.node, event.host, event.permit
            if permit not in unused:
                verdict.violations.append(f"{event.node} was at {event.host} without a permit")
            unused.discard(permit)


def _spans(events: Iterable[Event], start: str, ends: set[str]) -> list[Span]:
    """What began and ended, by node, host and id. A killed node has ended everything."""
    spans: list[Span] = []
    begun: dict[tuple[str, str, str], Event] = {}
    last = 0.0

    def end(first: Event, at: float) -> None:
        permit = first.id if start == "grant" else first.permit
        spans.append(Span(first.node, first.host, first.at, at, permit))

    for event in events:
        last = event.at
        which = event.node, event.host, event.id
        if event.what == start:
            begun[which] = event
        elif event.what in ends and which in begun:
            end(begun.pop(which), event.at)
        elif event.what == "killed":
            for other in [other for other in begun if other[0] == event.node]:
                end(begun.pop(other), event.at)
    for first in begun.values():
        end(first, last)
    return spans


def _standstills(events: Iterable[Event]) -> list[Span]:
    """When nodes stood still: frozen from outside, or by a callback, or by a busy machine."""
    frozen_at: dict[str, float] = {}
    spans = []
    for event in events:
        if event.what == "frozen":
            frozen_at[event.node] = event.at
        elif event.what == "woken":
            spans.append(Span(event.node, "", frozen_at.pop(event.node), event.at))
        elif event.what in ("blocked", "computed"):
            spans.append(Span(event.node, "", event.at - event.seconds, event.at))
    return spans


def _most(spans: Iterable[Span]) -> list[tuple[str, int, float]]:
    """Of each host: how many spans there were at once, at most, and when first."""
    changes: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for span in spans:
        changes[span.host] += [(span.start, 1), (span.end, -1)]
    result = []
    for host, of_host in changes.items():
        now = most = 0
        when = 0.0
        for at, change in sorted(of_host):  # an end before a start of the same moment
            now += change
            if now > most:
                most, when = now, at
        result.append((host, most, when))
    return result


# All the rest -----------------------------------------------------------------------------------


def _check_pages(verdict: Verdict, events: list[Event]) -> None:
    known = [(event.host, event.path) for event in events if event.what == "known"]
    arrived = Counter((event.host, event.path) for event in events if event.what == "page")
    verdict.lost = [f"{host}{path}" for host, path in known if not arrived[host, path]]
    verdict.twice = sum(count > 1 for count in arrived.values())
    if verdict.lost:
        some = ", ".join(verdict.lost[:3])
        verdict.violations.append(f"{len(verdict.lost)} pages lost, such as {some}")


def _check_times(verdict: Verdict, events: list[Event]) -> None:
    for event in events:
        if event.what == "recovered" and event.seconds >= verdict.recovery:
            verdict.recovery, verdict.promise = event.seconds, event.promise
        if event.what == "exited":
            verdict.exit = max(verdict.exit, event.seconds)
            if event.count != WORK_LEFT_STATUS:
                verdict.violations.append(f"{event.node} exited with status {event.count}")
        if (
            event.what in ("recovered", "exited")
            and event.seconds > FACTOR * event.promise + SLACK_S
        ):
            verdict.violations.append(
                f"{event.what} after {event.seconds:.1f} s, promised were {event.promise:.1f} s"
            )


def _check_the_end(verdict: Verdict, events: list[Event], frozen: list[Span], lease: float) -> None:
    for event in events:
        if event.what == "left" and event.count:
            verdict.violations.append(f"{event.count} keys left on the server: {event.id}")
        elif event.what == "problem":
            verdict.violations.append(f"{event.node or 'the run'}: {event.id}")
        elif event.what == "proof" and not event.count:
            verdict.not_done.append(event.id)
        elif event.what == "lost permits":
            verdict.lost_permits += event.count
        elif event.what == "closed":
            blocked = [span for span in frozen if span.node == event.node]
            if not event.count and any(span.end - span.start > lease for span in blocked):
                verdict.violations.append(f"{event.node} does not say that it was blocked")
