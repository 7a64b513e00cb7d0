"""Accounts against the real scripts, over a network that repeats, delays, reorders and loses.

Time is the test's: it moves the nodes' clock, and the server's with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from semaphore_middleware.core.account import Account
from semaphore_middleware.core.observer import Event, PermitLost
from semaphore_middleware.core.permit import Permit, Stage
from semaphore_middleware.model.lease import GRACE
from semaphore_middleware.model.limits import Limit
from semaphore_middleware.redis.location import Server
from semaphore_middleware.redis.protocol import Notification, Reply, Statement
from semaphore_middleware.redis.recovery import Recovery
from semaphore_middleware.redis.store import Store
from tests.core.lone_node import Clock, FakeOwner
from tests.support.nodes import ENDLESS_S, KEYS, Loop, Outside
from tests.support.servers import RedisServer

NAMES = "abc"
SCOPE = "s"
LEASE_S = ENDLESS_S
TURN_S = LEASE_S / 50
DELIVERIES = 3  # at most, of each message
SLACK_S = 30.0  # by which the server's clock may be ahead: the nodes' stands still between steps
# The server keeps an account for a lease since the statement that the deadline counts from.
LEASE_AFTER_DEADLINE_S = (1 - GRACE) * LEASE_S - SLACK_S
WAITING_MOST = 4  # requests of a node that wait
STEPS_S = (TURN_S, 0.3 * LEASE_S, 0.6 * LEASE_S, 0.99 * LEASE_S)

how_far = st.sampled_from(["unheard", "heard", "answered"])
outcomes = st.sampled_from(["", "", "", "answered", "failed", "refused"])


@dataclass
class Sent:
    """A statement under way."""

    node: Node
    epoch: bytes
    statement: Statement
    at: float
    deliveries: int = DELIVERIES


@dataclass
class Answered:
    """A reply under way; None: the server is in another epoch."""

    node: Node
    sent: Sent
    reply: Reply | None
    deliveries: int = DELIVERIES


@dataclass
class Told:
    """A notification under way."""

    node: Node
    message: Notification
    deliveries: int = DELIVERIES


Wire = list[Sent] | list[Answered] | list[Told]


class Owner(FakeOwner):
    """The owner of one node's account."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, TURN_S)
        self.grace = GRACE * LEASE_S
        self.ending: list[Permit] = []  # lost, and still running

    def end_turns(self) -> bool:
        """A common turn is over; returns whether any account had wished to know."""
        accounts, self.turns_to_end = dict.fromkeys(self.turns_to_end), []
        for account in accounts:
            account.end_turns()
        return bool(accounts)

    def emit(self, event: Event) -> None:
        if isinstance(event, PermitLost):
            self.ending.append(event.permit)


@dataclass
class Node:
    """One node: its account, and the part of a session that the account needs."""

    name: str
    clock: Clock
    recovery: Recovery
    frozen: bool = False
    owner: Owner = field(init=False)
    account: Account = field(init=False)
    safe_until: dict[Permit, float] = field(default_factory=dict)  # when the server may free it

    def __post_init__(self) -> None:
        self.owner = Owner(self.clock)
        self.account = Account(SCOPE, Limit(1), self.owner)

    @property
    def running(self) -> list[Permit]:
        """Permits whose requests run, be they lost."""
        return [*self.account.held, *self.owner.ending]

    @property
    def waiting(self) -> list[Permit]:
        return list(self.account.waiting)

    @property
    def may_ask(self) -> bool:
        return len(self.account.waiting) < WAITING_MOST

    @property
    def is_open(self) -> bool:
        return not self.account.is_empty

    @property
    def is_late(self) -> bool:
        """Whether its deadline has come: a frozen node's timers fire late."""
        return self.clock.now >= self.account.deadline

    def note_deadlines(self) -> None:
        """The account forgets its deadline with what it loses."""
        safe_until = self.account.deadline + LEASE_AFTER_DEADLINE_S
        held = dict.fromkeys(self.account.held, safe_until)
        self.safe_until = {
            permit: held.get(permit, self.safe_until.get(permit, 0.0)) for permit in self.running
        }

    def end(self, permit: Permit) -> None:
        """The request of a permit ends."""
        permit.release()
        if permit in self.owner.ending:
            self.owner.ending.remove(permit)


class Playground:
    """A server and a connection that all examples share: to make them anew takes the most time."""

    def __init__(self, server: RedisServer) -> None:
        self.loop = Loop()
        self.outside = Outside(server)
        self.server = server
        self.connection = self.loop.run(Server(server.url, 5.0).connect())
        self.recoveries: dict[str, Recovery] = {}
        self.stores: dict[str, Store] = {}

    def close(self) -> None:
        self.loop.run(self.connection.close())
        self.loop.close()

    def reset(self) -> None:
        self.outside.client.flushall()
        for name in NAMES:
            recovery = Recovery(KEYS, LEASE_S, LEASE_S, lambda _: None)
            self.recoveries[name] = recovery
            self.stores[name] = Store(KEYS, name, LEASE_S, recovery)
            self.join(recovery)
        self.outside.told()

    def join(self, recovery: Recovery) -> bool:
        return self.loop.run(recovery.join_epoch(self.connection))

    def sync(self, sent: Sent) -> Reply | None:
        """Let the server hear a statement as it was sent, in the epoch that its node knew."""
        recovery = self.recoveries[sent.node.name]
        known, recovery.epoch = recovery.epoch, sent.epoch
        try:
            store = self.stores[sent.node.name]
            replies = self.loop.run(store.sync(self.connection, [sent.statement]))
        finally:
            recovery.epoch = known
        return replies[0] if replies else None

    def pass_time(self, seconds: float) -> None:
        if self.outside.client.exists(KEYS.epoch):
            self.outside.client.hincrbyfloat(KEYS.epoch, "clock", 1000 * seconds)


class Machine(RuleBasedStateMachine):
    """Each message is delivered 0 to 3 times, in any order, and the limit holds."""

    ground: Playground

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.statements: list[Sent] = []
        self.replies: list[Answered] = []
        self.notifications: list[Told] = []

    @initialize(limit=st.sampled_from([1, 1, 2, 4]), count=st.integers(2, len(NAMES)))
    def begin(self, limit: int, count: int) -> None:
        self.ground.reset()
        self.limit = Limit(limit)
        self.nodes = [Node(n, self.clock, self.ground.recoveries[n]) for n in NAMES[:count]]

    # Requests -----------------------------------------------------------------------------------

    @precondition(lambda self: self.with_any("may_ask"))
    @rule(data=st.data(), count=st.integers(1, 2), told=how_far)
    def request(self, data: Any, count: int, told: str) -> None:
        node = data.draw(st.sampled_from(self.with_any("may_ask")))
        for _ in range(count):
            node.account.request(node.owner.permit(node.account, self.limit))
        self.tell(node, told)

    @precondition(lambda self: self.with_any("running"))
    @rule(data=st.data(), outcome=outcomes, told=how_far)
    def end(self, data: Any, outcome: str, told: str) -> None:
        node = data.draw(st.sampled_from(self.with_any("running")))
        permit = data.draw(st.sampled_from(node.running))
        if outcome == "answered":
            permit.answered(0.1)
        elif outcome == "failed":
            permit.failed()
        elif outcome == "refused":
            permit.refused(retry_after=TURN_S)
        node.end(permit)
        self.tell(node, told)

    @precondition(lambda self: self.with_any("waiting"))
    @rule(data=st.data(), told=how_far)
    def give_up(self, data: Any, told: str) -> None:
        node = data.draw(st.sampled_from(self.with_any("waiting")))
        data.draw(st.sampled_from(node.waiting)).release()
        self.tell(node, told)

    # Messages -----------------------------------------------------------------------------------

    @precondition(lambda self: self.with_any("is_open"))
    @rule(data=st.data())
    def speak(self, data: Any) -> None:
        self.say(data.draw(st.sampled_from(self.with_any("is_open"))))

    @precondition(lambda self: self.statements)
    @rule(data=st.data())
    def the_server_hears(self, data: Any) -> None:
        self.deliver(self.some_of(self.statements, data))

    @precondition(lambda self: self.awake(self.replies))
    @rule(data=st.data())
    def a_reply_comes(self, data: Any) -> None:
        self.hear_reply(self.some_of(self.replies, data))

    @precondition(lambda self: self.awake(self.notifications))
    @rule(data=st.data())
    def a_notification_comes(self, data: Any) -> None:
        self.hear_notification(self.some_of(self.notifications, data))

    @precondition(lambda self: self.with_any("is_open"))
    @rule(data=st.data())
    def all_goes_well(self, data: Any) -> None:
        """One node speaks, and hears the reply at once."""
        self.exchange(data.draw(st.sampled_from(self.with_any("is_open"))))

    # Time and faults ----------------------------------------------------------------------------

    @rule(seconds=st.sampled_from(STEPS_S))
    def time_passes(self, seconds: float) -> None:
        self.pass_time(seconds)

    @rule(data=st.data())
    def a_node_freezes_or_wakes(self, data: Any) -> None:
        node = data.draw(st.sampled_from(self.nodes))
        node.frozen = not node.frozen  # its timers and its messages come in any order

    @precondition(lambda self: self.with_any("is_late"))
    @rule(data=st.data())
    def a_node_notices_the_time(self, data: Any) -> None:
        self.fire_timers(data.draw(st.sampled_from(self.with_any("is_late"))))

    @precondition(lambda self: self.with_any("running"))
    @rule()
    def the_server_loses_its_data(self) -> None:
        self.ground.outside.client.flushall()

    # What always holds --------------------------------------------------------------------------

    @invariant()
    def never_more_requests_run_than_the_limit_allows(self) -> None:
        """As long as their nodes can know. A request that was told to end may take its time, but
        nothing is promised of one that runs on when its lease is over.
        """
        for node in self.nodes:
            node.note_deadlines()
        now = self.clock.now
        counts = [sum(until > now for until in node.safe_until.values()) for node in self.nodes]
        assert sum(counts) <= self.limit.concurrency, counts

    def teardown(self) -> None:
        if hasattr(self, "nodes"):
            self.all_ends_well()

    def all_ends_well(self) -> None:
        """When what is said is heard again, each request gets its permit, and nothing is left."""
        for node in self.nodes:
            node.frozen = False
        for wire in (self.statements, self.replies, self.notifications):
            wire.clear()
        for _ in range(25):  # two leases and a half: recovery waits and what is lost are over
            self.pass_time(LEASE_S / 10)
            for node in self.nodes:
                self.exchange(node)
        # From here on nobody speaks without a reason, as renewals do.
        for node in self.nodes:
            node.owner.at_once.clear()
            node.owner.retries.clear()
        for _ in range(200):
            steps = [self.take_step(node) for node in self.nodes]
            if not any(steps):
                break
        for node in self.nodes:
            assert not node.account.waiting, f"{node.account} waits for ever"
            assert node.account.is_empty, node.account
        # The next call closes what late statements may have opened: nobody speaks for that.
        last = self.nodes[0].owner.permit(self.nodes[0].account, self.limit)
        self.nodes[0].account.request(last)
        while self.take_step(self.nodes[0]):
            pass
        assert last.stage is Stage.RELEASED
        key, queue = KEYS.of(SCOPE)
        client = self.ground.outside.client
        assert [field for field in client.hkeys(key) if field.startswith(b"node:")] == []
        assert not client.exists(queue)

    def take_step(self, node: Node) -> bool:
        """Let a node do what there is to do; returns whether there was anything."""
        owner = node.owner
        for permit in node.running:
            node.end(permit)
        turns = owner.end_turns()
        if owner.retries:
            self.pass_time(owner.retries.pop() + 1.0)
            owner.at_once.append(True)
        if not owner.at_once:
            return turns
        owner.at_once.clear()
        self.exchange(node)
        return True

    # ----------------------------------------------------------------------------------------------

    def awake(self, wire: Wire | None = None) -> list[Any]:
        """Nodes that are not frozen, or the messages for them."""
        if wire is None:
            return [node for node in self.nodes if not node.frozen]
        return [message for message in wire if not message.node.frozen]

    def with_any(self, what: str) -> list[Node]:
        return [node for node in self.awake() if getattr(node, what)]

    def some_of(self, wire: Wire, data: Any) -> Any:
        """A message, the latest ones first, as often as it may still be delivered."""
        messages = wire if wire is self.statements else self.awake(wire)
        message = data.draw(st.sampled_from(messages[::-1]))
        message.deliveries -= 1
        if not message.deliveries:
            wire.remove(message)
        return message

    def say(self, node: Node) -> list[Sent]:
        sent = [
            Sent(node, node.recovery.epoch, statement, self.clock.now)
            for statement in node.account.pending_statements(self.clock.now)
        ]
        for one in sent:
            said = one.statement
            assert 0 <= said.returned <= said.believed <= said.asked
            assert said.believed - said.returned >= len(node.account.held)
        self.statements += sent
        return sent

    def tell(self, node: Node, how_far: str) -> None:
        """Let the server know, or not; and let the node know of its reply, or not."""
        if how_far == "heard":
            for sent in self.say(node):
                self.deliver(sent)
        elif how_far == "answered":
            self.exchange(node)

    def deliver(self, sent: Sent) -> Answered:
        answered = Answered(sent.node, sent, self.ground.sync(sent))
        self.replies.append(answered)
        by_name = {node.name: node for node in self.nodes}
        for name, text in self.ground.outside.told():
            message = Notification.read(text.encode())
            assert message is not None
            self.notifications.append(Told(by_name[name], message))
        return answered

    def hear_reply(self, answered: Answered) -> None:
        node = answered.node
        if answered.reply is not None:
            assert answered.reply.status != "refused", answered.reply
            node.account.on_reply(answered.reply, answered.sent.at)
        elif self.ground.join(node.recovery):
            node.account.on_new_epoch()

    def hear_notification(self, told: Told) -> None:
        account, message = told.node.account, told.message
        if message.kind == "granted":
            account.on_granted(message.term, message.granted)
        elif message.kind == "backoff":
            account.on_backoff()
        elif message.kind == "down":
            account.on_down(message.down_for)
        else:
            told.node.owner.retry(account, message.retry_in)

    def exchange(self, node: Node) -> None:
        """A round trip without a fault; notifications reach all that can hear them."""
        for sent in self.say(node):
            self.statements.remove(sent)
            before = len(self.notifications)
            self.hear_reply(self.deliver(sent))
            self.replies.pop()
            for told in self.notifications[before:]:
                if not told.node.frozen:
                    self.notifications.remove(told)
                    self.hear_notification(told)

    def pass_time(self, seconds: float) -> None:
        """Timers fire in time, but for those of frozen nodes."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            deadlines = [node.account.deadline for node in self.awake()]
            later = [time for time in deadlines if time > self.clock.now]
            step = min([end, *later]) - self.clock.now
            self.never_more_requests_run_than_the_limit_allows()
            self.clock.now += step
            self.ground.pass_time(step)
            for node in self.awake():
                self.fire_timers(node)

    def fire_timers(self, node: Node) -> None:
        node.account.end_if_over(self.clock.now)
        if self.clock.now % TURN_S < 1.0:
            node.owner.end_turns()
