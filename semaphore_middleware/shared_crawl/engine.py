"""The private parts of Scrapy 2.19 used by the scheduler only, with reasons."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Container, Iterable, MutableMapping, Set
from http.cookiejar import Cookie
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from scrapy import Request, signals
from scrapy.downloadermiddlewares.httpproxy import HttpProxyMiddleware
from scrapy.extensions.feedexport import FeedExporter
from scrapy.http import Response
from scrapy.pqueues import DownloaderInterface
from scrapy.utils.reactor import is_reactor_installed
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from semaphore_middleware.scrapy.engine import Engine

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.http.cookies import CookieJar

PROXY_AUTH = b"Proxy-Authorization"

Throttled: TypeAlias = Callable[[AsyncIterator[Any]], AsyncIterator[Any]]
"""Passes on a spider's start requests, each when it may be queued."""


class SlotsWithRoom(DownloaderInterface):
    """The slots of Scrapy's downloader, without those of full sites.

    A slot is named after its site, unless `download_slot` in a request's meta names it: then only
    the downloader knows which sites it has, and it is never left out.
    """

    def __init__(self, crawler: Crawler, sites: Container[str]) -> None:
        super().__init__(crawler)
        self._sites = sites

    def stats(self, possible_slots: Iterable[str]) -> list[tuple[int, str]]:
        """The load and the name of each slot open to the queue."""
        return super().stats(
            slot for slot in possible_slots if slot not in self._sites or not self.is_full(slot)
        )

    def is_full(self, site: str) -> bool:
        """True if a further request of this site would wait in its slot. While the downloader is
        less than half full, some may wait, so that the next one starts as soon as another ends.
        """
        slot = self.downloader.slots.get(site)
        if slot is None or len(slot.active) < slot.concurrency:
            return False
        return 2 * len(self.downloader.active) > self.downloader.total_concurrency


class CrawlEngine(Engine):
    """A crawler's engine as its scheduler uses it."""

    def after_fetch(self, change: Callable[[Any, Request], Any]) -> None:
        """Pass each result of the downloader's `fetch` through `change`."""
        self.wrap_fetch(lambda fetch, request: fetch(request).addBoth(change, request))

    def before_callback(self, note: Callable[[Request], None]) -> None:
        """Call `note` with each request whose callback is about to get its response.

        `call_spider_async` is replaced: no signal says whether a spider middleware has kept a
        response from the spider, as Scrapy's own does with error statuses.
        """
        scraper = self._crawler.engine.scraper
        call_spider = scraper.call_spider_async

        async def call_spider_async(result: Response | Failure, request: Request) -> Any:
            if isinstance(result, Response):
                note(request)
            return await call_spider(result, request)

        setattr(scraper, "call_spider_async", call_spider_async)  # noqa: B010

    @property
    def in_progress(self) -> Set[Request]:
        """The engine's unfinished requests.

        Private: `_slot`, as no signal is sent when a request's callback has finished.
        """
        slot = self._crawler.engine._slot
        assert slot is not None, "a scheduler is used while its spider is open"
        return slot.inprogress

    def feed_files(self) -> list[IO[bytes]]:
        """The open files of the feeds.

        `slots` is not documented, and there is no public way to a feed's file.
        """
        exporter = self._crawler.get_extension(FeedExporter)
        files = [slot.file for slot in exporter.slots] if exporter is not None else []
        return [file for file in files if file is not None and not file.closed]

    def cookies_of(self, jar: object) -> list[dict[str, Any]]:
        """The cookies of one session of the spider."""
        jars = self._cookie_jars()
        return [vars(cookie) for cookie in jars[jar].jar] if jars and jar in jars else []

    def add_cookies(self, jar: object, cookies: Iterable[dict[str, Any]]) -> None:
        """Put cookies, as `cookies_of` gives them, into a session's jar."""
        if (jars := self._cookie_jars()) is None:
            return
        for fields in cookies:
            named = {name.removeprefix("_"): value for name, value in fields.items()}
            jars[jar].jar.set_cookie(Cookie(**named))

    def _cookie_jars(self) -> MutableMapping[object, CookieJar] | None:
        """The spider's sessions; None if its cookies are not kept.

        `jars` is not documented, and there is no public way to a session's cookies.
        """
        from scrapy.downloadermiddlewares.cookies import CookiesMiddleware  # with tldextract

        middleware = self._crawler.get_downloader_middleware(CookiesMiddleware)
        return middleware.jars if middleware is not None else None

    def leave_out_own_proxy(self, fields: dict[str, Any]) -> None:
        """Remove from a request's fields the proxy, with its credentials, that Scrapy took from
        this process's environment. If another component has chosen a proxy since, that one stays.

        `proxies` is not documented, and neither are the keys that the middleware adds to `meta`.
        """
        if "_scheme_proxy" not in fields["meta"]:
            return
        middleware = self._crawler.get_downloader_middleware(HttpProxyMiddleware)
        proxies = middleware.proxies.values() if middleware is not None else ()
        own = {url: credentials for credentials, url in proxies}
        if (proxy := fields["meta"].get("proxy")) in own:
            fields["meta"] = dict(fields["meta"])  # a copy: the request keeps its own
            for name in ("proxy", "_scheme_proxy", "_auth_proxy"):
                fields["meta"].pop(name, None)
            if fields["headers"].get(PROXY_AUTH) == [b"Basic %b" % (own[proxy] or b"")]:
                del fields["headers"][PROXY_AUTH]

    def throttle_start(self, throttled: Throttled) -> None:
        """Have the spider's start requests throttled.

        Private: `_start`, which the engine reads without a break when its downloader is full.
        """
        engine = self._crawler.engine
        if engine._start is not None:
            engine._start = throttled(engine._start)

    @property
    def reads_start(self) -> bool:
        """True while the spider's `start` has not ended.

        Private: `_start`, as no signal is sent when `start` ends.
        """
        return self._crawler.engine._start is not None

    def finish(self) -> None:
        """Let the spider close, as there is nothing left to crawl, even if its `start` still waits
        for more.
        """
        if self.reads_start:
            self.close_soon("finished")
        else:
            self.wake()

    def send_request_dropped(self, request: Request) -> None:
        """Send the signal `request_dropped`. The engine itself sends it only for schedulers that
        reject duplicates at once.
        """
        self._crawler.signals.send_catch_log(
            signals.request_dropped, request=request, spider=self._crawler.spider
        )

    def fail_when_cut_short(self, has_ended: Callable[[], bool]) -> None:
        """Let the process exit with status 1 if it is stopped before its crawl `has_ended`. To be
        called in a scheduler's `open`.

        Scrapy ends the process at once, with status 0, if it is stopped twice. Its commands check
        the crawl's task at the task's end.
        """
        crawl = asyncio.current_task()
        if crawl is None or not is_reactor_installed():
            return
        from twisted.internet import reactor

        def cut_short() -> Deferred[object] | None:
            if crawl.done() or has_ended():
                return None
            self.end_with_failure()
            crawl.cancel()
            return Deferred.fromFuture(asyncio.ensure_future(asyncio.wait({crawl})))

        events: Any = reactor
        events.addSystemEventTrigger("before", "shutdown", cut_short)

    async def crawl_start_requests(self, throttled: Throttled) -> None:
        """Crawl the spider's start requests once more, throttled.

        `scraper.spidermw` is not documented. The engine itself asks for start requests only once.
        """
        engine = self._crawler.engine
        start = await engine.scraper.spidermw.process_start()
        assert start is not None
        async for request in throttled(start):
            if isinstance(request, Request):
                engine.crawl(request)
