"""Metrics of all nodes together for Prometheus, as `/metrics` of the page's server."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from semaphore_middleware.console.node_metrics import OTHERS, PREFIX, ScopeLabels, scope_label
from semaphore_middleware.console.poller import new_starts
from semaphore_middleware.console.sections import Section
from semaphore_middleware.model.inspection import Inspection
from semaphore_middleware.model.limits import LIMITLESS
from semaphore_middleware.operators.snapshot import Snapshot
from semaphore_middleware.politeness import ALL_REASONS

NAMED_NODES_MAX = 100  # the busiest
STATES = "1 for a scope's state; for (others), the number of scopes. open, idle; " + " ".join(
    f"{reason.name}: {reason.sentence}" for reason in ALL_REASONS
)
OF_NODE = {
    "permits_held": "Permits that a node holds.",
    "requests_waiting": "Requests of a node that wait for a permit.",
}
OF_JOB = {
    "permits_held": "Permits that the nodes of a job hold.",
    "requests_waiting": "Requests of a job's nodes that wait for a permit.",
}
Rows = Sequence[Mapping[str, Any]]


class FleetMetrics:
    """The metrics of all nodes: one target for Prometheus, in place of one for each crawl."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._started: dict[str, int] = {}  # by scope, in the last snapshot counted
        self._labels = ScopeLabels(lambda scope: self._started.get(scope, 0))
        self._granted: Tally[str] = Tally()  # by label
        self._snapshot: Snapshot | None = None
        self._sections: Sequence[tuple[Section, Rows]] = ()
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def count_starts(self, snapshot: Snapshot) -> None:
        """Count the requests begun since the last snapshot: the server forgets a scope's count when
        the scope is idle.
        """
        before = self._started
        self._started = {row.scope: row.started for row in snapshot.scopes}
        for scope, count in new_starts(before, self._started).items():
            self._granted[self._labels.label_of(scope)] += count

    def text(self, snapshot: Snapshot | None, sections: Sequence[tuple[Section, Rows]]) -> bytes:
        """The metrics of a snapshot and of the rows of sections, in Prometheus' format; None: the
        server cannot be reached.
        """
        self._snapshot = snapshot
        self._sections = sections
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """All metrics of the last snapshot. The registry calls it."""
        snapshot = self._snapshot
        is_up = int(snapshot is not None)
        text = "1 if the Redis server can be read, else 0."
        yield _gauge("server_up", text, {self._prefix: is_up}, ["prefix"])
        if snapshot is None:
            return  # old figures would look new
        self.count_starts(snapshot)
        yield from self._of_scopes(snapshot)
        for what, text in OF_NODE.items():
            part = attrgetter(what.rpartition("_")[2])
            busiest = snapshot.nodes[:NAMED_NODES_MAX]
            counts = {scope_label(row.node): part(row) for row in busiest}
            yield _gauge(f"node_{what}", text, counts, ["node"])
        for what, text in OF_JOB.items():
            part = attrgetter(what.rpartition("_")[2])
            of_jobs = Tally[tuple[str, ...]]()
            for row in snapshot.scopes:
                for node in row.members:
                    of_jobs[self._labels.label_of(row.scope), scope_label(node.job)] += part(node)
            yield _gauge(f"job_{what}", text, of_jobs, ["scope", "semaphore_job"])
        totals = snapshot.totals
        yield _total("scopes", "Scopes in use.", totals.scopes)
        yield _total("nodes", "Nodes with permits or waiting requests.", totals.nodes)
        recovery = totals.recovery_left or 0.0
        silent = totals.silent_for or 0.0
        yield _total("recovery_seconds", "How long nothing is granted yet after a loss.", recovery)
        yield _total("silent_seconds", "How long no node has called, if permits are held.", silent)
        for section, rows in self._sections:
            for what, text in section.gauges.items():
                values = {scope_label(row["name"]): row[what] for row in rows}
                yield _gauge(f"{section.label}_{what}", text, values, [section.label])

    def _of_scopes(self, snapshot: Snapshot) -> Iterator[Metric]:
        rows: dict[str, list[Inspection]] = {}
        for row in snapshot.scopes:
            rows.setdefault(self._labels.label_of(row.scope), []).append(row)

        def by_label(
            total: Callable[[Iterable[float]], float], part: Callable[[Inspection], float]
        ) -> dict[str, float]:
            return {label: total(map(part, of_label)) for label, of_label in rows.items()}

        limits = {
            label: row.limit if row.limit < LIMITLESS else float("inf")
            for label, (row, *_) in rows.items()
            if label != OTHERS  # one limit cannot stand for several scopes
            and row.limit is not None
        }
        zeros = dict.fromkeys(self._labels.all, 0.0)
        held = zeros | by_label(sum, attrgetter("held"))
        yield _gauge("permits_held", "Permits that are held.", held)
        text = "Requests that have asked for a permit and have none."
        yield _gauge("requests_waiting", text, zeros | by_label(sum, attrgetter("waiting")))
        yield _gauge("limit", "Permits that all nodes together may hold.", limits)
        waits = by_label(max, attrgetter("longest_wait"))
        yield _gauge("longest_wait_seconds", "The longest wait of a waiting request.", waits)
        backoffs = by_label(max, attrgetter("backoff_left"))
        yield _gauge(
            "backoff_seconds", "How long no request starts, after a refusal or a failure.", backoffs
        )
        states: Tally[tuple[str, ...]] = Tally(
            (self._labels.label_of(row.scope), row.state) for row in snapshot.scopes
        )
        yield _gauge("state", STATES, states, ["scope", "state"])
        granted = CounterMetricFamily(
            f"{PREFIX}permits_granted", "Permits under which requests began.", labels=["scope"]
        )
        for label in self._labels.all:  # also those that nothing was granted: a count begins at 0
            granted.add_metric([label], self._granted[label])
        yield granted


def _gauge(
    name: str,
    text: str,
    values: Mapping[str, float] | Mapping[tuple[str, ...], float],
    labels: Sequence[str] = ("scope",),
) -> Metric:
    """A gauge with a value for each label, or for each set of them."""
    family = GaugeMetricFamily(PREFIX + name, text, labels=labels)
    for key, value in values.items():
        family.add_metric([key] if isinstance(key, str) else key, value)
    return family


def _total(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, text, value=value)
