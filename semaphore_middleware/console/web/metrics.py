"""What the server knows of all nodes together, for Prometheus: `/metrics` of the page's server."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from semaphore_middleware.console.poller import new_starts
from semaphore_middleware.console.snapshot import Snapshot
from semaphore_middleware.frontier.state import Counts
from semaphore_middleware.model.inspection import Inspection
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
        self._seen: tuple[Snapshot | None, Mapping[str, Counts]] = None, {}
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def note(self, snapshot: Snapshot) -> None:
        """Count the requests begun since the last snapshot. The server forgets those of an idle
        scope.
        """
        before = self._started
        self._started = {row.scope: row.started for row in snapshot.scopes}
        for scope, count in new_starts(before, self._started).items():
            self._granted[self._labels.of(scope)] += count

    def text(self, snapshot: Snapshot | None, crawls: Mapping[str, Counts]) -> bytes:
        """The metrics of a snapshot, in Prometheus' format; None: the server cannot be reached."""
        self._seen = snapshot, crawls
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """All metrics of what was seen last. The registry calls it."""
        snapshot, crawls = self._seen
        is_up = int(snapshot is not None)
        yield _total("server_up", "1 if the Redis server answers, else 0.", is_up)
        if snapshot is None:
            return  # old figures would look new
        self.note(snapshot)
        yield from self._of_scopes(snapshot)
        for what, text in OF_NODE.items():
            part = attrgetter(what.rpartition("_")[2])
            busiest = snapshot.nodes[:NAMED_NODES_MAX]
            counts = {scope_label(row.node): part(row) for row in busiest}
            yield gauge(f"node_{what}", text, counts, ["node"])
        for what, text in OF_JOB.items():
            part = attrgetter(what.rpartition("_")[2])
            of_jobs = Tally[tuple[str, ...]]()
            for row in snapshot.scopes:
                for node in row.members:
                    of_jobs[self._labels.of(row.scope), scope_label(node.job)] += part(node)
            yield gauge(f"job_{what}", text, of_jobs, ["scope", "semaphore_job"])
        totals = snapshot.totals
        yield _total("scopes", "Scopes in use.", totals.scopes)
        yield _total("nodes", "Nodes with permits or waiting requests.", totals.nodes)
        recovery, silent = totals.recovery_left or 0.0, totals.silent_for or 0.0
        yield _total("recovery_seconds", "How long nothing is granted after a loss.", recovery)
        yield _total("silent_seconds", "For how long no node has called, if leases end.", silent)
        for what, text in OF_CRAWL.items():
            sizes = {scope_label(name): getattr(crawls[name], what) for name in crawls}
            yield gauge(f"crawl_{what}", text, sizes, ["crawl"])

    def _of_scopes(self, snapshot: Snapshot) -> Iterator[Metric]:
        rows: dict[str, list[Inspection]] = {}
        for row in snapshot.scopes:
            rows.setdefault(self._labels.of(row.scope), []).append(row)

        def by_label(
            total: Callable[[Iterable[float]], float], part: Callable[[Inspection], float]
        ) -> dict[str, float]:
            return {label: total(map(part, of_label)) for label, of_label in rows.items()}

        limits = {
            label: limit_shown(row.limit)
            for label, (row, *_) in rows.items()
            if label != OTHERS and row.limit is not None
        }
        held, waiting = (by_label(sum, attrgetter(part)) for part in ("held", "waiting"))
        yield from scope_gauges(self._labels, held, waiting, limits)
        waits = by_label(max, attrgetter("longest_wait"))
        yield gauge("longest_wait_seconds", "How long a request has waited at most.", waits)
        backoffs = by_label(max, attrgetter("backoff_left"))
        yield gauge("backoff_seconds", "How long no request starts, at the site's wish.", backoffs)
        paused = by_label(sum, attrgetter("paused"))
        yield gauge("paused", "1 if an operator has paused the scope; of others: how many.", paused)
        down = by_label(sum, lambda row: row.down_for is not None)
        yield gauge("down", "1 if the host is down; of others: how many.", down)
        granted = CounterMetricFamily(
            f"{PREFIX}permits_granted", "Permits under which requests began.", labels=["scope"]
        )
        for label, count in self._granted.items():
            granted.add_metric([label], count)
        yield granted


def _total(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, text, value=value)
