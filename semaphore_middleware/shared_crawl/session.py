"""One node's connection to the server of a shared crawl."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from semaphore_middleware.errors import ServerRefusedError, ServerUnreachableError
from semaphore_middleware.link import embedded
from semaphore_middleware.link.connection import CallTimeoutError, Connection, is_full
from semaphore_middleware.link.link import Subscription
from semaphore_middleware.link.renewal_thread import Heartbeat, RenewalThread
from semaphore_middleware.shared_crawl.client import (
    CALL_TIMEOUT_S,
    CrawlClient,
    CrawlEndedError,
    CrawlLostError,
    IdleReply,
    Joined,
    NotDoneError,
    OtherBudgetsError,
    OtherCrawlError,
    SyncReply,
    WrongTypeError,
)
from semaphore_middleware.shared_crawl.engine import CrawlEngine
from semaphore_middleware.shared_crawl.feeds import Feeds
from semaphore_middleware.shared_crawl.node_state import (
    CrawlCall,
    IdleCall,
    NodeState,
    Reservations,
    StartsCall,
    SyncCall,
)

logger = logging.getLogger(__name__)

LONGEST_STOP_S = 3 * CALL_TIMEOUT_S
LEAVE_UNCONFIRMED_S = 0.5  # at most, if it is unknown whether this node has joined
STARTS_PER_CALL = 100  # taken from the users' key


class CrawlSession:
    """Sends a node's calls to the server, from a task of its own.

    `on_data_loss` is called when the server has lost the crawl, and a new run has begun.
    """

    def __init__(
        self,
        client: CrawlClient,
        state: NodeState,
        engine: CrawlEngine,
        feeds: Feeds,
        on_mismatch: Callable[[Exception], None],
        on_data_loss: Callable[[], None],
        renewal_thread: RenewalThread,
    ) -> None:
        self._client = client
        self._state = state
        self._engine = engine
        self._feeds = feeds
        self._on_mismatch = on_mismatch
        self._on_data_loss = on_data_loss
        self._subscription = Subscription(
            client.link,
            [client.channel],
            state.interval_s,
            lambda _: state.check_again(),
            "other nodes' new requests are found within 5 s",
        )
        self._identity: dict[str, str] = {}
        self._may_be_joined = False  # the reply to a call that joins may be lost
        self._joined_at = 0.0
        self._incarnation = ""  # of the server, at its last check
        self._check_at = 0.0  # time of the next check
        self._is_leaving = False
        self._task: asyncio.Task[None] | None = None
        self._heartbeat = Heartbeat(
            renewal_thread,
            client.link,
            client.settings.lease,
            self._keep,
            lambda: state.works,
            lambda *_: None,  # the next call is due
        )

    @property
    def is_away(self) -> bool:
        """The server cannot be reached now, so the spider must not count as idle."""
        return self._client.link.problem is not None

    # Joining and leaving ------------------------------------------------------------------------

    async def join(self, identity: dict[str, str]) -> None:
        """Join the crawl and begin to send. `identity` must be equal on all nodes.

        Raises the errors of `Engine.reach`, `ServerRefusedError` if waiting would not help,
        `CrawlEndedError`, `OtherCrawlError` and `OtherBudgetsError`.
        """
        self._identity = identity
        settings = self._client.settings
        link = self._client.link

        async def join() -> Joined:
            await self._client.check_rights()
            self._may_be_joined = True
            return await self._client.join(identity, settings.run == "new")

        joining = link.insist(join, (ServerRefusedError,))
        joined = await self._engine.reach(
            link.server, joining, settings.start_timeout, lambda: link.problem
        )
        logger.info(
            "Node %s joins the crawl; unfinished requests: %d",
            self._client.node,
            joined.unfinished,
        )
        if joined.was_stopped and settings.run == "new":
            logger.warning(
                "CRAWL_RUN = 'new' has no effect: the last run of the crawl %r has not ended, "
                "and continues. To start over, end it first, with scrapy frontier drop %s; or "
                "give each run a name, such as CRAWL_RUN = '2026-11-25'",
                settings.name,
                settings.name,
            )
        if joined.left:
            logger.warning(
                "The run %r of the crawl %r begins. The last one was stopped before its end, and "
                "leaves unfinished requests: %d",
                settings.run,
                settings.name,
                joined.left,
            )
        if joined.forgotten:
            logger.warning(
                "A new run of the crawl %r begins, and deletes the last one's dead letters and "
                "failed requests: %d",
                settings.name,
                joined.forgotten,
            )
        self._state.works = True
        self._joined_at = _now()
        self._on_new_server()
        self._subscription.start()
        self._task = asyncio.create_task(self._run())
        self._heartbeat.start()

    async def stop(self) -> None:
        """Send everything left and leave the crawl, within `LONGEST_STOP_S`."""
        self._is_leaving = True
        await self._heartbeat.stop()
        await self._subscription.close()
        if self._task is not None:
            # The reply to a call under way may name new dead letters.
            self._state.has_work.set()
            await asyncio.wait({self._task}, timeout=CALL_TIMEOUT_S)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._may_be_joined:
            lease = f"{self._client.settings.lease:g} s"
            if self._task is not None:
                longest = LONGEST_STOP_S - CALL_TIMEOUT_S
                effect = f"other nodes get this node's requests in {lease}, when its lease expires"
            else:
                longest = LEAVE_UNCONFIRMED_S
                effect = f"if this node has joined, others may wait {lease} for its lease to expire"
            try:
                async with asyncio.timeout(longest):
                    await self._client.link.insist(self._leave, (ServerRefusedError,))
            except (ServerRefusedError, TimeoutError) as error:
                reason = str(error) or "no reply"
                logger.warning("Cannot leave the crawl (%s): %s", reason, effect)
        await self._client.link.close()

    async def _leave(self) -> None:
        if self._task is not None:
            await self._send_rest()
        # If the server refuses new requests, the requests that led to them stay unfinished: another
        # node repeats them.
        finished = [] if self._state.new_requests else self._state.finished()
        if finished:
            self._feeds.flush()
        await self._client.leave(finished, self._state.sums.changed())

    async def _send_rest(self) -> None:
        self._state.leave()
        try:
            await self._check_if_due()
            while self._state.has_unsent and not self._state.end.has_come:
                await self._send()
                await self._check_if_due()
        except ServerUnreachableError as error:
            if not is_full(error):
                raise

    # Calls --------------------------------------------------------------------------------------

    async def _run(self) -> None:
        state = self._state
        link = self._client.link
        while not (state.end.has_come or self._is_leaving):
            with suppress(TimeoutError):
                async with asyncio.timeout_at(state.call_at):
                    await state.has_work.wait()
            state.begin_cycle(_now())
            was_away = self.is_away
            if not await link.attempt(self._send):
                state.has_work.set()
            elif was_away:
                self._engine.wake()  # its last reports may be lost, as that it is idle

    async def _send(self) -> None:
        await self._check_if_due()
        try:
            await self._call_next()
        except CrawlEndedError as error:
            self._state.end.log_missing(error.missing)
            self._state.end_crawl()
        except NotDoneError as error:
            self._state.end.log_undone(error.missing)
            self._state.end_crawl()
        except CrawlLostError:
            if embedded.is_joined(self._client.settings.url):
                self._state.end.log_lost()
                self._state.end_crawl()
                self._engine.close_soon("crawl_lost")
            else:
                await self._rejoin()
        except WrongTypeError as error:
            self._state.on_wrong_type(error)

    async def _call_next(self) -> None:
        call = self._state.next_call(_now())
        if call is not None:
            self._state.on_reply(call, await self._reply_to(call), _now())

    async def _reply_to(self, call: CrawlCall) -> SyncReply | IdleReply | Reservations:
        match call:
            case SyncCall():
                return await self._sync(call)
            case IdleCall():
                self._feeds.flush()
                return await self._client.idle(call.finished, call.wait)
            case StartsCall():
                return await self._client.take_starts(call.key, STARTS_PER_CALL)

    async def _sync(self, call: SyncCall) -> SyncReply:
        if call.finished:
            self._feeds.flush()
        try:
            return await self._client.sync(
                call.new,
                call.finished,
                call.demand,
                call.working,
                call.unreadable,
                call.stats,
                call.stopping,
                call.held,
            )
        except CallTimeoutError:
            self._state.on_timeout(call)
            raise
        except ServerUnreachableError as error:
            if call.new and is_full(error):  # a full server still renews leases
                renewed = await self._client.sync(working=call.working, stopping=call.stopping)
                self._state.on_renewed(call, renewed)
            raise

    async def _keep(self, connect: Callable[[], Awaitable[Connection]]) -> bool:
        """Renew the lease while the loop is stalled, in the renewal thread."""
        return self._state.works and await self._client.keep(await connect())

    async def _check_if_due(self) -> None:
        """Check regularly, and before the first call over a new connection, whether another server
        has taken over. If so, send it again what it may lack.
        """
        link = self._client.link
        is_due = _now() >= self._check_at
        if not is_due and link.is_open and link.incarnation == self._incarnation:
            return
        await link.check_server()
        is_same = link.incarnation == self._incarnation
        if is_due or not is_same:
            self._check_at = _now() + self._state.interval_s
        if not is_same:
            self._on_new_server()
            self._state.on_promoted_server()
            await self._subscription.renew()
        elif is_due and not self.is_away:
            # While the server refuses calls, recently queued requests are kept, as the requests
            # that led to them are unfinished.
            self._state.new_requests.on_same_server()

    def _on_new_server(self) -> None:
        link = self._client.link
        self._incarnation = link.incarnation
        if link.may_evict:
            logger.warning(
                "%s evicts keys when its memory is full, and so loses requests of the crawl: set "
                "its maxmemory-policy to noeviction",
                link.server,
            )

    async def _rejoin(self) -> None:
        """Begin the crawl anew, because the server has lost it."""
        now = _now()
        try:
            await self._join_anew(now)
        except CrawlEndedError as error:
            logger.warning(
                "The crawl's server had lost its data: other nodes have started over, and ended"
            )
            self._state.end.log_missing(error.missing)
            self._state.end_crawl()
            return
        except (OtherCrawlError, OtherBudgetsError) as error:  # others were quicker
            self._on_mismatch(error)
            self._state.end_crawl()
            return
        self._joined_at = now
        logger.warning("The crawl's server has lost its data: the crawl starts over")
        self._state.begin_anew()
        self._on_data_loss()

    async def _join_anew(self, now: float) -> None:
        """Join the run that another node has begun anew, or begin it. Raises `CrawlEndedError` if
        others have, and have ended it.
        """
        try:
            await self._client.join(self._identity)
        except CrawlEndedError as error:
            is_older = error.run and error.run == self._client.run_before
            if not is_older and error.ago < now - self._joined_at:
                raise
            # The server has gone back to data from before this run.
            await self._client.join(self._identity, after=error.run)


def _now() -> float:
    return asyncio.get_running_loop().time()
