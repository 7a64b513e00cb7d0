"""A machine that does to a real server whatever nodes, time and misfortune do, beside the model."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from semaphore_middleware.core.admin import Admin
from semaphore_middleware.model.feedback import FeedbackSummary
from semaphore_middleware.redis.protocol import Notification, Reply, Statement
from tests.support.model import Heard, Message, Model, Said
from tests.support.nodes import KEYS, Caller, Loop, Outside
from tests.support.servers import RedisServer

NODES = "abc"
SCOPES = ("s", "t")
BYSTANDER = "bystander"
UNLIMITED = 10**9
REFUSAL = FeedbackSummary(refused=1, retry_after=200)

nodes = st.sampled_from(NODES)
scopes = st.sampled_from(SCOPES)
limits = st.integers(1, 3)
counts = st.integers(1, 4)


@dataclass(frozen=True)
class Fate:
    """How often a statement is heard now, and when its replies are."""

    copies: int = 1
    hears: bool = True
    """False: the replies are lost, unless they come late."""


fates = st.sampled_from(
    [Fate(), Fate(), Fate(), Fate(hears=False), Fate(copies=2), Fate(copies=3), Fate(copies=0)]
)


@dataclass(frozen=True)
class Sent:
    """A statement that may come (again) at any time."""

    node: str
    epoch: bytes
    statement: Statement


class Playground:
    """A server and three nodes that all examples share: to make them anew takes the most time."""

    def __init__(self, server: RedisServer) -> None:
        self.loop = Loop()
        self.outside = Outside(server)
        names = (*NODES, BYSTANDER)
        self.callers = {name: self.loop.run(Caller.join(server, name)) for name in names}

    @property
    def bystander(self) -> Caller:
        return self.callers[BYSTANDER]

    def close(self) -> None:
        self.loop.close()

    def reset(self) -> None:
        self.outside.client.flushall()
        for caller in self.callers.values():
            caller.books.clear()
            self.loop.run(caller.begin_epoch())
        self.outside.end_recovery()
        self.outside.told()


class Machine(RuleBasedStateMachine):
    """After each step model and server agree."""

    ground: Playground

    def __init__(self) -> None:
        super().__init__()
        self.models = {scope: Model() for scope in SCOPES}
        self.sent: list[Sent] = []
        self.replies: list[tuple[str, Reply]] = []
        self.told: list[tuple[str, str]] = []
        self.closed: set[tuple[str, str, int]] = set()  # accounts that an operator or a loss closed
        self.unknown: set[tuple[str, str, int]] = set()  # claims that were not heard yet
        self.held_before = dict.fromkeys(SCOPES, 0)

    @initialize()
    def begin(self) -> None:
        self.ground.reset()

    # What nodes do --------------------------------------------------------------------------------

    @rule(node=nodes, scope=scopes, limit=limits, fate=fates, n=counts)
    def take(self, node: str, scope: str, limit: int, fate: Fate, n: int) -> None:
        self.say(node, scope, limit, fate, take=n)

    @precondition(lambda self: self.with_any("held"))
    @rule(data=st.data(), limit=limits, fate=fates, n=counts)
    def give_back(self, data: Any, limit: int, fate: Fate, n: int) -> None:
        node, scope = data.draw(st.sampled_from(self.with_any("held")))
        self.say(node, scope, limit, fate, back=n)

    @precondition(lambda self: self.with_any("waiting"))
    @rule(data=st.data(), limit=limits, fate=fates, n=counts)
    def give_up(self, data: Any, limit: int, fate: Fate, n: int) -> None:
        node, scope = data.draw(st.sampled_from(self.with_any("waiting")))
        self.say(node, scope, limit, fate, up=n)

    @precondition(lambda self: self.with_any("held"))
    @rule(data=st.data(), limit=limits, fate=fates, n=counts, more=counts, fewer=counts)
    def exchange(self, data: Any, limit: int, fate: Fate, n: int, more: int, fewer: int) -> None:
        """What it gives back, asks for and no longer wants is in one statement."""
        node, scope = data.draw(st.sampled_from(self.with_any("held")))
        self.say(node, scope, limit, fate, back=n, take=more, up=fewer)

    @precondition(lambda self: self.with_any("held"))
    @rule(data=st.data(), limit=limits, fate=fates, n=counts)
    def report_refusal(self, data: Any, limit: int, fate: Fate, n: int) -> None:
        node, scope = data.draw(st.sampled_from(self.with_any("held")))
        self.say(node, scope, limit, fate, back=n, feedback=REFUSAL)

    @rule(node=nodes, scope=scopes, limit=limits, fate=fates)
    def renew(self, node: str, scope: str, limit: int, fate: Fate) -> None:
        self.say(node, scope, limit, fate)

    @rule(
        node=nodes,
        scope=scopes,
        wrong=st.sampled_from([{"term": 0}, {"seq": 0}, {"returned": 9, "believed": 8}]),
    )
    def talk_nonsense(self, node: str, scope: str, wrong: dict[str, int]) -> None:
        caller = self.ground.callers[node]
        self.join_epoch(node)
        statement = caller.statement(scope, 1, **{"asked": 10, **wrong})
        replies = self.ground.loop.run(caller.send(statement))
        assert replies is not None
        assert replies[0].status == "refused"
        self.check_told([], scope)

    # What the network does ------------------------------------------------------------------------

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def a_statement_comes_late(self, data: Any) -> None:
        """One that came before, or one that never did."""
        self.deliver(data.draw(st.sampled_from(self.sent)), hears=False)

    @precondition(lambda self: self.replies)
    @rule(data=st.data())
    def a_reply_comes_late(self, data: Any) -> None:
        node, reply = data.draw(st.sampled_from(self.replies))
        self.ground.callers[node].hear(reply)

    @precondition(lambda self: self.told)
    @rule(data=st.data())
    def a_notification_comes(self, data: Any) -> None:
        node, text = data.draw(st.sampled_from(self.told))
        self.ground.callers[node].hear_notification(text)

    # What operators do ----------------------------------------------------------------------------

    @rule(
        scope=scopes, act=st.sampled_from(["configure", "reset", "pause", "resume"]), limit=limits
    )
    def operator_acts(self, scope: str, act: str, limit: int) -> None:
        model = self.models[scope]
        if act == "configure":
            model.rule = limit
            self.operate(self.admin.configure(scope, limit))
        elif act == "pause":
            model.paused = True
            self.operate(self.admin.pause(scope))
        else:
            model.paused = model.backoff = False
            if act == "reset":
                model.rule = None
            self.operate(self.admin.reset(scope) if act == "reset" else self.admin.resume(scope))
        self.poke(scope)

    @rule(node=nodes)
    def operator_evicts(self, node: str) -> None:
        """The node may be alive: it learns of it when it speaks."""
        self.operate(self.admin.evict(node))
        messages = [(scope, self.models[scope].evict(node)) for scope in SCOPES]
        self.closed |= self.accounts_of(node)
        self.check_all_told(messages)

    @property
    def admin(self) -> Admin:
        return self.ground.bystander.admin

    def operate(self, action: Coroutine[Any, Any, Any]) -> None:
        self.ground.loop.run(action)

    # What time and misfortune do ------------------------------------------------------------------

    @precondition(lambda self: any(model.accounts for model in self.models.values()))
    @rule(node=nodes, is_noticed=st.booleans())
    def a_lease_ends(self, node: str, is_noticed: bool) -> None:
        """The node has not renewed for long, so it ended all itself; it may be dead, or go on."""
        self.ground.outside.end_leases(node, *SCOPES)
        caller = self.ground.callers[node]
        for scope, model in self.models.items():
            model.end_lease(node)
            caller.lose(scope)
            if is_noticed:
                self.poke(scope)

    @precondition(lambda self: any(model.backoff for model in self.models.values()))
    @rule()
    def backoffs_end(self) -> None:
        for scope, model in self.models.items():
            model.backoff = False
            self.ground.outside.end_backoff(scope)
            self.poke(scope)

    @precondition(lambda self: any(model.held for model in self.models.values()))
    @rule()
    def data_is_lost(self) -> None:
        self.ground.outside.client.flushall()
        for model in self.models.values():
            model.lose_all()
        for node in NODES:
            self.closed |= self.accounts_of(node)

    @precondition(lambda self: any(model.recovering for model in self.models.values()))
    @rule()
    def recovery_ends(self) -> None:
        self.join_epoch(BYSTANDER)
        self.ground.outside.end_recovery()
        for scope, model in self.models.items():
            model.recovering = False
            self.poke(scope)

    # What always holds ----------------------------------------------------------------------------

    @invariant()
    def server_and_model_agree(self) -> None:
        for scope, seen in zip(SCOPES, self.ground.outside.look(*SCOPES), strict=True):
            model = self.models[scope]
            assert seen.queue == model.queue
            parts = ("term", "seq", "asked", "granted", "returned")
            assert {
                node: [account[part] for part in parts] for node, account in seen.accounts.items()
            } == {
                node: [getattr(account, part) for part in parts]
                for node, account in model.accounts.items()
            }
            # What is written down twice, so that no call need add up all accounts.
            if seen.accounts:
                assert float(seen.state["held"]) == model.held
                assert float(seen.state["waiting"]) == model.waiting
                first = min(account["lease_end"] for account in seen.accounts.values())
                assert float(seen.state["due"]) <= first

    @invariant()
    def nobody_waits_while_a_permit_is_free(self) -> None:
        for model in self.models.values():
            if model.waiting and not model.forbids:
                assert model.held >= model.in_force

    @invariant()
    def no_grant_is_above_the_limit(self) -> None:
        """A limit may be lowered below what is held; then nothing is granted."""
        for scope, model in self.models.items():
            if not model.recovering:
                assert model.held <= max(model.in_force, self.held_before[scope])
            self.held_before[scope] = model.held

    @invariant()
    def no_node_holds_more_than_the_server_knows_of(self) -> None:
        """But what an operator has evicted, or a loss of data has hit, and nobody has told yet."""
        for node in NODES:
            for scope, book in self.ground.callers[node].books.items():
                account = self.models[scope].accounts.get(node)
                one = (node, scope, book.term)
                if account and account.term == book.term and account.held >= book.held:
                    self.unknown.discard(one)
                else:
                    assert not book.held or one in self.closed | self.unknown

    @invariant()
    def every_key_expires(self) -> None:
        """But for what operators have set."""
        for key in self.ground.outside.in_use():
            assert key == KEYS.rules or self.ground.outside.ttl(key) > 0, key

    def teardown(self) -> None:
        self.recovery_ends()
        for scope in SCOPES:
            self.operator_acts(scope, "reset", 1)
        for ends in ("waiting", "holding"):
            for node in NODES:
                for scope in SCOPES:
                    book = self.ground.callers[node].book(scope)
                    back = book.held if ends == "holding" else 0
                    self.say(node, scope, 1, Fate(), back=back, up=book.waiting)
        for scope in SCOPES:
            self.poke(scope)
        assert self.ground.outside.in_use() == set(), "nothing is left when all was given back"

    # What the rules are made of -------------------------------------------------------------------

    def join_epoch(self, node: str) -> None:
        """Only after a loss of data there is anything to do."""
        caller, client = self.ground.callers[node], self.ground.outside.client
        if client.hget(KEYS.epoch, "id") != caller.recovery.epoch:
            self.ground.loop.run(caller.begin_epoch())
            self.unknown |= self.accounts_of(node)

    def accounts_of(self, node: str) -> set[tuple[str, str, int]]:
        books = self.ground.callers[node].books
        return {(node, scope, book.term) for scope, book in books.items()}

    def with_any(self, part: str) -> list[tuple[str, str]]:
        """Nodes and scopes where there is any of this, as far as the node has heard."""
        callers = self.ground.callers
        return [
            (node, scope)
            for node in NODES
            for scope in SCOPES
            if scope in callers[node].books and getattr(callers[node].books[scope], part) > 0
        ]

    def say(
        self,
        node: str,
        scope: str,
        limit: int,
        fate: Fate,
        *,
        take: int = 0,
        back: int = 0,
        up: int = 0,
        feedback: FeedbackSummary | None = None,
    ) -> None:
        """As far as the node holds and wants as much."""
        caller = self.ground.callers[node]
        self.join_epoch(node)
        book = caller.book(scope)
        back = min(back, book.held)
        book.asked += take - min(up, book.waiting)
        book.returned += back
        statement = caller.statement(scope, limit, feedback=feedback if back else None)
        sent = Sent(node, caller.recovery.epoch, statement)
        self.sent.append(sent)
        for _ in range(fate.copies):
            self.deliver(sent, fate.hears)

    def poke(self, scope: str) -> None:
        """Let be done what time has made due."""
        self.join_epoch(BYSTANDER)
        bystander = self.ground.bystander
        bystander.books.clear()
        statement = bystander.statement(scope, UNLIMITED)
        self.deliver(Sent(BYSTANDER, bystander.recovery.epoch, statement), hears=False)

    def deliver(self, sent: Sent, hears: bool) -> None:
        caller, statement = self.ground.callers[sent.node], sent.statement
        joined, caller.recovery.epoch = caller.recovery.epoch, sent.epoch
        replies = self.ground.loop.run(caller.send(statement))
        caller.recovery.epoch = joined
        if sent.epoch != self.ground.outside.client.hget(KEYS.epoch, "id"):
            assert replies is None
            self.check_told([], statement.scope)
            return
        assert replies is not None
        (reply,) = replies
        said = Said(
            *(statement.term, statement.seq, statement.asked, statement.returned),
            statement.believed,
            statement.limit.concurrency,
            statement.feedback is not None,
        )
        heard, messages = self.models[statement.scope].hear(sent.node, said)
        assert heard == Heard(
            *(reply.status, reply.term, reply.granted, reply.available),
            reply.limit,
            reply.is_counted,
            reply.retry_in is not None,
            reply.backoff is not None,
        )
        self.check_told(messages, statement.scope)
        if hears:
            caller.hear(reply)
        if sent.node != BYSTANDER:
            self.replies.append((sent.node, reply))

    def check_told(self, expected: list[Message], scope: str) -> None:
        self.check_all_told([(scope, expected)])

    def check_all_told(self, expected: list[tuple[str, list[Message]]]) -> None:
        """Over its channel each node is told of its grants, and of nothing else."""
        told: list[tuple[str, Message]] = []
        for node, text in self.ground.outside.told():
            message = Notification.read(text.encode())
            assert message is not None
            counts = (str(message.term), str(message.granted))
            is_grant = message.kind == "granted"
            told.append((message.scope, (node, message.kind, *(counts if is_grant else ()))))
            self.told.append((node, text))
        assert sorted(told) == sorted(
            (scope, message) for scope, messages in expected for message in messages
        )
