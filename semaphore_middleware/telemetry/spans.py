"""A span of OpenTelemetry for each wait. Import it only where opentelemetry-api is installed."""

from __future__ import annotations

import time

from opentelemetry.context import Context
from opentelemetry.trace import StatusCode, get_tracer

from semaphore_middleware.core.observer import (
    AcquireTimedOut,
    Event,
    FailedAtOnce,
    ObservedSemaphore,
    Observer,
    PermitGranted,
)


class WaitSpans(Observer):
    """Records a span for each request that waited for its permit, from asking to the grant.

    Spans of requests that gave up, or whose site is down, have the status ERROR. Without an SDK
    set up in the process, OpenTelemetry records nothing.
    """

    hears = (PermitGranted, AcquireTimedOut, FailedAtOnce)

    async def open(self, semaphore: ObservedSemaphore) -> None:
        self._node = semaphore.node
        self._tracer = get_tracer("scrapy-semaphore")

    def on_event(self, event: Event) -> None:
        assert isinstance(event, self.hears)
        permit, is_granted = event.permit, isinstance(event, PermitGranted)
        if is_granted and not permit.waited:
            return
        now_ns = time.time_ns()
        span = self._tracer.start_span(
            "wait for a permit",
            Context(),  # not the one of whoever was granted it or gave it back
            attributes={"semaphore.scope": permit.scope, "semaphore.node": self._node},
            start_time=now_ns - int(1e9 * permit.wait),
        )
        if not is_granted:
            span.set_status(StatusCode.ERROR, type(event).__name__)
        span.end(now_ns)
