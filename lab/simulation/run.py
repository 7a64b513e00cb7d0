"""A plan's run: nodes with the real `FairSemaphore` make their requests, while faults strike."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from random import Random
from typing import Any

from lab.simulation.faults import OF_HOSTS, End, Misfortune
from lab.simulation.history import HISTORY_S, History, writer_of  # feature: report
from lab.simulation.judge import Judge, Request
from lab.simulation.logs import logs_noted
from lab.simulation.memory import left_in, left_on, wrong_in
from lab.simulation.network import Network, Weather, Wire
from lab.simulation.plan import (
    LATE_S,  # feature: unresponsive
    PHASES_S,
    RATE_CHANGES_S,  # feature: learned_interval
    Fault,
    Job,
    Plan,
)
from lab.simulation.server import Server
from lab.simulation.sites import (
    BLOCKED_S,  # feature: blocked
    Meter,
    Wall,  # feature: blocked
)
from lab.simulation.world import BEGIN_S, Host, World
from semaphore_middleware.core.calls import pack_begin
from semaphore_middleware.core.keys import Keys
from semaphore_middleware.core.observer import Observer, PermitGranted, PermitLost, UpdateRefused
from semaphore_middleware.core.protocol import RECORDS, VERSION, pack_head
from semaphore_middleware.core.semaphore import FairSemaphore
from semaphore_middleware.errors import (
    ClosedError,
    HostDownError,
    PermitLostError,
    ServerRefusedError,
    ServerUnreachableError,
)
from semaphore_middleware.link.index import COMPLETE
from semaphore_middleware.link.location import Server as Location
from semaphore_middleware.link.renewal_thread import Heartbeat
from semaphore_middleware.link.scripts import sha1_of
from semaphore_middleware.model.events import Event
from semaphore_middleware.model.feedback import Backoff
from semaphore_middleware.model.hosts import order_of
from semaphore_middleware.operators.admin import Admin

URL = "redis://simulated"
KEYS = Keys("semaphore")
DOWN_AFTER_S = 5.0
BACKOFF = Backoff(start=0.5, most=2.0, down_after=DOWN_AFTER_S)
COPIES_PER_LEASE = 2  # of the server's data
PATIENCE_LEASES = 400  # after which a run that has not ended is stuck
MOST_KEPT_MS = 2.2 * 86400e3  # a key's longest time to live
# that of a limit or interval that was learned; a clock set back adds to it
LESSON_KEPT_MS = 8.3 * 86400e3
INTERVAL_LEARNED_S = 60.0
MOST_REFUSED = 0.05  # share of the requests
LEAST_USED = 0.8  # share of what the site allows
REFUSAL_S = 0.02  # until a site refuses a request
CLOSING_S = 2.5  # how long closing a node may take
FIRST_TRY_S = 0.5  # until a node that comes to a site that is down tries it
JUDGED_S = 20.0  # for how long shares are measured, at the end of each phase


@dataclass
class Result:
    """The result of a run."""

    plan: Plan
    violations: list[str]
    log: list[tuple[float, str, str]]
    seconds: float
    calls: int
    requests: int


class Semaphore(FairSemaphore):
    """The real semaphore, with simulated connections."""

    def __init__(self, network: Network, host: Host, machine: int, **options: Any) -> None:
        self._wires = partial(Wire, network, host)
        super().__init__(URL, **options)
        self._machine = machine

    def _server(self, url: str) -> Location:
        return connected_by(self._wires, super()._server(url))

    @property
    def admin(self) -> Admin:
        admin = super().admin
        assert isinstance(admin, Admin)
        connected_by(self._wires, admin._link.server)
        return admin


def connected_by(wires: Callable[..., Any], location: Location) -> Location:
    """Let the server's location open these connections."""
    location._connector = replace(location._connector, connection_class=wires)  # type: ignore[arg-type]
    return location


class Witness(Observer):
    """Notifies the judge of a node's grants."""

    def __init__(self, judge: Judge, node: Node) -> None:
        self._judge = judge
        self._node = node

    def on_event(self, event: Event) -> None:
        if isinstance(event, PermitGranted):
            self._judge.on_grant(self._node, event.permit, event.reused)
        elif isinstance(event, PermitLost):
            self._judge.on_lost(self._node, event.permit)
        elif isinstance(event, UpdateRefused):
            self._judge.violate(f"REFUSED {self._node.name}: what it says makes no sense")


class RenewalThread:
    """The thread of a node's process that renews leases while the node's loop is stalled."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.clock = host.loop.time
        self._work: dict[Heartbeat, asyncio.Task[None]] = {}

    def add(self, heartbeat: Heartbeat) -> None:
        self._work[heartbeat] = self._host.spawn(heartbeat.keep())

    async def remove(self, heartbeat: Heartbeat) -> None:
        self._work.pop(heartbeat).cancel()

    def is_news(self, *_: object) -> bool:
        return False  # no thread of this process is stalled

    def warn(self, *_: object) -> None:
        """Do nothing: another thread would log."""


class Node:
    """One node's process, and its requests."""

    def __init__(self, run: Run, number: int, name: str) -> None:
        self.number = number
        self.name = name
        self.clock_ahead = run.random.uniform(0.0, 1e4)
        self.host = Host(run.world, name, self.clock_ahead, has_renewal_thread=True)
        self.is_open = False
        self.semaphore = Semaphore(
            run.network,
            self.host,
            run.plan.machines.get(number, number),
            node=name,
            lease=run.plan.lease,
            reuse_window=run.plan.reuse_window,
            job=run.plan.jobs.get(number, ""),
            backoff=replace(BACKOFF, down_after=run.plan.down_after.get(number, DOWN_AFTER_S)),
            history=HISTORY_S,  # feature: report
            observers=[Witness(run.judge, self)],
        )
        assert self.host.renewal_thread is not None
        self.semaphore._renewal_thread = RenewalThread(self.host.renewal_thread)  # type: ignore[assignment]
        self._run = run
        self._judge = run.judge
        self._turning = asyncio.Lock()

    async def live(self, workers: list[_Worker]) -> None:
        """Open the semaphore, make all requests, and close it."""
        await self.open()
        await asyncio.gather(*(self._work(worker) for worker in workers))
        if self._run.plan.lingers:
            await self._linger()
        async with self._turning:
            await self.close()

    async def _linger(self) -> None:
        """Stay until the node and the server should have forgotten everything."""
        lease = self._run.plan.lease
        while self._run.has_faults_left:  # noqa: ASYNC110 - simulated time
            await asyncio.sleep(lease)
        await asyncio.sleep(3 * lease + BACKOFF.most)
        async with self._turning:
            remembering: list[object] = [self.semaphore._session]
            remembering.append(writer_of(self.semaphore).diary)  # feature: report
            for thing in remembering:
                for left in left_in(thing):
                    self._judge.violate(f"MEMORY {self.name}: {left}")

    async def turn_off_and_on(self, seconds: float) -> None:
        """Close the semaphore in order, and open it again."""
        async with self._turning:
            if self.is_open:
                await self.close()
                await asyncio.sleep(seconds)
                await self.open()

    async def open(self) -> None:
        await self.semaphore.open()
        self.is_open = True

    async def close(self) -> None:
        self.is_open = False
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self.semaphore.close()
        if loop.time() - began > CLOSING_S and not self.host.thawed_at > self._run.world.now - 10:
            self._judge.violate(f"CLOSE {self.name}: took {loop.time() - began:.1f} s")

    async def _work(self, worker: _Worker) -> None:
        while worker.jobs:
            job = worker.jobs.pop(0)
            await asyncio.sleep(job.pause)
            while not self.is_open:  # noqa: ASYNC110 - as a crawl would, without any event
                await asyncio.sleep(self._run.plan.lease / 10)
            task = asyncio.ensure_future(self._request(job))
            if job.cancel_after is not None:
                await asyncio.wait([task], timeout=job.cancel_after)
                task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _request(self, job: Job) -> None:
        judge, plan = self._judge, self._run.plan
        job = replace(job, scopes=tuple(sorted(job.scopes, key=order_of)))
        request = Request(self, job, self._run.world.now, job.scopes[0])
        judge.waiting.append(request)
        wanted = [(scope, plan.limit_of(self.number, scope)) for scope in job.scopes]
        try:
            request.permits = await self.semaphore.acquire_all(
                wanted, timeout=job.timeout, owner=request, priority=job.priority
            )
        except (TimeoutError, ClosedError, HostDownError) as error:
            judge.failed_at_once += isinstance(error, HostDownError)
            judge.note(self.name, f"{' '.join(job.scopes)}: {type(error).__name__}")
            return
        finally:
            if request in judge.waiting:
                judge.waiting.remove(request)
        with suppress(PermitLostError):
            await self._transfer(request)

    async def _transfer(self, request: Request) -> None:
        job, permits, judge, plan = request.job, request.permits, self._judge, self._run.plan
        assert permits is not None
        try:
            with permits.until_lost():
                if job.outcome == "unused" or permits.must_not_start:
                    return  # and gives them back unused
                permits.begin()
                judge.on_begin(request)
                self._run.history.on_begin(request)  # feature: report
                began_at = self._run.world.now
                if (
                    self._run.site
                    and (pause := self._run.site.refuses(began_at - BEGIN_S)) is not None
                ):
                    outcome = "closed" if plan.closes else "refused"
                    job = replace(job, outcome=outcome, asks_pause=pause)
                    request.job = job = replace(job, hold=min(job.hold, REFUSAL_S))
                try:
                    await asyncio.sleep(job.hold)
                except asyncio.CancelledError:
                    judge.note(self.name, f"is ended {' '.join(job.scopes)}")
                    if any(permit.lost for permit in permits.permits):
                        await asyncio.sleep(job.slow_end)
                    raise
                finally:
                    judge.on_end(request, began_at)
            self._report(request)
        finally:
            permits.release()

    def _report(self, request: Request) -> None:
        assert request.permits is not None
        job, permit = request.job, request.permits.site_permit
        assert permit is not None
        self._judge.note(self.name, f"ends {' '.join(job.scopes)}: {job.outcome}")
        self._judge.on_answer(request)
        if job.outcome == "refused":
            permit.refused(job.asks_pause, is_metered=isinstance(self._run.site, Meter))
            self._run.history.on_refused(permit.scope)  # feature: report
        elif job.outcome == "failed":
            permit.failed()
        elif job.outcome.startswith("closed"):
            page = job.page or str(next(self._run.pages))
            permit.closed(page, may_be_idle=job.outcome == "closed idle")
            if permit._outcome is not None and permit._outcome.refused:  # feature: report
                self._run.history.on_refused(permit.scope)
        else:
            latency = None if job.outcome == "error" else job.hold
            permit.answered(latency, job.asks_pause if latency is None else 0.0)


@dataclass
class _Worker:
    node: int
    jobs: list[Job]


class Run:
    """A world with a server, nodes, an operator and a judge, and a plan that is carried out."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.random = Random(plan.seed + 1)
        self.world = World(plan.seed + 2)
        self.network = Network(self.world, self.random, plan.lease)
        self.faults = Misfortune(self.network, COPIES_PER_LEASE)
        self.judge = Judge(self.world, plan, self.faults)
        self.server = self.network.server = Server(
            self.network.publish, self._on_bug, self._on_grant, plan.lease
        )
        self.server.gives_scripts_info = plan.gives_scripts_info
        self.history = History(self.judge, self.server)  # feature: report
        if plan.is_evicting:
            self.server.set_evicting()
        self.site = plan.site() if plan.site else None
        self.pages = count()
        self.nodes: list[Node] = []
        self.workers = [_Worker(one.node, list(one.jobs)) for one in plan.workers]
        self._tasks: list[tuple[Node, asyncio.Task[Any]]] = []
        self._faults_left = len(plan.faults)
        self._operator = Host(self.world, "operator")
        self._admin = Admin(URL, name="operator", lease=plan.lease)
        connected_by(partial(Wire, self.network, self._operator), self._admin._link.server)

    def run(self) -> Result:
        """Carry the plan out, and judge."""
        try:
            return self._run()
        finally:
            self.world.end()

    def _run(self) -> Result:
        began = self.world.now
        for number in range(self.plan.nodes):
            self._add_node(number)
        for fault in self.plan.faults:
            self.world.after(fault.at, partial(self._strike, fault))
        self._watch()
        self._watch_keys()
        self._watch_memory()
        if self.plan.faults:
            self.faults.copy_while(lambda: self.has_faults_left)
        judge_kind = getattr(self, f"_judge_{self.plan.kind}", None)
        if judge_kind is not None:  # while the work goes on, in fair weather
            self.network.weather = Weather(latency=(0.0002, 0.0004))
            judge_kind()
        else:
            self._finish_work()
            self._close_all()
        self.judge.check_intervals()
        for host in self.world.hosts:
            for error in host.errors:
                self.judge.violate(f"ERROR {host.name}: {error}")
        return Result(
            self.plan,
            self.judge.violations,
            self.judge.log,
            self.world.now - began,
            self.server.calls,
            self.judge.begun,
        )

    @property
    def has_faults_left(self) -> bool:
        return self._faults_left > 0

    # What the judge looks at --------------------------------------------------------------------

    def on_log(self, record: logging.LogRecord) -> None:
        self.judge.note("log", record.getMessage())

    def _on_bug(self, text: str) -> None:
        self.judge.violate(f"SCRIPT {text}")

    def _on_grant(self, key: bytes, node: bytes, _: int, first: int, last: int) -> None:
        scope = KEYS.scope_of(key)
        self.judge.on_server_grant(scope, node.decode(), f"no. {first}-{last}")
        for one in self.nodes:
            if one.semaphore.node == node.decode() and one.semaphore._session:
                self.judge.check_stalled(scope, one, one.semaphore._session)

    def _watch(self) -> None:
        """Check regularly all promises that hold at any time."""
        judge, lease = self.judge, self.plan.lease
        is_calm = self.plan.kind == "calm"
        settling_since = BEGIN_S if is_calm else judge.faults_end
        has_settled = self.world.now > settling_since + 2.5 * lease
        # It may be a learned interval that is waited for, or another node's delay.
        is_metered = self.plan.kind in ("metered", "mixed")
        if has_settled and not is_metered and (is_calm or not self.has_faults_left):
            judge.check_progress(self._living, judge.free_after())
        if any(not task.done() for _, task in self._tasks):
            self.world.after(max(0.05, lease / 50), self._watch)

    @property
    def _living(self) -> list[Node]:
        return [node for node in self.nodes if not node.host.is_dead]

    def _watch_memory(self) -> None:
        lease = self.plan.lease
        is_over = self.world.now > self.judge.faults_end + 2.5 * lease and not self.has_faults_left
        for node in self._living:
            if node.semaphore._session is not None:
                for wrong in wrong_in(node.semaphore._session.updates, is_over):
                    self.judge.violate(f"MEMORY {node.name}: {wrong}")
        if any(not task.done() for _, task in self._tasks):
            self.world.after(lease / 4, self._watch_memory)

    def _watch_keys(self) -> None:
        self._check_keys()
        if any(not task.done() for _, task in self._tasks):
            self.world.after(self.plan.lease, self._watch_keys)

    def _finish_work(self) -> None:
        """Let all requests end, or a promise be broken; faults end by themselves."""
        lease = self.plan.lease
        for _ in range(PATIENCE_LEASES):
            if self.judge.violations:
                return
            if all(task.done() or node.host.is_dead for node, task in self._tasks) and (
                not self._faults_left
            ):
                break
            self.world.run(self.world.now + lease)
        for node, task in self._tasks:
            if node.host.is_dead:
                continue
            if not task.done():
                self.judge.violate(f"STUCK {node.name}: {node.semaphore!r}")
            elif error := task.exception():
                self.judge.violate(f"ERROR {node.name}: {error!r}")

    def _close_all(self) -> None:
        """Nothing may be left in nodes or on the server."""
        if self.plan.kind == "calm":
            self.world.run(self.world.now + 0.5)
            for entry in self._entries():
                self.judge.violate(f"LEFT {entry} by nodes that have closed")
        self.world.run(self.world.now + 3 * self.plan.lease)
        had_full = any(fault.kind == "full" for fault in self.plan.faults)  # feature: report
        self.history.check(had_full)  # feature: report
        if self._entries():  # a dead node's: they end with the next call
            probe = Node(self, -1, "probe")
            task = probe.host.spawn(self._probe(probe))
            for _ in range(20):
                if not task.done():
                    self.world.run(self.world.now + self.plan.lease)
        for entry in self._entries():
            self.judge.violate(f"LEFT {entry}")
        # An eviction may leave a queue without its scope, until that expires.
        for left in left_on(self.server, KEYS) if not self.plan.is_evicting else ():
            self.judge.violate(f"MEMORY server: {left}")
        self._check_keys()
        for node in self.nodes:
            session = node.semaphore._session
            assert node.host.renewal_thread is not None
            timers = node.host.loop.left + node.host.renewal_thread.loop.left
            wires = self.network.connections_of(node.host)
            if not node.host.is_dead and (session is not None or timers or wires):
                self.judge.violate(f"LEFT in {node.name}: {session}, {timers}, {wires}")
        if not self.faults.losses_at:
            for scope, reported in self.judge.failures.items():
                counted = self.server.failures_counted(KEYS.of(scope)[0])
                if counted > reported:
                    self.judge.violate(
                        f"FEEDBACK {scope}: {counted} of {reported} failures counted"
                    )

    async def _probe(self, node: Node) -> None:
        await node.semaphore.open()
        for _ in range(6):  # the leases' clock moves by a step a call, if it has been set back
            for scope, limit in self.plan.limits.items():
                with suppress(TimeoutError, HostDownError):
                    permit = await node.semaphore.acquire(scope, limit, self.plan.lease / 10)
                    permit.release()
            await asyncio.sleep(0.4 * self.plan.lease)
        await node.semaphore.close()

    def _entries(self) -> list[str]:
        found = []
        for scope in self.plan.limits:
            nodes = self._nodes_of(KEYS.of(scope)[0])
            found += [f"{scope} {name.decode()}" for name in nodes]
        return found

    def _nodes_of(self, key: bytes) -> list[bytes]:
        """The fields of a scope that are nodes' entries."""
        return [name for name in self.server.fields(key) if name.startswith(b"node:")]

    def _check_keys(self) -> None:
        """Keys expire, except those that exist only once; and the index has all scopes, except
        abandoned ones, and those of dead nodes after a jump of the clock.
        """
        listed = self.server.fields(KEYS.index)
        jumps = any(fault.kind == "jump" for fault in self.plan.faults)
        for key, left_ms in self.server.keys_left():
            is_listed = not key.startswith(KEYS.scopes) or key.removeprefix(KEYS.scopes) in listed
            is_missing = COMPLETE in listed and not is_listed and not self._is_abandoned(key)
            if is_missing and not jumps:
                self.judge.violate(f"INDEX lacks {key.decode()}")
            is_lesson = key.startswith((KEYS.scopes, KEYS.index))
            most_ms = LESSON_KEPT_MS if is_lesson else MOST_KEPT_MS
            is_late = left_ms is None or left_ms > most_ms
            if is_late and key not in (KEYS.epoch, KEYS.rules, KEYS.changed_rules):
                self.judge.violate(f"EXPIRY {key.decode()}: {left_ms}")

    def _judge_crowd(self) -> None:
        judge, plan = self.judge, self.plan
        holds = {worker.node: worker.jobs[0].hold for worker in plan.workers}
        hold = max(holds.values())
        limit = plan.limits["a.com"].concurrency
        first_windows = plan.nodes * (plan.reuse_window + hold)
        # since the recovery
        self.world.run(self.world.now + plan.lease + first_windows + 20 * hold)
        judge.held_s.clear()
        judge.longest_wait.clear()
        length = 200 * hold / limit
        self.world.run(self.world.now + length)
        wants = Counter(worker.node for worker in plan.workers)
        judge.check_shares(wants, limit, holds, length)

    def _judge_mixed(self) -> None:
        """The strictest value of each field holds, and nothing stricter."""
        judge = self.judge
        self.world.run(self.world.now + 2 * self.plan.lease)
        judge.starts.clear()
        judge.held_s.clear()
        self.world.run(self.world.now + JUDGED_S)
        is_wanted = not any(worker.jobs[0].pause for worker in self.plan.workers)
        limits = [limits["a.com"] for limits in self.plan.own_limits.values()]
        judge.check_mixed(limits, JUDGED_S, is_wanted)

    def _judge_sick(self) -> None:  # feature: unresponsive
        """The node that is well has the site to itself; if there is none, the site gets only one
        request in each pause.
        """
        judge, plan = self.judge, self.plan
        self.world.run(BEGIN_S + min(plan.down_after.values()))
        if judge.failed_at_once:
            judge.violate("SICK: requests failed at once before the site was down")
        self.world.run(BEGIN_S + LATE_S + 2 * BACKOFF.most)
        last = plan.workers[-1]
        is_well = last.jobs[-1].outcome == "good"
        if is_well and last.jobs[0].pause and judge.longest_wait[last.node] > FIRST_TRY_S:
            judge.violate(f"SICK: the first try came after {judge.longest_wait[last.node]:.1f} s")
        judge.held_s.clear()
        judge.started.clear()
        self.world.run(self.world.now + JUDGED_S)
        due = 0.9 * plan.limits["a.com"].concurrency * (JUDGED_S - last.jobs[-1].hold)
        if is_well and judge.held_s[last.node] < due:
            judge.violate(f"SICK: others cost {due - judge.held_s[last.node]:.1f} s of {due:g}")
        tries = {node: judge.started[node] for node in range(plan.nodes - is_well)}
        if not (is_well or judge.failed_at_once):
            judge.violate("SICK: no request failed at once where the site was down")
        most = 2 * JUDGED_S / BACKOFF.most + plan.nodes  # a pause is shortened by up to half
        if (max(tries.values()) if is_well else sum(tries.values())) > most:
            judge.violate(f"SICK: a site that does not respond was tried {tries} times")

    def _judge_closing(self) -> None:
        """Nobody pauses: the site's permits are used all the time."""
        judge, limit = self.judge, self.plan.limits["a.com"].concurrency
        self.world.run(BEGIN_S + self.plan.lease + 1.0)
        judge.held_s.clear()
        self.world.run(self.world.now + JUDGED_S)
        used = sum(judge.held_s.values()) / (limit * JUDGED_S)
        if used < LEAST_USED or judge.failed_at_once:
            judge.violate(f"CLOSING: {used:.0%} of the permits were used")

    def _judge_blocked(self) -> None:  # feature: blocked
        """A blocking site is found after a time, tried once a pause, and forgotten when it has
        stopped. A quota does not count as blocking.
        """
        judge, plan = self.judge, self.plan
        self.world.run(BEGIN_S + BLOCKED_S - BACKOFF.most)
        if judge.failed_at_once:
            judge.violate("BLOCKED: too early")
        self.world.run(BEGIN_S + BLOCKED_S + 2 * BACKOFF.most + plan.lease)
        is_wall = isinstance(self.site, Wall)
        if is_wall != bool(judge.failed_at_once):
            judge.violate(f"BLOCKED: {judge.failed_at_once} requests failed at once")
        judge.started.clear()
        self.world.run(BEGIN_S + 2 * BLOCKED_S)
        tries = sum(judge.started.values())
        if is_wall and tries > BLOCKED_S / BACKOFF.most:
            judge.violate(f"BLOCKED: it was tried {tries} times")
        self.world.run(self.world.now + 2 * BACKOFF.most)
        judge.failed_at_once = 0
        judge.started.clear()
        self.world.run(self.world.now + 2 * JUDGED_S)
        if judge.failed_at_once or not judge.started:
            judge.violate(f"BLOCKED: {judge.failed_at_once} failed at once in the end")

    def _judge_metered(self) -> None:  # feature: learned_interval
        """Once its interval is known, a site refuses little, and answers nearly all that it allows;
        when its rate has changed, again.
        """
        site = self.site
        assert isinstance(site, Meter)
        for begins in (BEGIN_S, BEGIN_S + RATE_CHANGES_S):
            self.world.run(begins + INTERVAL_LEARNED_S)
            since = self.world.now
            site.answered = site.refused = 0
            self.world.run(begins + RATE_CHANGES_S)
            allowed = site.rate(since - BEGIN_S) * (self.world.now - since)
            share, used = site.refused / (site.answered + site.refused), site.answered / allowed
            if share > MOST_REFUSED or used < LEAST_USED:
                self.judge.violate(f"METERED: {share:.1%} refused, {used:.0%} of the rate used")

    def _judge_shared(self) -> None:
        """The jobs share the site equally, also while one of them lacks a node."""
        jobs = self.plan.jobs
        last = max(jobs)
        for until in PHASES_S:
            end = BEGIN_S + until - 0.001  # before the next phase begins
            self.world.run(end - JUDGED_S)
            self.judge.held_s.clear()
            self.judge.started.clear()
            self.world.run(end)
            is_away = until == PHASES_S[1]
            here = {node: job for node, job in jobs.items() if not (is_away and node == last)}
            self.judge.check_jobs(here, JUDGED_S)
            if self.judge.violations:
                return

    # Faults -------------------------------------------------------------------------------------

    def _add_node(self, number: int) -> None:
        """A node that carries on with what is left of the requests of this number."""
        node = Node(self, number, f"n{number}.{len(self.nodes)}")
        self.nodes.append(node)
        workers = [worker for worker in self.workers if worker.node == number]
        self._tasks.append((node, node.host.spawn(node.live(workers))))

    def _node(self, number: int) -> Node | None:
        """The living node of this number, if there is one that is neither frozen nor closed."""
        for node in self.nodes:
            if (
                node.number == number
                and node.is_open
                and not (node.host.is_dead or node.host.is_frozen)
            ):
                return node
        return None

    def _strike(self, fault: Fault) -> None:
        self.judge.note("fault", f"{fault.kind} node {fault.node}, {fault.seconds:g} s: {fault.of}")
        if fault.kind == "jump":
            self.judge.on_jump({scope for scope in self.plan.limits if self._is_in_use(scope)})
        own = getattr(self, f"_{fault.kind.replace(' ', '_')}", None)
        if own is not None:
            end = own(fault)
        elif fault.kind in OF_HOSTS:
            node = self._node(fault.node)
            end = self.faults.strike_host(fault, node.host) if node else None
        else:
            end = self.faults.strike(fault)
        if end is None:
            self._end_fault(fault, lambda: None)
        else:
            self.world.after(fault.seconds, partial(self._end_fault, fault, end))

    def _end_fault(self, fault: Fault, end: Callable[[], object]) -> None:
        if fault.seconds:
            self.judge.note("fault", f"{fault.kind} node {fault.node} is over")
        end()
        self._faults_left -= 1
        if not self._faults_left:
            self.judge.faults_end = self.world.now
            for scope in sorted({one.of[0] for one in self.plan.faults if one.kind == "rule"}):
                self._operator.spawn(self._resume_in_the_end(scope))

    # One for each kind of fault: it strikes, and returns what ends it; None if it is over at once.

    def _kill(self, fault: Fault) -> End | None:
        node = self._node(fault.node)
        if node is None:
            return None
        node.host.kill()
        self.judge.forget(node)
        self.network.break_all(node.host)
        return partial(self._add_node, node.number)

    def _close(self, fault: Fault, seconds: float | None = None) -> None:
        node = self._node(fault.node)
        if node is not None:
            away = fault.seconds if seconds is None else seconds
            self._tasks.append((node, node.host.spawn(node.turn_off_and_on(away))))

    def _reopen(self, fault: Fault) -> None:
        self._close(fault, 0.0)

    def _add(self, fault: Fault) -> None:
        """A visitor, with some requests of its own."""
        node = Node(self, fault.node, f"v{len(self.nodes)}")
        self.nodes.append(node)
        jobs = self.plan.workers[0].jobs[:3] if self.plan.workers else ()
        self._tasks.append((node, node.host.spawn(node.live([_Worker(fault.node, list(jobs))]))))

    def _is_in_use(self, scope: str) -> bool:
        """True if any node holds or waits, as the server has it."""
        state = self.server.field(KEYS.of(scope)[0], b"state")
        return state is not None and not state[RECORDS["state"].names.index("idle_since")]

    def _is_abandoned(self, key: bytes) -> bool:
        """True if all leases of a scope that is in use have ended. Its nodes have died, or gave
        their permits back while the server was away.
        """
        leases_end = RECORDS["entry"].names.index("lease_end")
        clock = float(self.server.field(KEYS.epoch, b"clock") or "inf")  # or it was evicted
        ends = [self.server.field(key, name)[leases_end] for name in self._nodes_of(key)]
        return bool(ends) and max(ends) <= clock

    # What operators do --------------------------------------------------------------------------

    def _evict_the_dead(self, _: Fault) -> None:
        for node in self.nodes:
            if node.host.is_dead:
                self._operate(partial(self._admin.evict, node.semaphore.node))

    def _older_version(self, _: Fault) -> None:
        """Make a call as a node of another version, which must change nothing."""
        # One that finds a server without a past, or not called for four leases, may use it.
        wall = float(self.server.field(KEYS.epoch, b"wall") or "inf")
        if abs(self.server.wall_ms(self.world.now) - wall) >= 4000 * self.plan.lease:
            return
        call = pack_begin(KEYS, pack_head(self.plan.lease), 0.0, 0.0)
        older = ["1" if part == VERSION else part for part in call.arguments]
        parts = (len(call.keys), *call.keys, *older)
        arguments = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
        source, now = call.script.source, self.world.now
        self.server.execute((b"SCRIPT", b"LOAD", source.encode()), now)
        reply = self.server.execute((b"EVALSHA", sha1_of(source).encode(), *arguments), now)
        if not isinstance(reply, Exception) and reply[0]:
            self.judge.violate("VERSION: a node of another version may use the server")

    def _rule(self, fault: Fault) -> None:
        self._operate(partial(self._change_rule, *fault.of))

    async def _change_rule(self, scope: str, rule: Any) -> None:
        sent = self.world.now
        known = self.judge.rules[scope]
        known.append((sent, float("inf"), rule))
        if rule in ("pause", "resume", "reset"):
            await getattr(self._admin, rule)(scope)
        else:
            await self._admin.configure(scope, {"delay": 0.5} if rule == "delay" else rule)
        known[known.index((sent, float("inf"), rule))] = (sent, self.world.now, rule)

    async def _resume_in_the_end(self, scope: str) -> None:
        while True:
            with suppress(ServerUnreachableError, ServerRefusedError):
                return await self._change_rule(scope, "resume")
            await asyncio.sleep(1.0)

    def _operate(self, act: Callable[[], Any]) -> None:
        async def do() -> None:
            with suppress(ServerUnreachableError, ServerRefusedError):
                await act()

        self._operator.spawn(do())


def run(plan: Plan) -> Result:
    """Carry a plan out, in a world of its own."""
    carried_out = Run(plan)
    with logs_noted(carried_out.on_log):
        return carried_out.run()
