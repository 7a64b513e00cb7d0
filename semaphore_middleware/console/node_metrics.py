"""One node's metrics for Prometheus, served by prometheus_client; and labels for scopes.

Import this module only if metrics are on: without them a crawl needs no prometheus_client.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    Info,
    Metric,
    start_http_server,
)

from semaphore_middleware.console.auth import HEAD_TIMEOUT_S, SERVER
from semaphore_middleware.core.observer import (
    AcquireTimedOut,
    BackoffStarted,
    FailedAtOnce,
    ObservedSemaphore,
    Observer,
    PermitGranted,
    PermitLost,
    ProcessStalled,
    Reconnected,
    RoundTrip,
    StoreLost,
    UpdateRefused,
)
from semaphore_middleware.link.location import Server
from semaphore_middleware.link.text import encoded
from semaphore_middleware.model.events import Event
from semaphore_middleware.model.options import NodeOptions
from semaphore_middleware.politeness import POLICIES

logger = logging.getLogger(__name__)

PREFIX = "scrapy_semaphore_"

WAIT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
ROUND_TRIP_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)

NAMED_SCOPES_MAX = 50  # scopes with labels of their own, in a process
# The first scopes get a label at once, later ones when they are busy.
FIRST_NAMED_SCOPES = 25
BUSY_SCOPE_PERMITS = 100  # a busy scope was granted at least this many
COUNTED_SCOPES_MAX = 1000  # bounds the memory of a broad crawl
OTHERS = "(others)"  # the label of all further scopes together
LABEL_CHARS_MAX = 100  # a longer scope is cut

COUNTERS: dict[type[Event], tuple[str, str]] = {  # of events: name and meaning
    PermitLost: ("permits_lost", "Permits that could not be renewed in time."),
    BackoffStarted: ("backoffs", "Pauses that began with a request of this node."),
    **{
        policy.event: (
            policy.event.counter,
            f"Sites that this node was the first to find {policy.finding.state}.",
        )
        for policy in POLICIES
        if policy.event
    },
    FailedAtOnce: ("failed_at_once", "Requests not made, because their site is down or blocked."),
    AcquireTimedOut: ("timeouts", "Requests that gave up after waiting for too long."),
    Reconnected: ("reconnects", "Connections to the server that were lost."),
    StoreLost: ("store_losses", "Times the server had lost its data, or was replaced."),
    UpdateRefused: (
        "refused_updates",
        "Updates of this node that the server could not read.",
    ),
}


class ScopeLabels:
    """The labels of scopes: a few have one of their own, all others share "(others)".

    Prometheus keeps every label it ever saw, and a broad crawl has too many sites for that.
    So the first scopes get a label, then some busy ones. A label is never taken back: a counter
    moved to another label would fall at the old and jump at the new. For the same reason, the
    earlier counts of a newly labelled scope stay with the others.

    `permits_of` returns how many permits of a scope were counted.
    """

    def __init__(self, permits_of: Callable[[str], int]) -> None:
        self._permits_of = permits_of
        self.of_own: dict[str, str] = {}
        """By scope: its own label."""
        self._has_others = False

    def label_of(self, scope: str) -> str:
        """The label of a scope."""
        label = self.of_own.get(scope)
        if label is None:
            number = len(self.of_own)
            label = scope_label(scope)
            is_busy = number < NAMED_SCOPES_MAX and self._permits_of(scope) >= BUSY_SCOPE_PERMITS
            if label == OTHERS or not (number < FIRST_NAMED_SCOPES or is_busy):
                self._has_others = True
                return OTHERS
            self.of_own[scope] = label
        return label

    @property
    def all(self) -> list[str]:
        """All labels, with `OTHERS` before its first scope, so that its counts begin at 0."""
        labels = [*self.of_own.values()]
        if self._has_others or len(self.of_own) >= FIRST_NAMED_SCOPES:
            labels.append(OTHERS)
        return labels


class MetricsHandler(WSGIRequestHandler):
    """Answers one client, in a thread of its own."""

    server_version, sys_version = SERVER, ""  # of errors; `named` sets it for the rest

    def handle(self) -> None:
        """Answer the request, unless its head does not come in time."""
        deadline = threading.Timer(HEAD_TIMEOUT_S, self._end_reading)
        deadline.daemon = True
        deadline.start()
        try:
            with suppress(ConnectionError):  # the client has gone
                super().handle()
        finally:
            deadline.cancel()

    def _end_reading(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RD)

    def log_message(self, *_: object) -> None:
        """Requests are not logged."""


def named(app: Any) -> Any:
    """A WSGI application whose answers name this package as their server."""

    def answer(environ: Any, start: Any) -> Any:
        return app(environ, lambda status, heads: start(status, [*heads, ("Server", SERVER)]))

    return answer


class Metrics(Observer):
    """Counts a node's events, and serves the counts to Prometheus.

    Clients are served in threads. Counters and histograms are counted on the event loop and have
    locks of their own.
    """

    kinds = (PermitGranted, ProcessStalled, RoundTrip, *COUNTERS)

    def __init__(self, options: NodeOptions, _server: Server) -> None:
        assert options.metrics is not None, "its option is on"
        self._address = str(options.metrics)
        self._server: WSGIServer | None = None
        self._permits: Tally[str] = Tally()  # by scope
        self._labels = ScopeLabels(self._permits.__getitem__)
        common: dict[str, Any] = {"registry": None, "namespace": PREFIX.rstrip("_")}
        of_scope = {"labelnames": ["scope"], **common}
        self._reused = Counter(
            "permits_reused",
            "Permits that this node's requests reused, without a call.",
            **of_scope,
        )
        self._waits = Histogram(
            "wait_seconds",
            "From asking for a permit to getting it.",
            buckets=WAIT_BUCKETS_S,
            **of_scope,
        )
        self._counters = {
            kind: Counter(name, text, **common) for kind, (name, text) in COUNTERS.items()
        }
        self._round_trips = Histogram(
            "server_round_trip_seconds",
            "From sending a call to the server to its reply.",
            buckets=ROUND_TRIP_BUCKETS_S,
            **common,
        )
        self._stalls = Counter(
            "loop_stall_seconds",
            "For how long the event loop was stalled, or the process stopped, in long stalls.",
            **common,
        )
        self._node_info = Info("node", "This node's name in logs and in status.", **common)
        self._registry = CollectorRegistry()  # not the host process's
        self._registry.register(self)

    async def open(self, semaphore: ObservedSemaphore) -> None:
        """Serve the metrics. A taken port must not end a crawl, so it is only logged."""
        self._node_info.info({"node": semaphore.node})
        host, _, port = self._address.rpartition(":")
        try:
            # In a thread, as it resolves the host's name.
            server, _ = await asyncio.to_thread(
                start_http_server, int(port), host.strip("[]"), self._registry
            )
        except OSError as error:
            logger.warning(
                "SEMAPHORE_METRICS = %r: cannot listen there (%s). This node goes on without "
                "metrics; allowed are an address of this machine, and a port for each node, or 0 "
                "for any free one.",
                self._address,
                error.strerror or error,
            )
        else:
            server.RequestHandlerClass = MetricsHandler
            server.set_app(named(server.get_app()))
            self._server = server
            address = f"{host}:{server.server_address[1]}"
            logger.info("Metrics for Prometheus are at http://%s/metrics", address)

    async def close(self) -> None:
        """Free the port, even if there is no time to wait for the server's thread."""
        server = self._server
        self._server = None
        if server is not None:
            with suppress(OSError):  # not every system allows it
                # Wakes the thread, which otherwise checks only twice a second whether to end.
                server.socket.shutdown(socket.SHUT_RDWR)
            try:
                await asyncio.to_thread(server.shutdown)
            finally:
                server.server_close()

    def on_event(self, event: Event) -> None:
        kind = type(event)
        if isinstance(event, PermitGranted):
            self._count_permit(event.permit.scope)
            label = self._labels.label_of(event.permit.scope)
            self._reused.labels(label).inc(event.reused)
            self._waits.labels(label).observe(event.permit.wait)
        elif isinstance(event, RoundTrip):
            self._round_trips.observe(event.seconds)
        elif isinstance(event, ProcessStalled):
            self._stalls.inc(event.seconds)
        elif kind in self._counters:
            self._counters[kind].inc()

    def _count_permit(self, scope: str) -> None:
        self._permits[scope] += 1
        if len(self._permits) > COUNTED_SCOPES_MAX:
            busiest = dict(self._permits.most_common(COUNTED_SCOPES_MAX // 2))
            self._permits.clear()
            self._permits.update(busiest)

    def collect(self) -> Iterator[Metric]:
        """All metrics as they are now. The registry calls it, in a client's thread."""
        for metric in (
            self._reused,
            self._waits,
            *self._counters.values(),
            self._round_trips,
            self._stalls,
            self._node_info,
        ):
            for family in metric.collect():
                # `disable_created_metrics` would do it for the whole host process.
                family.samples = [s for s in family.samples if not s.name.endswith("_created")]
                yield family


def scope_label(scope: str) -> str:
    """A scope's name as a label: valid UTF-8, and short."""
    name = scope.encode("utf-8", "backslashreplace").decode()
    if name == scope and len(name) <= LABEL_CHARS_MAX:
        return name
    digest = sha256(encoded(scope)).hexdigest()
    return f"{name[:LABEL_CHARS_MAX]}~{digest[:8]}"
