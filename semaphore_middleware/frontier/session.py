"""One node's talk with the crawl's server.

Nothing is sent for one request, and the engine waits for no answer. What has gathered goes in one
call, and what comes up meanwhile goes in the next: what was produced, in its order; then what is
done; then the wish for more. So a request is done only when all that came of it is on the server.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import islice

from redis.exceptions import RedisError
from scrapy import Request
from scrapy.statscollectors import StatsCollector

from semaphore_middleware.frontier.client import (
    NOTHING,
    Answer,
    CrawlEndedError,
    CrawlLostError,
    Entry,
    Next,
    RunOverError,
    SharedCrawl,
    Taken,
    Wish,
)
from semaphore_middleware.frontier.codec import Packing
from semaphore_middleware.frontier.prefetch import Hand
from semaphore_middleware.frontier.subscription import address_of, end
from semaphore_middleware.scrapy.engine import Engine

logger = logging.getLogger(__name__)

AT_ONCE = 500  # entries in a call: the server does nothing else meanwhile
PATIENCE = 3.0  # seconds for an answer
TRY_AGAIN = 0.5  # seconds
FAREWELL = 1.0  # seconds that leaving may take


class Talk:
    """What the scheduler says here is noted, and one task tells the server."""

    def __init__(
        self,
        crawl: SharedCrawl,
        packing: Packing,
        hand: Hand,
        engine: Engine,
        stats: StatsCollector,
        on_loss: Callable[[], None],
    ) -> None:
        self._crawl = crawl
        self._packing = packing
        self._hand = hand
        self._engine = engine
        self._stats = stats
        self._on_loss = on_loss
        self.ended = False  # the crawl, for all nodes or without this one
        self._unsent: deque[tuple[Entry, Request]] = deque()
        self._works = False
        self._wants_more = False
        self._wants_rest = False
        self._empty_handed = False  # so the engine was told, and it must be woken
        # If the server had nothing to take: the sites that were passed over, which may have.
        self._nothing_but: frozenset[str] | None = None
        self._has_news = False
        self._away = False
        self._leaving = False
        self._something = asyncio.Event()
        self._renewal_at = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    # What the scheduler says --------------------------------------------------------------------

    def produce(self, request: Request) -> None:
        site = self._hand.site_of(request)
        self._unsent.append((self._packing.pack(self._crawl.new_id(), site, request), request))
        self._something.set()

    def begin(self) -> Request | None:
        """The next request, if one is at hand. If not, the engine is woken when that may change."""
        request = self._hand.begin()
        self._empty_handed = request is None
        if self._hand.is_low and self._may_have_more():
            self._wants_more = True
        if self._empty_handed or self._wants_more:
            self._something.set()
        return request

    def rest(self) -> None:
        """The engine has nothing left to do. It is woken when that changes."""
        self._wants_rest = True
        self._something.set()

    def look_again(self) -> None:
        """It is worth asking the server: it has news, or some time has passed."""
        self._has_news = True
        self._nothing_but = None
        self._engine.wake()

    @property
    def may_bring_requests(self) -> bool:
        if self.ended:
            return False
        # With the server away there may be some: the spider must not count as idle.
        return bool(self._unsent or self._hand.ahead or self._away or self._may_have_more())

    def _may_have_more(self) -> bool:
        """Whether it is worth asking the server."""
        passed_over = self._nothing_but
        return passed_over is None or not all(map(self._hand.is_passed_over, passed_over))

    # The task that says it ----------------------------------------------------------------------

    def start(self) -> None:
        self._task = asyncio.create_task(self._serve())

    async def stop(self) -> None:
        """Say what is left to say, and give back what is in hand."""
        self._leaving = True
        if self._alarm is not None:
            self._alarm.cancel()
        if self._task is not None:
            await end(self._task)
        try:
            async with asyncio.timeout(FAREWELL):
                await self._leave()
        except (RedisError, OSError) as error:
            told = str(error) or "no answer"
            logger.warning("Cannot leave the crawl, its lease does the rest: %s", told)

    async def _leave(self) -> None:
        self._wants_more = False
        with suppress(RunOverError):
            while self._unsent:
                await self._exchange(self._done())
        await self._crawl.leave(self._done())

    async def _serve(self) -> None:
        while not (self.ended or self._leaving):
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._renewal_at if self._works else None):
                    await self._something.wait()
            self._something.clear()
            try:
                async with asyncio.timeout(PATIENCE):
                    await self._speak()
            except Exception as error:
                # Whatever it is: without this task the crawl would stand still for ever.
                await self._try_again_after(error)
            else:
                self._is_back()

    async def _speak(self) -> None:
        wants_rest, self._wants_rest = self._wants_rest, False
        done = self._done()
        try:
            # A request that Scrapy has lost sight of, between downloader and spider, is not done.
            if wants_rest and not self._unsent and self._hand.holds_only(done):
                await self._rest(done)
            else:
                await self._exchange(done)
        except CrawlEndedError:
            self._end()
        except CrawlLostError:
            await self._begin_anew()

    async def _try_again_after(self, error: Exception) -> None:
        if not isinstance(error, RedisError | OSError):
            told = "This should not happen; the crawl's server is asked again"
            logger.error(told, exc_info=error)
        elif not self._away:
            where = address_of(self._crawl.server)
            logger.warning("The crawl's server at %s is away: %s", where, str(error) or "no answer")
        self._away = True
        await asyncio.sleep(TRY_AGAIN)
        self._something.set()

    def _is_back(self) -> None:
        if self._away:
            self._away = False
            self._engine.wake()  # what it last asked for has not been said, such as that it rests

    # One call -----------------------------------------------------------------------------------

    def _done(self) -> list[str]:
        return self._hand.done(self._engine.in_progress)

    async def _exchange(self, done: list[str]) -> None:
        produced = [entry for entry, _ in islice(self._unsent, AT_ONCE)]
        if len(produced) < len(self._unsent):
            done = []
        wish = self._hand.wish() if self._wants_more else NOTHING
        now = asyncio.get_running_loop().time()
        must_renew = self._works and now >= self._renewal_at
        if not (produced or done or wish.requests or must_renew):
            return
        self._has_news = False
        answer = await self._crawl.exchange(produced, done, wish, self._works)
        self._renewal_at = now + self._crawl.lease / 3
        self._hand.forget(done)
        self._hear_of_produced(answer.queued)
        self._hear_of_taken(wish, answer)
        if self._empty_handed and (produced or wish.requests):
            self._engine.wake()
        if self._unsent:
            self._something.set()

    def _hear_of_produced(self, queued: list[bool]) -> None:
        for is_queued in queued:
            _, request = self._unsent.popleft()
            if is_queued:
                self._stats.inc_value("scheduler/enqueued/redis")
                self._nothing_but = None
            else:
                self._packing.log_duplicate(request)
                self._engine.tell_of_drop(request)

    def _hear_of_taken(self, wish: Wish, answer: Answer) -> None:
        if answer.was_taken_for_dead:
            self._hand.forget_what_is_ahead()
        for taken in answer.taken:
            self._works = True
            self._take(taken)
        if wish.requests:
            self._wants_more = False
            nothing = not (answer.taken or self._has_news)
            self._nothing_but = wish.passed_over if nothing else None

    def _take(self, taken: Taken) -> None:
        try:
            self._hand.take(self._packing.unpack(taken.data), taken)
        except Exception:
            # The spider has changed since: no node could ever finish it.
            logger.exception("A request cannot be read any more and is dropped")
            self._hand.give_up(taken)

    # Rest, and ends -----------------------------------------------------------------------------

    async def _rest(self, done: list[str]) -> None:
        rest = await self._crawl.rest(done)
        self._hand.forget(done)
        self._works = False
        if rest.next is Next.CLOSE:
            self._end()
        elif rest.next is Next.TAKE_MORE:
            self.look_again()
        else:
            self._look_again_in(rest.seconds)

    def _look_again_in(self, seconds: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = asyncio.get_running_loop().call_later(seconds, self.look_again)

    def _end(self) -> None:
        self.ended = True
        for _, request in self._unsent:
            log_too_late(request)
            self._engine.tell_of_drop(request)
        self._unsent.clear()
        self._hand.forget_all()
        self._engine.wake()

    async def _begin_anew(self) -> None:
        await self._crawl.join()
        logger.warning("The crawl's server has lost its data: the crawl begins anew")
        for taken in self._hand.forget_all():
            self.produce(self._packing.unpack(taken.data))
        self._nothing_but = None
        self._on_loss()


def log_too_late(request: Request) -> None:
    logger.info("The crawl has ended without this node: %s is dropped", request)
