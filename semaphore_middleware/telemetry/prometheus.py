"""Metrics of this node for Prometheus, served by prometheus_client.

Import it only where metrics are wanted: without them a crawl needs no prometheus_client.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any
from wsgiref.simple_server import WSGIServer

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    Metric,
    start_http_server,
)

from semaphore_middleware.core.observer import (
    AcquireTimedOut,
    BackoffStarted,
    Event,
    FailedAtOnce,
    HostDown,
    ObservedSemaphore,
    Observer,
    PermitGranted,
    PermitLost,
    Reconnected,
    RoundTrip,
    StatementRefused,
    StoreLost,
)
from semaphore_middleware.core.permit import Stage
from semaphore_middleware.model.limits import LIMITLESS

logger = logging.getLogger(__name__)

WAIT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
ROUND_TRIP_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)

NAMED_SCOPES_MAX = 50  # scopes with series of their own, in the whole life of a crawl
# The first so many scopes get series at once, later ones when they are busy.
FIRST_NAMED_SCOPES = 25
BUSY_SCOPE_PERMITS = 100  # permits acquired by a busy scope, at least
OTHERS = "(others)"  # the label of all further scopes together
LABEL_CHARS_MAX = 100  # a longer scope is cut

VISIT_TIMEOUT_S = 10.0  # for a visitor to get the metrics

COUNTERS: dict[type[Event], tuple[str, str]] = {  # of events: name and meaning
    PermitLost: ("semaphore_permits_lost", "Permits that could not be renewed in time."),
    BackoffStarted: ("semaphore_backoffs", "Pauses that the result of this node's request began."),
    HostDown: ("semaphore_hosts_down", "Sites that this node was the first to find down."),
    FailedAtOnce: ("semaphore_failed_at_once", "Requests not made, because their site is down."),
    AcquireTimedOut: ("semaphore_timeouts", "Requests that waited longer than they may."),
    Reconnected: ("semaphore_reconnects", "Connections to the server that were lost."),
    StoreLost: ("semaphore_store_losses", "Times the server was new or had lost its data."),
    StatementRefused: (
        "semaphore_refused_statements",
        "Statements of this node that the server could make no sense of.",
    ),
}


class Series:
    """The series of one scope, or of all the others together."""

    __slots__ = ("granted", "handed_on", "held", "limit", "name", "waiting", "waits")

    def __init__(self, metrics: ScopeMetrics, name: str) -> None:
        self.name = name
        self.limit: int | None = None  # as last heard: the semaphore forgets an idle scope's
        self.held = metrics.held.labels(name)
        self.waiting = metrics.waiting.labels(name)
        self.granted = metrics.granted.labels(name)
        self.handed_on = metrics.handed_on.labels(name)
        self.waits = metrics.waits.labels(name)


class ScopeMetrics:
    """The metrics labelled with a scope; only a few scopes get a label of their own.

    Prometheus keeps every label it ever saw, and a broad crawl visits more sites than it can keep.
    So the first scopes get a label, then some busy ones, and the rest share "(others)". A label is
    never taken back: a counter moved to another label would fall at the old and jump at the new.
    For the same reason, the earlier counts of a newly labelled scope stay with the others.

    `acquired_of` returns how many permits of a scope this node has acquired.
    """

    def __init__(self, acquired_of: Callable[[str], int]) -> None:
        self._acquired_of = acquired_of
        self._named: dict[str, Series] = {}
        self._others: Series | None = None
        options: dict[str, Any] = {"labelnames": ["scope"], "registry": None}
        self.held = Gauge("semaphore_permits_held", "Permits that this node holds.", **options)
        self.waiting = Gauge(
            "semaphore_requests_waiting",
            "Requests of this node that have asked for a permit and have none.",
            **options,
        )
        self.limit = Gauge(
            "semaphore_limit",
            "How many may hold a permit on all nodes together, as this node last heard.",
            **options,
        )
        self.granted = Counter(
            "semaphore_permits_granted", "Permits that requests of this node got.", **options
        )
        self.handed_on = Counter(
            "semaphore_permits_handed_on",
            "Permits that requests of this node got from its own, without a call.",
            **options,
        )
        self.waits = Histogram(
            "semaphore_wait_seconds",
            "From asking for a permit to getting it.",
            buckets=WAIT_BUCKETS_S,
            **options,
        )

    def of(self, scope: str) -> Series:
        """The series of a scope: its own, or the series of all others."""
        series = self._named.get(scope)
        if series is not None:
            return series
        number = len(self._named)
        name = scope_label(scope)
        is_first = number < FIRST_NAMED_SCOPES
        is_busy = number < NAMED_SCOPES_MAX and self._acquired_of(scope) >= BUSY_SCOPE_PERMITS
        if name == OTHERS or not (is_first or is_busy):
            return self._of_others()
        series = self._named[scope] = Series(self, name)
        if number + 1 == FIRST_NAMED_SCOPES:
            self._of_others()  # its counters start at 0, before the first other scope
        return series

    def _of_others(self) -> Series:
        if self._others is None:
            self._others = Series(self, OTHERS)
        return self._others

    def set_gauges(self, semaphore: ObservedSemaphore) -> None:
        """Set the gauges to the present permits, waiting requests and limits.

        Requests without a reply from the server count as waiting: while the server is away, all
        do.
        """
        held: Tally[Series] = Tally()
        waiting: Tally[Series] = Tally()
        for permit in semaphore.permits():
            (held if permit.stage is Stage.HELD else waiting)[self.of(permit.scope)] += 1
        for series in (*self._named.values(), *([self._others] if self._others else [])):
            series.held.set(held[series])
            series.waiting.set(waiting[series])
        for scope, series in self._named.items():  # a limit of several scopes would mean nothing
            if (limit := semaphore.limit_of(scope)) is not None:
                series.limit = limit
            if series.limit is not None:
                value = series.limit if series.limit < LIMITLESS else float("inf")
                self.limit.labels(series.name).set(value)


class Metrics(Observer):
    """Counts a node's events, and serves them with the state of its permits to Prometheus.

    Visitors are served in threads. Counters and histograms are counted on the event loop and have
    locks of their own. The permits belong to the event loop, so at each visit the gauges are set
    there, all in one step: they show one moment, and cost nothing between two visits.
    """

    def __init__(self, host: str, port: int, acquired_of: Callable[[str], int]) -> None:
        self._host = host
        self._port = port
        self._server: WSGIServer | None = None
        self._scopes = ScopeMetrics(acquired_of)
        self._counters = {
            kind: Counter(name, text, registry=None) for kind, (name, text) in COUNTERS.items()
        }
        self._round_trips = Histogram(
            "semaphore_server_round_trip_seconds",
            "From sending a call to the server to its answer.",
            buckets=ROUND_TRIP_BUCKETS_S,
            registry=None,
        )
        self._node_info = Info("semaphore_node", "This node's name elsewhere.", registry=None)
        self._registry = CollectorRegistry()  # not the host process's
        self._registry.register(self)

    async def open(self, semaphore: ObservedSemaphore) -> None:
        """Serve the metrics. A taken port must not end a crawl, so it is only logged."""
        self._semaphore = semaphore
        self._loop = asyncio.get_running_loop()
        self._node_info.info({"node": semaphore.node})
        try:
            # In a thread, as it looks names up.
            server, _ = await asyncio.to_thread(
                start_http_server, self._port, self._host, self._registry
            )
        except OSError as error:
            logger.warning(
                "SEMAPHORE_METRICS_PORT = %d: cannot listen on %s (%s). The crawl goes on without "
                "metrics; give each crawl of a machine a port of its own, or 0 for any free one.",
                self._port,
                self._host,
                error.strerror or error,
            )
        else:
            self._server = server
            host, port = str(server.server_address[0]), server.server_address[1]
            shown = f"[{host}]" if ":" in host else host
            logger.info("Metrics for Prometheus are at http://%s:%d/metrics", shown, port)

    async def close(self) -> None:
        """Free the port."""
        server, self._server = self._server, None
        if server is not None:
            await asyncio.to_thread(server.shutdown)
            server.server_close()

    def on_event(self, event: Event) -> None:
        kind = type(event)
        if isinstance(event, PermitGranted):
            series = self._scopes.of(event.permit.scope)
            if event.limit is not None:
                series.limit = event.limit
            series.granted.inc()
            if event.handed_on:
                series.handed_on.inc()
            series.waits.observe(event.permit.wait)
        elif isinstance(event, RoundTrip):
            self._round_trips.observe(event.seconds)
        elif kind in self._counters:
            self._counters[kind].inc()

    def collect(self) -> Iterator[Metric]:
        """All metrics as they are now. The registry calls it, in a visitor's thread."""
        setting = asyncio.run_coroutine_threadsafe(self._set_gauges(), self._loop)
        setting.result(VISIT_TIMEOUT_S)
        scopes = self._scopes
        for metric in (
            *(scopes.held, scopes.waiting, scopes.limit),
            *(scopes.granted, scopes.handed_on, scopes.waits),
            *self._counters.values(),
            self._round_trips,
            self._node_info,
        ):
            for family in metric.collect():
                # `disable_created_metrics` would do it too, but for the whole host process.
                family.samples = [s for s in family.samples if not s.name.endswith("_created")]
                yield family

    async def _set_gauges(self) -> None:
        self._scopes.set_gauges(self._semaphore)


def scope_label(scope: str) -> str:
    """A scope's name as Prometheus can keep it: valid UTF-8, and short."""
    name = scope.encode("utf-8", "backslashreplace").decode()
    if name == scope and len(name) <= LABEL_CHARS_MAX:
        return name
    digest = sha256(scope.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{name[:LABEL_CHARS_MAX]}~{digest[:8]}"
