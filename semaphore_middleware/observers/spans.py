"""OpenTelemetry spans of waits. Import this module only where opentelemetry-api is installed."""

from __future__ import annotations

import time

from opentelemetry.context import Context
from opentelemetry.trace import StatusCode, get_tracer

from semaphore_middleware.core.observer import (
    AcquireTimedOut,
    FailedAtOnce,
    ObservedSemaphore,
    Observer,
    PermitGranted,
)
from semaphore_middleware.model.events import Event


class WaitSpans(Observer):
    """Records a span for each wait for a permit, from asking for it to the grant.

    The status is ERROR if the request gave up, or if its site is down or blocked. OpenTelemetry
    records nothing unless the process has set up an SDK.
    """

    kinds = (PermitGranted, AcquireTimedOut, FailedAtOnce)

    async def open(self, semaphore: ObservedSemaphore) -> None:
        self._node = semaphore.node
        self._tracer = get_tracer("scrapy-semaphore")

    def on_event(self, event: Event) -> None:
        assert isinstance(event, self.kinds)
        permit = event.permit
        is_granted = isinstance(event, PermitGranted)
        if is_granted and not permit.waited:
            return
        now_ns = time.time_ns()
        span = self._tracer.start_span(
            "wait for a permit",
            Context(),  # not that of the task in which the permit is granted or given back
            attributes={"semaphore.scope": permit.scope, "semaphore.node": self._node},
            start_time=now_ns - int(1e9 * permit.wait),
        )
        if not is_granted:
            span.set_status(StatusCode.ERROR, type(event).__name__)
        span.end(now_ns)
