"""What a node tells Prometheus.

Only what time would wipe out is counted as it happens: how long each request waited, and how long
the server took. All else is looked up when somebody asks, in the places where it is known anyway.
Without `SEMAPHORE_METRICS_PORT` nothing of this exists, and prometheus-client is not imported.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

from semaphore_middleware.core.observer import Event, Observer, PermitGranted, RoundTrip
from semaphore_middleware.core.permit import Stage
from semaphore_middleware.core.semaphore import FairSemaphore
from semaphore_middleware.errors import SettingsError
from semaphore_middleware.model.rules import LIMITLESS
from semaphore_middleware.telemetry.endpoint import Endpoint
from semaphore_middleware.telemetry.stats import SemaphoreStats

if TYPE_CHECKING:
    from prometheus_client import Metric

logger = logging.getLogger(__name__)

WAITS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)  # seconds
ROUND_TRIPS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)

NAMED = 50  # scopes that have series of their own, in the whole life of a crawl
FIRST = 25  # of these, so many are the first; the others must be busy, as a broad crawl's are not
BUSY = 100  # permits from which on a scope is
OTHERS = "(others)"  # what all further scopes are called together
LONG = 100  # characters of a scope's name, above which it is cut

EVENTS = {  # of SemaphoreStats: their counters, and what these say
    "lost": ("semaphore_permits_lost", "Permits that could not be renewed in time."),
    "backoffs": ("semaphore_backoffs", "Times a site said 'not now' to this node."),
    "timeouts": ("semaphore_timeouts", "Requests that waited longer than they may."),
    "reconnects": ("semaphore_reconnects", "Connections to the server that were lost."),
    "store_losses": ("semaphore_store_losses", "Times the server was new or had lost its data."),
}


class Histogram:
    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.sum += seconds

    @property
    def count(self) -> int:
        return sum(self._counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Each bound with how many were not above it, as Prometheus wants them."""
        cumulative, buckets = 0, []
        for bound, count in zip((*map(float, self._bounds), "+Inf"), self._counts, strict=True):
            cumulative += count
            buckets.append((str(bound), float(cumulative)))
        return buckets


class Series:
    """Of one scope, or of all the others together."""

    __slots__ = ("limit", "name", "waits")

    def __init__(self, name: str) -> None:
        self.name = name
        self.waits = Histogram(WAITS)
        self.limit: int | None = None
        """When last heard of."""


class Scopes:
    """Scopes to series. Prometheus keeps each name that it ever saw, so a crawl gives few. And it
    takes none back: a counter that went to another name would go down here, and jump there. What a
    scope had before it got its name stays with the others.
    """

    def __init__(self) -> None:
        self._named: dict[str, Series] = {}
        self._others = Series(OTHERS)

    def of(self, scope: str, acquired: Callable[[str], int] = lambda _: 0) -> Series:
        """`acquired` tells how many permits of a scope there were."""
        series = self._named.get(scope)
        if series is not None:
            return series
        number = len(self._named)
        name = label(scope)
        if name == OTHERS or number >= NAMED or (number >= FIRST and acquired(scope) < BUSY):
            return self._others
        series = self._named[scope] = Series(name)
        return series

    def __iter__(self) -> Iterator[tuple[str | None, Series]]:
        """Each series and its scope; None: several."""
        yield from self._named.items()
        if len(self._named) >= FIRST or self._others.waits.count:
            yield None, self._others


class Metrics(Observer):
    def __init__(self, host: str, port: int, stats: SemaphoreStats) -> None:
        self._host = host
        self._port = port
        self._stats = stats
        self._scopes = Scopes()
        self._round_trips = Histogram(ROUND_TRIPS)
        self._endpoint = Endpoint(self._page)

    @classmethod
    def of(cls, host: str, port: int | None, stats: SemaphoreStats) -> Metrics | None:
        """None: they are off. Raises `SettingsError` where they cannot be on."""
        if port is None:
            return None
        try:
            import prometheus_client  # noqa: F401 - whether it is there
        except ImportError:
            raise SettingsError(
                f"SEMAPHORE_METRICS_PORT = {port}: this needs prometheus-client; "
                "install it with: pip install 'scrapy-semaphore[metrics]'"
            ) from None
        return cls(host, port, stats)

    async def open(self, semaphore: FairSemaphore) -> None:
        """Serve. A port that is taken must not end a crawl, so that is only said."""
        self._semaphore = semaphore
        try:
            address = await self._endpoint.open(self._host, self._port)
        except OSError as error:
            logger.warning(
                "SEMAPHORE_METRICS_PORT = %d: cannot listen on %s (%s). The crawl goes on without "
                "metrics; give each crawl of a machine a port of its own, or 0 for any free one.",
                self._port,
                self._host,
                error.strerror or error,
            )
        else:
            logger.info("Metrics for Prometheus are at %s", address)

    async def close(self) -> None:
        await self._endpoint.close()

    def on_event(self, event: Event) -> None:
        if isinstance(event, PermitGranted):
            permit = event.permit
            self._scopes.of(permit.scope, self._stats.acquired_of).waits.observe(permit.wait)
        elif isinstance(event, RoundTrip):
            self._round_trips.observe(event.seconds)

    # When somebody asks -------------------------------------------------------------------------

    def _page(self, accepts: str) -> tuple[str, bytes]:
        from prometheus_client.exposition import choose_encoder

        encode, content_type = choose_encoder(accepts)
        # All that it does with a registry is to collect. None is needed, so none can be shared.
        return content_type, encode(self)

    def collect(self) -> Iterator[Metric]:
        """As a collector of prometheus-client does."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
            InfoMetricFamily,
        )

        by_scope = ["scope"]
        held_gauge = GaugeMetricFamily(
            "semaphore_permits_held", "Permits that this node holds.", labels=by_scope
        )
        waiting_gauge = GaugeMetricFamily(
            "semaphore_requests_waiting",
            "Requests of this node that have asked for a permit and have none.",
            labels=by_scope,
        )
        limit_gauge = GaugeMetricFamily(
            "semaphore_limit",
            "How many may hold a permit on all nodes together, as this node last heard.",
            labels=by_scope,
        )
        granted = CounterMetricFamily(
            "semaphore_permits_granted", "Permits that requests of this node got.", labels=by_scope
        )
        waits = HistogramMetricFamily(
            "semaphore_wait_seconds", "From asking for a permit to getting it.", labels=by_scope
        )
        held, waiting = self._held_and_waiting()
        for scope, series in self._scopes:
            name = [series.name]
            held_gauge.add_metric(name, held[series.name])
            waiting_gauge.add_metric(name, waiting[series.name])
            if scope is not None:  # those of several would mean nothing
                series.limit = self._semaphore.limit_of(scope) or series.limit
            if series.limit is not None:
                limited = series.limit < LIMITLESS
                limit_gauge.add_metric(name, series.limit if limited else float("inf"))
            granted.add_metric(name, series.waits.count)
            waits.add_metric(name, series.waits.buckets(), series.waits.sum)
        yield from (held_gauge, waiting_gauge, limit_gauge, granted, waits)
        for event, (name_of_event, text) in EVENTS.items():
            yield CounterMetricFamily(name_of_event, text, value=self._stats.counts[event])
        yield HistogramMetricFamily(
            "semaphore_server_round_trip_seconds",
            "From sending a call to the server to its answer.",
            buckets=self._round_trips.buckets(),
            sum_value=self._round_trips.sum,
        )
        yield InfoMetricFamily(
            "semaphore_node", "This node's name elsewhere.", value={"node": self._semaphore.node}
        )

    def _held_and_waiting(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """By the names of series. Waiting is also who has asked and not been answered: while the
        server cannot be reached, that is everyone.
        """
        held: Counter[str] = Counter()
        waiting: Counter[str] = Counter()
        for permit in self._semaphore.permits():
            name = self._scopes.of(permit.scope, self._stats.acquired_of).name
            (held if permit.stage is Stage.HELD else waiting)[name] += 1
        return held, waiting


def label(scope: str) -> str:
    """A scope's name as Prometheus can keep it: it is UTF-8, and short."""
    name = scope.encode("utf-8", "backslashreplace").decode()
    if name == scope and len(name) <= LONG:
        return name
    digest = sha256(scope.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{name[:LONG]}~{digest[:8]}"
