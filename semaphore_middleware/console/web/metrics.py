"""What the server knows of all nodes together, for Prometheus: `/metrics` of the page's server."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from semaphore_middleware.console.snapshot import Snapshot
from semaphore_middleware.frontier.state import Counts
from semaphore_middleware.telemetry.prometheus import (
    OTHERS,
    PREFIX,
    ScopeLabels,
    gauge,
    limit_shown,
    scope_gauges,
    scope_label,
)

NAMED_NODES_MAX = 100  # the busiest
OF_NODE = {
    "permits_held": "Permits that a node holds.",
    "requests_waiting": "Requests of a node that wait for a permit.",
}
OF_JOB = {
    "permits_held": "Permits that the nodes of a job hold.",
    "requests_waiting": "Requests of a job's nodes that wait for a permit.",
}
OF_CRAWL = {
    "nodes": "Nodes that take part in a shared crawl.",
    "queued": "Requests of a shared crawl that are to be taken.",
    "taken": "Requests of a shared crawl that nodes have taken and not finished.",
    "failed": "Requests of a shared crawl that have brought no page.",
    "set_aside": "Requests of a shared crawl that three nodes have failed with.",
    "pages": "Pages that a shared crawl has fetched.",
}


class ClusterMetrics:
    """The metrics of all nodes: one target for Prometheus, in place of one for each crawl."""

    def __init__(self) -> None:
        self._started: dict[str, int] = {}  # by scope, as in the snapshot noted last
        self._labels = ScopeLabels(lambda scope: self._started.get(scope, 0))
        self._granted: Tally[str] = Tally()  # by label
        self._noted: Snapshot | None = None

    def note(self, snapshot: Snapshot | None) -> None:
        """Count the requests begun since the last snapshot. The server forgets those of an idle
        scope.
        """
        if snapshot is None or snapshot is self._noted:
            return
        self._noted = snapshot
        for row in snapshot.scopes:
            before = self._started.get(row.scope, 0)
            more = row.started - before if row.started >= before else row.started
            self._granted[self._labels.of(row.scope)] += more
        self._started = {row.scope: row.started for row in snapshot.scopes}

    def text(self, snapshot: Snapshot | None, crawls: Mapping[str, Counts]) -> bytes:
        """The metrics of a snapshot, in Prometheus' format; None: the server cannot be reached."""
        registry = CollectorRegistry()
        registry.register(Metrics([*self._of(snapshot, crawls)]))
        return generate_latest(registry)

    def _of(self, snapshot: Snapshot | None, crawls: Mapping[str, Counts]) -> Iterator[Metric]:
        is_up = int(snapshot is not None)
        yield _total("server_up", "1 if the Redis server answers, else 0.", is_up)
        if snapshot is None:
            return  # old figures would look new
        self.note(snapshot)
        yield from self._of_scopes(snapshot)
        for what, text in OF_NODE.items():
            part = what.rpartition("_")[2]
            counts = {
                scope_label(row.node): getattr(row, part)
                for row in snapshot.nodes[:NAMED_NODES_MAX]
            }
            yield gauge(f"node_{what}", text, counts, "node")
        yield from self._of_jobs(snapshot)
        totals = snapshot.totals
        yield _total("scopes", "Scopes in use.", totals.scopes)
        yield _total("nodes", "Nodes with permits or waiting requests.", totals.nodes)
        recovery, silent = totals.recovery_left or 0.0, totals.silent_for or 0.0
        yield _total("recovery_seconds", "How long nothing is granted after a loss.", recovery)
        yield _total("silent_seconds", "For how long no node has called, if leases end.", silent)
        for what, text in OF_CRAWL.items():
            sizes = {scope_label(name): getattr(crawls[name], what) for name in crawls}
            yield gauge(f"crawl_{what}", text, sizes, "crawl")

    def _of_jobs(self, snapshot: Snapshot) -> Iterator[Metric]:
        for what, text in OF_JOB.items():
            counts = Tally[tuple[str, str]]()
            for row in snapshot.scopes:
                for node in row.members:
                    labels = self._labels.of(row.scope), scope_label(node.job)
                    counts[labels] += getattr(node, what.rpartition("_")[2])
            metric = GaugeMetricFamily(
                f"{PREFIX}job_{what}", text, labels=["scope", "semaphore_job"]
            )
            for labels, count in counts.items():
                metric.add_metric([*labels], count)
            yield metric

    def _of_scopes(self, snapshot: Snapshot) -> Iterator[Metric]:
        held, waiting, paused, down = (Tally[str]() for _ in range(4))
        limits: dict[str, float] = {}
        waits: dict[str, float] = {}
        backoffs: dict[str, float] = {}
        for row in snapshot.scopes:
            label = self._labels.of(row.scope)
            held[label] += row.held
            waiting[label] += row.waiting
            paused[label] += row.paused
            down[label] += row.down_for is not None
            waits[label] = max(waits.get(label, 0.0), row.longest_wait)
            backoffs[label] = max(backoffs.get(label, 0.0), row.backoff_left)
            if label != OTHERS and row.limit is not None:
                limits[label] = limit_shown(row.limit)
        yield from scope_gauges(self._labels, held, waiting, limits)
        yield gauge("longest_wait_seconds", "How long a request has waited at most.", waits)
        yield gauge("backoff_seconds", "How long no request starts, at the site's wish.", backoffs)
        yield gauge("paused", "1 if an operator has paused the scope; of others: how many.", paused)
        yield gauge("down", "1 if the host is down; of others: how many.", down)
        granted = CounterMetricFamily(
            f"{PREFIX}permits_granted", "Permits under which requests began.", labels=["scope"]
        )
        for label, count in self._granted.items():
            granted.add_metric([label], count)
        yield granted


class Metrics:
    """Some metrics, as a registry takes them."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        """All of them."""
        return self._metrics


def _total(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, text, value=value)
