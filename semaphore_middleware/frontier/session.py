"""One node's background session with a shared crawl's server.

Calls are batched, and the engine waits for no reply: what the scheduler reports is collected and
sent in one call; what it reports meanwhile is sent in the next. A call carries the new requests, in
their order, then the finished ones, then the demand for more. So a request counts as finished only
when every request that its callback has yielded is on the server.

A server that was promoted may lack the last calls, all from one call on. Then it has the requests
that were finished in these still as taken by their nodes, and they go back to the queues when their
nodes are idle. What was queued of late is sent again (`outbox.py`).

What was not answered in time is sent again with half as many requests, and asks for half as many.
Each call that is answered lets the next have one more.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress

from scrapy import Request
from scrapy.crawler import Crawler

from semaphore_middleware.errors import ServerRefusedError, ServerUnreachableError
from semaphore_middleware.frontier.client import (
    CALL_TIMEOUT_S,
    NO_DEMAND,
    NO_STATS,
    CrawlClient,
    CrawlEndedError,
    CrawlLostError,
    Demand,
    IdleReply,
    NextStep,
    NothingFetchedError,
    OtherCrawlError,
    Queued,
    RunOverError,
    SyncReply,
    TakenRequest,
    WrongTypeError,
)
from semaphore_middleware.frontier.codec import Codec
from semaphore_middleware.frontier.feeds import Feeds
from semaphore_middleware.frontier.outbox import MAX_NEW_REQUESTS, Outbox
from semaphore_middleware.frontier.prefetch import Prefetch
from semaphore_middleware.model.lease import RENEWAL
from semaphore_middleware.redis.connection import CallTimeoutError, is_full
from semaphore_middleware.redis.link import Subscription
from semaphore_middleware.scrapy.engine import Engine

logger = logging.getLogger(__name__)

LONGEST_STOP_S = 3 * CALL_TIMEOUT_S
STARTS_AT_ONCE = 100  # start requests that are taken from the users' key in a call
STARTS_POLL_S = 1.0  # a node that waits looks for further ones so often
SUMMED_STATS = (
    *("downloader/request_count", "downloader/request_bytes", "downloader/response_count"),
    *("downloader/response_bytes", "downloader/exception_count", "item_scraped_count"),
    *("item_dropped_count", "log_count/ERROR", "log_count/WARNING", "retry/count"),
)
SUMMED_GROUPS = (
    *("downloader/response_status_count/", "downloader/exception_type_count/"),
    "spider_exceptions/",
)
"""What all nodes have counted in sum is on the server: these stats, and all that begin so."""


class FrontierSession:
    """Collects what the scheduler reports, and sends it to the server from a task of its own."""

    def __init__(
        self,
        client: CrawlClient,
        crawler: Crawler,
        engine: Engine,
        on_data_loss: Callable[[], None],
        on_misfit: Callable[[Exception], None],
    ) -> None:
        assert crawler.spider is not None, "a scheduler is opened with its spider"
        self._client = client
        self._settings = client.settings
        self._interval_s = RENEWAL * self._settings.lease
        self._subscription = Subscription(
            client.link,
            [client.channel],
            self._interval_s,
            lambda _: self.check_again(),
            "new requests of other nodes are learned of within 5 s",
        )
        self._crawler = crawler
        self._engine = engine
        self._feeds = Feeds(engine, crawler.settings)
        self._on_data_loss = on_data_loss
        self._on_misfit = on_misfit
        self.codec = Codec(crawler.spider, engine, self._settings)
        self.prefetch = Prefetch(crawler)
        self.outbox = Outbox(self.codec, self._place_of)
        engine.after_fetch(self.prefetch.on_fetched)
        engine.before_close(self.prefetch.on_closing)
        # The run.
        self._identity: dict[str, str] = {}
        self.ended = False  # the crawl, for all nodes or without this one
        self.has_failed = False  # something of it is missing
        self._ended_idle = False  # when it ended, this node had nothing to do
        # What the server knows, and when it was told; times are by the loop's clock.
        self._working = False  # the node has a lease
        self._life = ""  # the server's, when it was last looked at
        self._stats_sent: dict[str, int] = {}
        self._joined_at = 0.0
        self._renewal_at = self._count_at = self._look_at = 0.0  # next, all once an interval
        # What is to be said to it.
        self._unreadable: list[bytes] = []  # places of requests that go back
        self._most_requests = MAX_NEW_REQUESTS  # in a call, each way: fewer after a time-out
        self._wants_more = False
        self._wants_idle = False
        self._engine_waits = False  # it was given no request, and is to be woken when there is one
        # Set if the server had nothing to take: the sites that were skipped, which may have more.
        self._empty_except: frozenset[str] | None = None
        self._notified = False  # since the last call began
        # The loop.
        self._leaving = False
        self._has_work = asyncio.Event()
        self._check_at = math.inf  # while the node waits: when it asks the server again
        self._task: asyncio.Task[None] | None = None

    # Called by the scheduler --------------------------------------------------------------------

    def enqueue(self, request: Request) -> None:
        """Queue a request on the server, soon. Raises any error for one that cannot be stored."""
        if not self.prefetch.was_given_up(request):  # else it is there
            self.outbox.add(request)
            self._has_work.set()

    def _place_of(self, request: Request, is_start: bool) -> bytes:
        return self._client.new_place(self.prefetch.site_of(request), -request.priority, is_start)

    def next_request(self) -> Request | None:
        """The next request, if one is ready. If not, the engine is woken when that may change."""
        request = self.prefetch.start_next()
        self._engine_waits = request is None
        if self.prefetch.is_low and self._may_have_more():
            self._wants_more = True
        if self._engine_waits or self._wants_more:
            self._has_work.set()
        return request

    def on_idle(self) -> None:
        """The engine has nothing left to do. It is woken when that changes."""
        self._wants_idle = True
        self._has_work.set()

    def on_held_open(self) -> None:
        """Another component keeps the idle spider open, as it may have requests: the node works."""
        if not self._working:
            self._working = True
            self._renewal_at = 0.0
            self._has_work.set()

    def check_again(self) -> None:
        """Ask the server for requests: it has sent a notification, or a time has passed.

        Of one that had none, also if the engine is full by now and will not ask: the server has
        told this node, and tells the next one when it asks.
        """
        if self._empty_except is not None:
            self._wants_more = True
            self._has_work.set()
        self._notified = True
        self._empty_except = None
        self._engine.wake()

    @property
    def has_pending(self) -> bool:
        """True if requests may come without any further response."""
        if self.ended:
            return False
        # While the server is unavailable nobody knows: the spider must not count as idle.
        is_away = self._client.link.problem is not None
        return bool(self.outbox or self.prefetch.ready or is_away or self._may_have_more())

    def _may_have_more(self) -> bool:
        skipped = self._empty_except
        return skipped is None or not all(map(self.prefetch.is_skipped, skipped))

    # The background task ------------------------------------------------------------------------

    async def join(self, identity: dict[str, str]) -> None:
        """Join the crawl and begin to send. `identity` is what all nodes have in common.

        Raises what `Engine.reach` does, `ServerRefusedError` where waiting would not help,
        `CrawlEndedError` and `OtherCrawlError`.
        """
        self._identity = identity
        link = self._client.link

        async def join() -> int:
            await self._client.check_rights()
            unfinished, _ = await self._client.join(identity, self._settings.run == "new")
            return unfinished

        joining = link.insist(join, (ServerRefusedError,))
        unfinished = await self._engine.reach(
            link.server, joining, self._settings.start_timeout, lambda: link.problem
        )
        logger.info(
            "Node %s joins the crawl; unfinished requests: %d", self._client.node, unfinished
        )
        self._working = True
        self._joined_at = _now()
        self._life = self._client.link.life
        self._subscription.start()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Send what is left and leave the crawl, within `LONGEST_STOP_S`."""
        self._leaving = True
        await self._subscription.close()
        if self._task is not None:
            # The reply to a call that is under way may tell of requests that are set aside.
            self._has_work.set()
            await asyncio.wait({self._task}, timeout=CALL_TIMEOUT_S)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            try:
                async with asyncio.timeout(LONGEST_STOP_S - CALL_TIMEOUT_S):
                    await self._client.link.insist(self._leave, (ServerRefusedError,))
            except (ServerRefusedError, TimeoutError) as error:
                logger.warning(
                    "Cannot leave the crawl (%s): other nodes get this node's requests in %g s, "
                    "when its lease expires",
                    str(error) or "no reply",
                    self._settings.lease,
                )
        await self._client.link.close()

    async def _leave(self) -> None:
        """Send what is left, with half as much where a call is not answered, and leave."""
        with suppress(RunOverError):
            await self._send_rest()
        # What has led to requests that the server refuses is not finished: others do it.
        finished = [] if self.outbox else self._finished()
        await self._client.leave(finished, self._counted())

    async def _send_rest(self) -> None:
        self._wants_more = False
        try:
            await self._look_if_due()
            while self.outbox or self._unreadable:
                await self._sync(self._finished())
                await self._look_if_due()
        except ServerUnreachableError as error:
            if not is_full(error):
                raise

    async def _run(self) -> None:
        while not (self.ended or self._leaving):
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(self._renewal_at, self._check_at)):
                    await self._has_work.wait()
            self._has_work.clear()
            if _now() >= self._check_at:
                self._check_at = math.inf
                self.check_again()
            was_away = self._client.link.problem is not None
            if not await self._client.link.attempt(self._send):
                self._has_work.set()
            elif was_away:
                self._engine.wake()  # what it reported last is lost, such as that it is idle

    async def _send(self) -> None:
        await self._look_if_due()
        wants_idle, self._wants_idle = self._wants_idle, False
        finished = self._finished()
        try:
            # Scrapy counts as idle with a request between downloader and spider: that one still
            # has to be finished, also if it is of a run that the server has lost.
            is_done = self.prefetch.has_only(finished) and not self._engine.in_progress
            if wants_idle and is_done and not self.outbox:
                if not await self._take_starts():
                    await self._idle(finished)
            else:
                await self._sync(finished)
        except (ServerUnreachableError, ServerRefusedError):
            self._wants_idle |= wants_idle  # else a call without anything to say would be the next
            raise
        except CrawlEndedError:
            self._end()
        except NothingFetchedError:
            self._end_without_pages()
        except CrawlLostError:
            await self._rejoin()

    async def _look_if_due(self) -> None:
        """Look whether the server has changed, now and then, and before the first call over a new
        connection; if it has, send again what the new one may lack.
        """
        link, is_due = self._client.link, _now() >= self._look_at
        if not is_due and link.is_open and link.life == self._life:
            return
        await link.look()
        is_same = link.life == self._life
        if is_due or not is_same:
            self._look_at = _now() + self._interval_s
        if not is_same:
            self._life = link.life
            self.outbox.send_again()
            self._has_work.set()
            await self._subscription.renew()
        elif is_due and link.problem is None:
            # While it refuses calls, what was queued last stays: what led to it is not finished.
            self.outbox.on_same_server()

    # One call -----------------------------------------------------------------------------------

    def _finished(self) -> list[TakenRequest]:
        """The requests that are done: their items are written, too."""
        finished = self.prefetch.finished(self._engine.in_progress)
        if finished:
            self._feeds.flush()
        return finished

    async def _sync(self, finished: list[TakenRequest]) -> None:
        new = self.outbox.next(self._most_requests)
        if len(new) < len(self.outbox):
            finished = []
        demand = NO_DEMAND
        if self._wants_more:
            demand = self.prefetch.demand(self._most_requests, finished)
        now, unreadable = _now(), self._unreadable
        due = now >= self._renewal_at
        if not (new or finished or unreadable or demand.requests or due):
            return
        self._notified = False
        had_suspect = self.prefetch.has_suspect
        counted = self._counted() if now >= self._count_at else NO_STATS
        try:
            reply = await self._client.sync(
                new,
                finished,
                demand,
                self._working,
                unreadable,
                counted,
            )
        except CallTimeoutError:
            self._most_requests = max(1, max(len(new), demand.requests) // 2)
            raise
        except ServerUnreachableError as error:
            if new and is_full(error):  # all that such a server does for this node
                self._on_renewed(now, await self._client.sync(working=self._working))
            raise
        self._most_requests = min(MAX_NEW_REQUESTS, self._most_requests + 1)
        self._unreadable = []
        if now >= self._count_at:
            self._stats_sent.update(counted)
            self._count_at = now + self._interval_s
        self._on_renewed(now, reply)
        self.prefetch.forget(finished)
        self._log_set_aside(reply.set_aside)
        self._on_queued(self.outbox.on_queued(reply.queued))
        self._on_taken(demand, reply)
        if had_suspect and not self.prefetch.has_suspect:
            self.check_again()  # it may have the next one
        if self._engine_waits and (new or demand.requests):
            self._engine.wake()
        if self.outbox:
            self._has_work.set()
        elif demand.requests and not reply.taken:
            await self._take_starts()

    def _on_renewed(self, now: float, reply: SyncReply) -> None:
        if reply.lease_expired:
            self._on_lease_expired(now)
        self._renewal_at = now + self._interval_s

    def _on_lease_expired(self, now: float) -> None:
        """What the node has started may still be finished by it; the rest others have by now."""
        self.prefetch.forget_ready()
        silent = now - (self._renewal_at - self._interval_s)
        if self._renewal_at and silent > self._settings.lease:
            logger.warning(
                "This node was silent for %.0f s, longer than CRAWL_LEASE (%g s), so its requests "
                "went to other nodes. What it still finishes counts if none was quicker. A "
                "callback or a pipeline may have blocked it, or the server was away",
                silent,
                self._settings.lease,
            )

    def _counted(self) -> dict[str, int]:
        """What has changed since it was sent last."""
        counted = {}
        for name, value in self._crawler.stats.get_stats().items():
            if name in SUMMED_STATS or name.startswith(SUMMED_GROUPS):
                counted[name] = int(value)
        return dict(counted.items() - self._stats_sent.items())

    async def _take_starts(self) -> bool:
        """Queue some of the start requests that users have written; False if there are none."""
        if (key := self._settings.start_key) is None:
            return False
        try:
            found = await self._client.take_starts(key, STARTS_AT_ONCE, list(self.outbox.claims))
        except WrongTypeError as error:
            self._on_misfit(error)
            return False
        for claim, text in found:
            try:
                self.outbox.add_claimed(claim, text)
            except Exception as error:  # it comes from the text, which may be anything
                self._crawler.stats.inc_value("scheduler/unreadable_starts")
                logger.error("%s has no start request: %s", key, error)
        if found:
            self._has_work.set()
        return bool(found)

    def _on_queued(self, requests: Sequence[tuple[Request, Queued]]) -> None:
        for request, queued in requests:
            if queued is Queued.YES:
                self._crawler.stats.inc_value("scheduler/enqueued/redis")
                self._empty_except = None
                continue
            if queued is Queued.DUPLICATE:
                self.codec.log_duplicate(request)
            else:
                self._crawler.stats.inc_value("scheduler/over_budget/redis")
            self._engine.send_request_dropped(request)

    def _on_taken(self, demand: Demand, reply: SyncReply) -> None:
        for taken in reply.taken:
            self._working = True
            try:
                self.prefetch.add(self.codec.decode(taken.data), taken)
            except Exception as error:
                self._unreadable.append(taken.place)
                self._has_work.set()
                self._on_misfit(error)
        if demand.requests:
            self._wants_more = False
            nothing = not (reply.taken or self._notified)
            self._empty_except = demand.skipped_sites if nothing else None

    def _log_set_aside(self, requests: Sequence[bytes]) -> None:
        for data in requests:
            try:
                name = str(self.codec.decode(data))
            except Exception:
                name = "a request that cannot be read"
            self._crawler.stats.inc_value("scheduler/set_aside/redis")
            logger.warning(
                "Set aside, because three nodes have failed with it, the last one while it did "
                "nothing else: %s. scrapy frontier retry %s puts it back",
                name,
                self._settings.name,
            )

    # Idle, ended, lost --------------------------------------------------------------------------

    def drop(self, request: Request) -> None:
        """Drop a request that comes after the crawl's end. From a node that was at work then, as
        when the crawl has had all its pages, this is no wonder; else it comes from elsewhere.
        """
        self._crawler.stats.inc_value("scheduler/dropped_after_end")
        is_error = self._ended_idle and not self.has_failed
        logger.log(
            logging.ERROR if is_error else logging.INFO,
            "The crawl %r has ended: %s is dropped. CRAWL_WAIT = True lets a crawl wait for more",
            self._settings.name,
            request,
        )
        self.has_failed |= is_error

    async def _idle(self, finished: list[TakenRequest]) -> None:
        reply = await self._client.idle(finished, self._settings.wait)
        self.prefetch.forget(finished)
        self._log_set_aside(reply.set_aside)
        if self._working and reply.lease_expired:
            self._on_lease_expired(_now())
        self._working = False
        if reply.next_step is NextStep.CLOSE:
            self._log_missing(reply)
            self._end()
        elif reply.next_step is NextStep.CLOSE_EMPTY:
            self._end_without_pages()
        elif reply.next_step is NextStep.TAKE_MORE:
            self.check_again()
        else:
            polls_s = STARTS_POLL_S if self._settings.start_key is not None else math.inf
            self._check_at = _now() + min(reply.wait_s, polls_s)

    def _log_missing(self, reply: IdleReply) -> None:
        name = self._settings.name
        if reply.all_set_aside:
            self.has_failed = True
            logger.error(
                "The crawl %r ends without the requests that three nodes have failed with: %d. "
                "scrapy frontier retry %s puts them back, and the next node goes on with them",
                name,
                reply.all_set_aside,
                name,
            )
        if reply.all_failed:
            logger.warning(
                "The crawl %r ends; requests that have brought no page: %d. scrapy frontier retry "
                "%s puts them back, and the next node goes on with them",
                name,
                reply.all_failed,
                name,
            )

    def _end_without_pages(self) -> None:
        self.has_failed = True
        logger.error(
            "The crawl %r has fetched nothing, so it does not count as done: the next node that is "
            "started begins it anew",
            self._settings.name,
        )
        self._end()

    def _end(self) -> None:
        self.ended, self._ended_idle = True, not self._working
        for request in self.outbox.clear():
            self.drop(request)
            self._engine.send_request_dropped(request)
        self.prefetch.forget_all()
        self._engine.wake()

    async def _rejoin(self) -> None:
        now = _now()
        try:
            try:
                await self._client.join(self._identity)
            except CrawlEndedError as error:
                is_older = error.run == self._client.run_before
                if not is_older and error.ago < now - self._joined_at:
                    self._end()  # others have begun it anew, and done it all
                    return
                # The server has gone back to data from before this run.
                await self._client.join(self._identity, new_run=True)
        except OtherCrawlError as error:  # they were quicker
            self._on_misfit(error)
            self._end()
            return
        self._working = True
        self._joined_at = now
        logger.warning("The crawl's server has lost its data: the crawl starts over")
        for taken in self.prefetch.forget_all():
            self.enqueue(self.codec.decode(taken.data))
        self._empty_except = None
        self._on_data_loss()


def _now() -> float:
    return asyncio.get_running_loop().time()
