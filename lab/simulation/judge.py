"""Checks the promises against what nodes really do: which requests wait, begin and end."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lab.simulation.world import BEGIN_S
from semaphore_middleware.core.permit import Permit, PermitSet
from semaphore_middleware.link.lease import GRACE, RENEWAL, STEP
from semaphore_middleware.link.renewal_thread import BEAT, LATE
from semaphore_middleware.model.limits import Limit

if TYPE_CHECKING:
    from lab.simulation.faults import Misfortune
    from lab.simulation.plan import Job, Plan
    from lab.simulation.run import Node
    from lab.simulation.world import World
    from semaphore_middleware.core.session import Session

ROUNDING_S = 1e-6
SERVER_ROUNDING_S = 0.001 + ROUNDING_S  # it counts in whole milliseconds
CONNECT_S = 0.2  # from a connection's break until all is sent again, on a calm day
TRAVEL_S = 0.03  # a call there and back on a calm day, and what it is held back for


@dataclass(eq=False)
class Request:
    """A node's request, from when it asks for permits to the end of its transfer."""

    node: Node
    job: Job
    asked_at: float
    waits_for: str | None = None
    permits: PermitSet | None = None


@dataclass
class Timeline:
    """What happened in a run, and what broke a promise."""

    world: World
    violations: list[str] = field(default_factory=list, init=False)
    log: list[tuple[float, str, str]] = field(default_factory=list, init=False)
    """The timeline: when, who, what."""

    def violate(self, text: str) -> None:
        """A promise was broken."""
        self.violations.append(f"{self.world.now:.3f} {text}")
        self.note("judge", text)

    def note(self, who: str, what: str) -> None:
        self.log.append((self.world.now, who, what))


@dataclass
class Judge(Timeline):
    """Is notified of all that the nodes do, and notes what breaks a promise."""

    plan: Plan
    faults: Misfortune

    def __post_init__(self) -> None:
        self.open: dict[str, list[Request]] = defaultdict(list)
        self.waiting: list[Request] = []
        self.starts: dict[str, list[float]] = defaultdict(list)
        """By scope: when each began."""
        self.failures: dict[str, int] = defaultdict(int)
        self.held_s: dict[int, float] = defaultdict(float)
        """By node: how long requests were open, of all its requests together."""
        self.longest_wait: dict[int, float] = defaultdict(float)
        self.started: dict[int, int] = defaultdict(int)
        """By node: requests that began."""
        self.served_at: dict[int, float] = {}
        self.rules: dict[str, list[tuple[float, float, Any]]] = defaultdict(list)
        """By scope: an operator's changes, when each may take effect, and when it has."""
        self.server_granted_at: dict[tuple[str, str], float] = {}
        """By scope and node: when the server last granted a permit."""
        self.granted_at: dict[Permit, float] = {}
        """When the server granted it, of those that were not reused."""
        self.harmed_at: dict[str, float] = {}
        self.refused_at: dict[str, float] = {}
        self.paused_at: dict[str, float] = {}
        """By site: when it last asked for a pause."""
        self.faults_end = BEGIN_S
        """When the last of those that are over ended."""
        self.begun = 0
        self.failed_at_once = 0
        """Requests for a site that is down or blocked."""
        self._stalled: dict[str, float] = {}
        self._named_at: dict[tuple[int, str], float] = {}
        """By node and scope: when it last had a lease there."""
        self._in_use_at: dict[float, set[str]] = {}
        """Scopes that were not idle when the server's clock was set."""

    # Grants, as the server and the nodes see them -----------------------------------------------

    def on_server_grant(self, scope: str, node: str, permits: str) -> None:
        """The server has granted permits to a node."""
        self.server_granted_at[scope, node] = self.world.now
        self.note("server", f"grants {scope} to {node[:4]}, {permits}")

    def check_stalled(self, scope: str, node: Node, session: Session) -> None:
        """A node that cannot use a permit is granted none, once the renewal thread has reported
        that.
        """
        host, lease = node.host, session.updates.leases.get(scope)
        is_known = self.world.now > host.stalled_at + (LATE + BEAT) * self.plan.lease
        is_kept = self.plan.theme == "safe" and lease is not None and lease.held
        if host.is_frozen and is_known and is_kept:
            self.violate(f"BLOCKED {scope}: {node.name} is granted a permit")

    def on_grant(self, node: Node, permit: Permit, is_reused: bool) -> None:
        """A node has given a permit to one of its requests."""
        if not is_reused:  # the notification of the grant may be late
            granted_at = self.server_granted_at.get((permit.scope, node.semaphore.node), math.inf)
            self.granted_at[permit] = granted_at
        self._check_order(node, permit)
        request = permit.owner
        if isinstance(request, Request):
            later = request.job.scopes[request.job.scopes.index(permit.scope) + 1 :]
            request.waits_for = later[0] if later else None

    def _check_order(self, node: Node, permit: Permit) -> None:
        """A node's request with the highest priority is first, and of equal ones the oldest."""
        request = permit.owner
        if not isinstance(request, Request):
            return
        for other in self.waiting:
            if (
                other.node is node
                and other is not request
                and other.waits_for == permit.scope == request.waits_for
                and other.asked_at < self.world.now
                and other.job.timeout is None
                and other.job.cancel_after is None
                and len(other.job.scopes) == len(request.job.scopes) == 1
                and (-other.job.priority, other.asked_at)
                < (-request.job.priority, request.asked_at)
            ):
                self.violate(f"ORDER {permit.scope}: {node.name} passed over an earlier request")

    # Requests -----------------------------------------------------------------------------------

    def on_begin(self, request: Request) -> None:
        """A request begins: its permits are all there."""
        now, node, job = self.world.now, request.node, request.job
        self.begun += 1
        assert request.permits is not None
        for permit in request.permits.permits:
            scope = permit.scope
            self.open[scope].append(request)
            heard_at = permit.granted_at - node.clock_ahead
            granted_at = min(heard_at, self.granted_at.get(permit, math.inf))
            self._check_limit(scope, permit.limit, granted_at)
            self._check_pause(scope, node, granted_at)
            self.starts[scope].append(now)
            if len(self.open[scope]) >= self._capacity(scope):
                self._stalled.pop(scope, None)  # all were in use since the last look
        waited = now - max(request.asked_at, self.served_at.get(node.number, -math.inf))
        self.longest_wait[node.number] = max(self.longest_wait[node.number], waited)
        self.served_at[node.number] = now
        self.started[node.number] += 1
        self.note(node.name, f"begins {' '.join(job.scopes)} for {job.hold:g} s")

    def on_end(self, request: Request, began_at: float) -> None:
        if request.node.host.is_dead:
            return
        for scope in request.job.scopes:
            self.open[scope].remove(request)
        self.held_s[request.node.number] += self.world.now - began_at

    def on_jump(self, in_use: set[str]) -> None:
        """The server's clock is set; these scopes are not idle, as the server knows it."""
        self._in_use_at[self.world.now] = in_use

    def forget(self, node: Node) -> None:
        """A node's process is gone, and its connections are closed."""
        for requests in self.open.values():
            requests[:] = [one for one in requests if one.node is not node]
        self.waiting = [one for one in self.waiting if one.node is not node]

    def _check_limit(self, scope: str, own: Limit, granted_at: float) -> None:
        """Never more requests are open than the limit that the beginning request has named, or that
        an operator has set. Granted permits are kept.
        """
        most = own.concurrency
        if self.rules[scope]:
            numbers = {"reset": None} | {number: number for number in range(9)}
            named = self._may_be(scope, numbers, granted_at)
            most = max(own.concurrency if number is None else number for number in named)
        count = sum(not self.is_excused(scope, one) for one in self.open[scope])
        if count > most:
            nodes = [one.node.name for one in self.open[scope]]
            self.violate(f"LIMIT {scope}: {count} of {most} are open, of {nodes}")

    def is_excused(self, scope: str, request: Request) -> bool:
        """True if the node is frozen for longer than the lease of this permit can last."""
        host = request.node.host
        assert request.permits is not None
        (permit,) = (one for one in request.permits.permits if one.scope == scope)
        if permit.lost:  # as it woke; a transfer takes its time to end
            is_ending = self.world.now <= host.thawed_at + request.job.slow_end + ROUNDING_S
            return host.is_frozen or is_ending
        if not (host.is_frozen or host.thawed_at == self.world.now):
            return False
        permit._lease.is_expired(math.inf)  # reads what the renewal thread has renewed
        rest = (1 - GRACE) * self.plan.lease
        if any(
            self.world.now - jumped_at < 2 * self.plan.lease for jumped_at in self.faults.jumps_at
        ):
            rest -= STEP * self.plan.lease
        return (
            self.world.now - rest + ROUNDING_S >= permit._lease.deadline - request.node.clock_ahead
        )

    def _may_be(
        self, scope: str, values: dict[Any, Any], granted_at: float = math.inf
    ) -> list[Any]:
        """The operator's values that may be effective: `values` gives them for the changes that
        matter here. None means no value. For a permit: when it was granted, or later.
        """
        # For so long nodes may use earlier values.
        since = min(granted_at, self.world.now) - 2 * self.plan.reuse_window - TRAVEL_S
        changes = [one for one in self.rules[scope] if one[2] in values]
        known = [(-math.inf, -math.inf, None), *changes]
        return [
            values.get(rule)
            for index, (_, _, rule) in enumerate(known)
            if not any(
                done <= since and not self._has_lost_data(sent)  # otherwise older data may be back
                for sent, done, _ in known[index + 1 :]
            )
        ]

    def _check_pause(self, scope: str, node: Node, granted_at: float) -> None:
        pauses = self._may_be(scope, {"pause": True, "resume": False, "reset": False}, granted_at)
        if all(pauses):
            self.violate(f"PAUSE {scope}: {node.name} begins a request")
        refused_at = self.refused_at.get(scope, -math.inf)
        pause_end = refused_at + 0.5 - SERVER_ROUNDING_S
        is_lifted = any(
            rule in ("resume", "reset") and done >= refused_at
            for _, done, rule in self.rules[scope]
        )
        is_calm = self.plan.kind == "calm" and not is_lifted
        if is_calm and refused_at + TRAVEL_S < granted_at < pause_end:
            self.violate(f"BACKOFF {scope}: {node.name} begins a request")

    def _has_lost_data(self, since: float) -> bool:
        return any(at >= since for at in self.faults.losses_at)

    def on_lost(self, node: Node, permit: Permit) -> None:
        """A node has lost a permit."""
        if self.plan.kind == "calm" or self.plan.theme == "safe":
            self.violate(f"LOST {permit.scope}: by {node.name}, without a need")

    def on_answer(self, request: Request) -> None:
        """A request's node reports how its site answered."""
        assert request.permits is not None
        permit = request.permits.site_permit
        assert permit is not None
        site = permit.scope
        is_failed = request.job.outcome.startswith(("failed", "closed"))
        if is_failed:
            self.failures[site] += 1
        if request.job.outcome == "refused":
            began_at = permit.granted_at - request.node.clock_ahead
            # What began before a refusal, or a pause, was known belongs to it.
            before = max(self.refused_at.get(site, -math.inf), self.paused_at.get(site, -math.inf))
            if began_at > before + TRAVEL_S:
                self.refused_at[site] = self.world.now
        if request.job.asks_pause:
            self.paused_at[site] = self.world.now
        if request.job.outcome == "refused" or is_failed or request.job.asks_pause:
            self.harmed_at[site] = self.world.now

    # Intervals ----------------------------------------------------------------------------------

    def check_intervals(self) -> None:
        """No two starts closer than the delay, never more than burst + rate x time."""
        for scope, starts in self.starts.items():
            limit = self.plan.limits[scope]
            times = sorted(starts)
            if limit.delay:
                is_ruled = any(rule == "delay" for _, _, rule in self.rules[scope])
                delay = min(limit.delay, 0.5) if is_ruled else limit.delay
                self._check_intervals(scope, times, delay * (1 - limit.jitter), 1)
            if limit.rate:
                self._check_intervals(scope, times, limit.interval, limit.burst)

    def check_mixed(self, limits: list[Limit], length: float, is_wanted: bool) -> None:
        """Of limits that are all named at a site, one by each node, which holds a permit, each part
        holds; and one that `is_wanted` all the time is used as far as they allow.
        """
        starts, used = self.starts["a.com"], sum(self.held_s.values())
        least = max(limit.delay * (1 - limit.jitter) for limit in limits)
        delay = max(limit.delay for limit in limits)
        interval = max(limit.interval for limit in limits)
        burst = min((limit.burst for limit in limits if limit.rate), default=1)
        most = min(limit.concurrency for limit in limits) - len(limits)
        self._check_intervals("a.com", starts, least, 1)
        self._check_intervals("a.com", starts, interval, burst)
        if used > most * length + len(limits):
            self.violate(f"LIMIT a.com: {used:.1f} s used, of {most} permits in {length:g} s")
        interval = max(delay, interval)
        # Delays with jitter may add up to more than their mean: by five standard deviations.
        varied = max(limit.delay * limit.jitter for limit in limits)
        slack = max(0.2 * length, 5 * varied * math.sqrt(len(starts) / 3))
        is_used = used > 0.8 * most * length
        if is_wanted and len(starts) * interval < length - slack and not is_used:
            self.violate(
                f"UNUSED: {len(starts)} starts in {length:g} s, one in {interval:g} s may be"
            )

    def _check_intervals(self, scope: str, times: list[float], interval: float, burst: int) -> None:
        arrival = -math.inf
        for before, at in zip([-math.inf, *times], times, strict=False):
            early = arrival - (burst - 1) * interval - at
            jumps_at = [
                jumped_at for jumped_at in self.faults.jumps_at if before <= jumped_at <= at
            ]
            has_jumped = bool(jumps_at)
            slack = 2 * SERVER_ROUNDING_S + has_jumped * STEP * self.plan.lease
            if any(scope not in self._in_use_at[jumped_at] for jumped_at in jumps_at):
                slack = math.inf  # the key of an idle site may have expired
            if early > slack:
                self.violate(f"INTERVAL {scope}: a start at {at:.3f} comes {early:.3f} s too early")
            arrival = interval + (at if has_jumped else max(arrival, at))

    # Liveness -----------------------------------------------------------------------------------

    def check_progress(self, nodes: Iterable[Node], free_after: float) -> None:
        """Once faults are over, whoever waits gets what is free, within `free_after` seconds."""
        leases = []
        for node in nodes:
            if node.semaphore._session is not None:
                for lease in node.semaphore._session.updates.leases.values():
                    leases.append(lease)
                    self._named_at[node.number, lease.scope] = self.world.now
        for scope in self.plan.limits:
            here = [lease for lease in leases if lease.scope == scope]
            is_waited_for = any(lease.waiting for lease in here)
            held = sum(len(one.held) + len(one._orphans) + one._pool.permits for one in here)
            unstarted = sum(lease._unstarted for lease in here)
            is_free = held < self._capacity(scope)
            if is_waited_for and is_free and self._may_start(scope, unstarted):
                since = self._stalled.setdefault(scope, self.world.now)
                # What was unstarted counts as begun when its node's lease is over.
                as_begun = self._interval(scope) if self.plan.kind == "storm" else 0.0
                if self.world.now - since > free_after + as_begun:
                    self.violate(f"STALL {scope}: {held} held, others wait since {since:.3f}")
                    self._stalled[scope] = self.world.now
            else:
                self._stalled.pop(scope, None)

    def _capacity(self, scope: str) -> int:
        limit = self.plan.limits[scope]
        rules = [rule for _, _, rule in self.rules[scope] if isinstance(rule, int)]
        since = self.world.now - (1 + RENEWAL) * self.plan.lease
        own = [
            limits[scope]
            for node, limits in self.plan.own_limits.items()
            if scope in limits and self._named_at.get((node, scope), -math.inf) >= since
        ]
        named = [one.concurrency for one in (limit, *own)]
        if limit.adaptive or self.failures[scope]:
            return 1
        return min([*named, *rules])

    def _may_start(self, scope: str, unstarted: int) -> bool:
        """Whether no interval, pause or backoff may keep requests waiting. So many starts are
        granted and have not begun: under an interval they count as if they began now.
        """
        if any(self._may_be(scope, {"pause": True, "resume": False, "reset": False})):
            return False
        interval = self._interval(scope)
        if interval and unstarted >= self.plan.limits[scope].burst:
            return False
        last = max(self.starts[scope][-10:], default=-math.inf)
        return self.world.now >= max(last + interval, self.harmed_at.get(scope, -math.inf) + 2.0)

    def _interval(self, scope: str) -> float:
        """How long a start may keep the next one waiting."""
        limit = self.plan.limits[scope]
        interval = max(limit.delay * (1 + limit.jitter), limit.interval * limit.burst)
        return (
            max(interval, 0.5)
            if any(rule == "delay" for *_, rule in self.rules[scope])
            else interval
        )

    # Fairness -----------------------------------------------------------------------------------

    def check_shares(
        self, wants: dict[int, int], limit: int, holds: dict[int, float], length: float
    ) -> None:
        """At a site that is wanted all the time, its permits are shared by max-min; and no
        node waits for longer than the others' reuse windows and requests take.
        """
        # A node that asks for a permit as it gives one back comes after all that wait then.
        longest = len(wants) * (self.plan.reuse_window + max(holds.values())) + TRAVEL_S
        are_alike = len(set(holds.values())) == 1
        for node, share in max_min(wants, limit).items():
            # Of those that hold as many each is served in its order, however long it takes; and
            # whose only request has ended must wait for another's end.
            due = share if are_alike else min(math.floor(share), wants[node] - 1)
            held = self.held_s[node] / length  # less its ways to the server
            if not self.plan.reuse_window and held < 0.4 * due:
                self.violate(f"SHARE node {node} has {held:.2f} permits, {due:.2f} are due to it")
            if wants[node] <= limit and self.longest_wait[node] > longest:
                self.violate(f"WAIT node {node} waited for {self.longest_wait[node]:.3f} s")

    def check_jobs(self, jobs: Mapping[int, str], length: float) -> None:
        """Jobs that want a site all the time share its permits, or the starts, equally. `jobs`
        are by node.
        """
        limit = self.plan.limits["a.com"]
        is_paced = bool(limit.delay or limit.rate)
        used: dict[str, float] = defaultdict(float)
        for node, job in jobs.items():
            used[job] += self.started[node] if is_paced else self.held_s[node]
        all_used = sum(used.values())
        for name, of_job in used.items():
            has, due = of_job / all_used, 1 / len(used)
            if abs(has - due) > 0.02:
                self.violate(f"SHARE job {name} has {has:.3f}, not {due:.3f}")
        most = length / self._interval("a.com") if is_paced else length * limit.concurrency
        if all_used < 0.9 * most:
            self.violate(f"UNUSED: of {most:.0f} permits or starts {all_used:.0f} were used")

    # The end ------------------------------------------------------------------------------------

    def free_after(self) -> float:
        """Seconds within which a permit that is free goes to who waits, once faults are over."""
        lease = self.plan.lease
        of_dead_nodes = (1 + RENEWAL) * lease if self.plan.kind == "storm" else 0.0
        of_breaks = CONNECT_S if self.plan.kind == "calm" and self.plan.faults else 0.0
        return 2 * self.plan.reuse_window + 0.1 + of_dead_nodes + of_breaks + lease / 50


def max_min(wants: dict[int, int], permits: float) -> dict[int, float]:
    """Max-min fair shares of so many permits."""
    shares: dict[int, float] = {}
    left = dict(wants)
    while left:
        share = permits / len(left)
        small = {node: want for node, want in left.items() if want <= share}
        if not small:
            return shares | dict.fromkeys(left, share)
        for node, want in small.items():
            shares[node] = float(want)
            permits -= want
            del left[node]
    return shares
