"""The spans of waits, as OpenTelemetry's SDK exports them."""

from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from scrapy import Request

from semaphore_middleware.scrapy.crawl import crawl_of
from tests.support.crawls import Crawl, pages, waiting
from tests.support.nodes import eventually
from tests.support.servers import RedisServer
from tests.support.site import Site


async def test_each_wait_has_a_span(server: RedisServer, site: Site) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    first, second = pages(site, 2, "/slow/")
    late = Request(site.url("/slow/late"), meta={"max_retry_times": 0})
    # Long even for a busy machine: the other requests must get their permits in time.
    brief: dict[str, Any] = {"limit": 1, "SEMAPHORE_ACQUIRE_TIMEOUT": 2.0}
    crawl = Crawl(server, first, late, **brief)
    await site.until(lambda: site.now == 1)
    node = crawl_of(crawl.crawler).semaphore.node
    await eventually(lambda: len(crawl.spider.failures) == 1)
    crawl.crawler.engine.crawl(second)
    await eventually(lambda: waiting(server) == 1)
    await crawl.gave_back(2, site)
    gave_up, granted = exporter.get_finished_spans()
    for span in (gave_up, granted):
        assert span.name == "wait for a permit"
        assert span.attributes == {"semaphore.scope": "127.0.0.1", "semaphore.node": node}
        assert span.parent is None
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.start_time < span.end_time
    assert (gave_up.status.is_ok, granted.status.is_ok) == (False, True)
    assert gave_up.status.description == "AcquireTimedOut"
