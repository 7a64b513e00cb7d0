"""The protocol's transitions, one function each.

A node's own steps change nothing but itself, its account and its messages, so that a search can
remember them. The world's steps are the others: the server handles a message, a fault happens.
Where the server has a choice (whose turn it is), each is followed, so nothing here depends on the
order of the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple, TypeAlias, TypeVar

from tests.protocol.rules import Rules
from tests.protocol.scenario import Restart, Scenario
from tests.protocol.state import (
    BACKWARDS,
    Account,
    Begin,
    Begun,
    Call,
    Epoch,
    LateReply,
    Member,
    Node,
    Notification,
    Replica,
    Reply,
    Server,
    State,
    Statement,
    Status,
    Step,
)

Accounts: TypeAlias = tuple[Account | None, ...]
WorldStep: TypeAlias = tuple[tuple[object, ...], State]
Value = TypeVar("Value")


class Outcome(NamedTuple):
    """What the server makes of one message."""

    server: Server
    accounts: Accounts
    reply: Reply | Begun
    told: frozenset[int] = frozenset()  # nodes to whose channels a grant is published


class Protocol:
    """All steps that rules and scenario allow."""

    def __init__(self, rules: Rules, scenario: Scenario) -> None:
        self.rules = rules
        self.scenario = scenario
        self.handle = cache(self._handle)
        self._faults = self._faults_of(scenario)

    def initial(self) -> State:
        scenario = self.scenario
        server = Server(
            life=0,
            epoch=Epoch(0, 0),
            wait=0,
            unseen=0,
            next_epoch=1,
            replica=None,
            jumps=scenario.clock_jumps,
            restarts=scenario.restart_count if scenario.restarts else 0,
            flushes=scenario.flushes,
            freezes=scenario.freezes,
        )
        disturbed = scenario.nodes - scenario.calm
        members = (Member(),) * disturbed + (Member(calm=True),) * scenario.calm
        return State(server, members)

    # A node's requests --------------------------------------------------------------------------

    def a_request_begins(self, member: Member) -> Iterator[Step]:
        node = member.node
        if node.in_hand > 0:
            yield "uses the permit in hand", put(member, node._replace(running=node.running + 1))
        elif node.running + node.waiting < self.scenario.requests:
            yield "waits for a permit", put(member, node._replace(waiting=node.waiting + 1))

    def a_request_gives_up(self, member: Member) -> Iterator[Step]:
        node = member.node
        if node.waiting and not self.scenario.plain:
            yield "gives up waiting", put(member, node._replace(waiting=node.waiting - 1))

    def a_transfer_ends(self, member: Member) -> Iterator[Step]:
        node = member.node
        if not node.running:
            return
        ended = node._replace(running=node.running - 1)
        given_back = ended._replace(returned=node.returned + 1)
        yield "ends a transfer, gives the permit back", put(member, given_back)
        if node.waiting:
            yield "ends a transfer, hands the permit on", put(member, use_permits(ended))
        elif not self.scenario.plain:
            yield "ends a transfer, keeps the permit in hand", put(member, ended)

    def permits_in_hand_go_back(self, member: Member) -> Iterator[Step]:
        node = member.node
        if node.in_hand > 0:
            yield "gives back what is in its hand", put(member, self.give_back_unused(node))

    def give_back_unused(self, node: Node) -> Node:
        unused = 0 if self.rules.asked_is_never_below_granted else node.unused + node.in_hand
        return node._replace(returned=node.returned + node.in_hand, unused=unused)

    # A node's deadline --------------------------------------------------------------------------

    def the_deadline_is_over(self, member: Member) -> Iterator[Step]:
        """After a node has woken; a node that is awake notices it at once (`node_after_tick`)."""
        if is_over(member.node):
            yield "ends all: its deadline is over", put(member, self.end_term(member.node))

    def a_transfer_is_closed(self, member: Member) -> Iterator[Step]:
        node = member.node
        if node.closing:
            closed = node._replace(closing=node.closing - 1)
            yield "has closed a transfer that was told to end", put(member, closed)

    def end_term(self, node: Node) -> Node:
        """All permits are lost, their transfers are told to end, and a new term comes next."""
        rules = self.rules
        closing = node.closing + (node.running if self.scenario.closing_takes_time else 0)
        holds = node.granted > node.returned
        if not rules.new_term_at_deadline_of_an_empty_account and not holds:
            return node._replace(deadline=None)
        in_hand = 0 if rules.permits_in_hand_end_at_deadline else node.in_hand
        node = node._replace(running=0, closing=closing, deadline=None, unused=0)
        if not rules.terms:
            return node._replace(returned=node.granted)
        return node._replace(term=node.term + 1, seq=0, returned=0, granted=in_hand)

    def wakes(self, member: Member) -> Iterator[Step]:
        node = member.node._replace(frozen=False)
        if self.rules.deadlines_come_first and is_over(node):
            yield "wakes and ends all: its deadline is over", put(member, self.end_term(node))
        else:
            yield "wakes", put(member, node)

    # A node's calls -----------------------------------------------------------------------------

    def has_something_to_say(self, node: Node) -> bool:
        if node.deadline is None:
            if node.closing and self.rules.new_term_waits_for_transfers_to_end:
                return False
            return node.waiting > 0 or node.granted > node.returned
        return True

    def calls(self, member: Member) -> Iterator[Step]:
        node = member.node
        if member.call or not self.has_something_to_say(node):
            return
        if needs_the_epoch(node):
            call = Call(Begin(node.life))
            yield "asks for the epoch", member._replace(call=call)
            return
        node, call = self.say(node)
        assert isinstance(call.message, Statement)
        spoken = member._replace(node=node, call=call)
        yield f"says {call.message}", spoken
        if self.scenario.twice:
            for stale in self.still_able_to_arrive(member, call.message):
                yield f"says, to arrive twice, {call.message}", spoken._replace(stale=stale)

    def say(self, node: Node) -> tuple[Node, Call]:
        """The account's next statement, and the node that has said it."""
        assert node.epoch is not None
        if self.rules.asked_is_never_below_granted:
            asked = node.granted + max(0, node.waiting - node.in_hand)
        else:
            asked = node.returned - node.unused + node.running + node.waiting
        deadline = node.deadline
        if deadline is None or self.rules.deadline_from == "last sent":
            deadline = self.scenario.deadline_ticks
        seq = node.seq + 1
        statement = Statement(node.epoch, node.term, seq, asked, node.returned, node.granted)
        return node._replace(seq=seq, deadline=deadline), Call(statement, asked, node.returned)

    def a_call_times_out(self, member: Member) -> Iterator[Step]:
        call = member.call
        if call is None:
            return
        given_up = member._replace(call=None)
        message = call.message
        if isinstance(message, Statement | Begin):
            for stale in self.still_able_to_arrive(member, message):
                yield "gives its call up, still on its way", given_up._replace(stale=stale)
            return
        yield "gives its call up, the reply is lost", given_up
        if not self.scenario.late_replies or member.late or isinstance(message, Begun):
            return
        if message.status == "ok":
            late = LateReply(message.term, message.granted, call.age)
            yield "gives its call up, the reply is late", given_up._replace(late=late)

    def still_able_to_arrive(
        self, member: Member, message: Statement | Begin
    ) -> Iterator[tuple[Statement | Begin, ...]]:
        return remembered(member.stale, message, self.scenario.stale)

    # What a node hears --------------------------------------------------------------------------

    def the_reply_arrives(self, member: Member) -> Iterator[Step]:
        call = member.call
        if call and isinstance(call.message, Reply | Begun):
            yield f"hears {call.message}", self.hear(member)

    def hear(self, member: Member) -> Member:
        call = member.call
        assert call is not None
        message = call.message
        member = member._replace(call=None)
        if isinstance(message, Begun):
            return put(member, self.enter_epoch(member.node, message.epoch))
        assert isinstance(message, Reply)
        return put(member, self.hear_reply(member.node, call, message))

    def hear_reply(self, node: Node, call: Call, reply: Reply) -> Node:
        if reply.status == "other epoch":
            return node._replace(epoch=None)
        of_this_term = reply.term == node.term or not self.rules.old_terms_are_not_heard
        if not of_this_term or node.deadline is None:
            return node
        if reply.status in ("lost", "old"):
            return self.end_term(node)
        node = self.hear_granted(node, reply.granted, call.age)
        return self.drop_empty_account(node, call)

    def hear_granted(self, node: Node, granted: int, call_age: int) -> Node:
        """An answered statement: what is granted, and a deadline counted from its sending."""
        assert node.deadline is not None
        if self.rules.deadline_from == "hearing the reply":
            call_age = 0
        deadline = max(node.deadline, self.scenario.deadline_ticks - call_age)
        return self.count_granted(node._replace(deadline=deadline), granted)

    def count_granted(self, node: Node, granted: int) -> Node:
        if self.rules.granted_only_grows:
            granted = max(granted, node.granted)
        return use_permits(node._replace(granted=granted))

    def drop_empty_account(self, node: Node, call: Call) -> Node:
        """Nothing is held or asked, and the server knows: it has closed the account."""
        nothing = node.granted == node.returned and not node.waiting
        if not nothing or (call.asked, call.returned) != (node.granted, node.granted):
            return node
        if not self.rules.terms:
            return node
        term = node.term + self.rules.new_term_after_an_empty_account
        return node._replace(term=term, seq=0, returned=0, granted=0, deadline=None, unused=0)

    def enter_epoch(self, node: Node, epoch: Epoch) -> Node:
        """Go on in an epoch; a new one gets a new term, which claims the permits in use."""
        new = node.epoch != epoch
        node = node._replace(epoch=epoch, life=epoch.life)
        if not new or not self.rules.new_term_in_new_epoch or node.deadline is None:
            return node
        deadline = None
        if node.running:
            keeps = self.rules.claimed_permits_keep_their_deadline
            deadline = node.deadline if keeps else self.scenario.deadline_ticks
        node = node._replace(term=node.term + 1, seq=0, returned=0, granted=node.running)
        return node._replace(deadline=deadline, unused=0)

    def a_notification_arrives(self, member: Member) -> Iterator[Step]:
        node = member.node
        for notification in member.notifications:
            if notification.term != node.term and self.rules.old_terms_are_not_heard:
                continue
            heard = self.hear_notification(node, notification)
            if heard != node:
                yield f"hears {notification}", put(member, heard)

    def hear_notification(self, node: Node, notification: Notification) -> Node:
        if node.deadline is None:  # never, while each account has a term of its own
            node = node._replace(deadline=self.scenario.deadline_ticks)
        return self.count_granted(node, notification.granted)

    def a_late_reply_arrives(self, member: Member) -> Iterator[Step]:
        late, node = member.late, member.node
        if late and late.term == node.term and node.deadline is not None:
            heard = put(member, self.hear_granted(node, late.granted, late.age))
            yield f"hears {late}", heard._replace(late=None)

    def node_steps(self, member: Member) -> Iterator[Step]:
        """All that one node may do next."""
        if member.node.frozen:
            yield from self.wakes(member)
            return
        yield from self.a_request_begins(member)
        yield from self.a_request_gives_up(member)
        yield from self.a_transfer_ends(member)
        yield from self.permits_in_hand_go_back(member)
        yield from self.the_deadline_is_over(member)
        yield from self.a_transfer_is_closed(member)
        if not member.calm and not self.scenario.looks_before_each_call:
            yield from self.calls(member)
        yield from self.a_call_times_out(member)
        yield from self.the_reply_arrives(member)
        yield from self.a_notification_arrives(member)
        yield from self.a_late_reply_arrives(member)

    # The server ---------------------------------------------------------------------------------

    def _handle(
        self, server: Server, accounts: Accounts, sender: int, message: Statement | Begin
    ) -> list[Outcome]:
        """What the server may make of a message; it may choose whom to grant."""
        if isinstance(message, Begin):
            return [self.begin_epoch(server, accounts, message)]
        if not self.is_of_this_epoch(server, message):
            return [Outcome(server, accounts, Reply(message.term, "other epoch"))]
        return self.sync(server, accounts, sender, message)

    def begin_epoch(self, server: Server, accounts: Accounts, begin: Begin) -> Outcome:
        if server.epoch and server.epoch.life == begin.life:
            return Outcome(server, accounts, Begun(server.epoch))
        server, accounts = self.time_is_counted(server, accounts)
        epoch = Epoch(begin.life, server.next_epoch)
        wait = self.scenario.lease_ticks if self.rules.recovery_wait else 0
        server = server._replace(epoch=epoch, wait=wait, next_epoch=server.next_epoch + 1)
        return Outcome(server, accounts, Begun(epoch))

    def is_of_this_epoch(self, server: Server, statement: Statement) -> bool:
        if server.epoch is None:
            return False
        if self.rules.statements_name_their_epoch:
            return statement.epoch == server.epoch
        return statement.epoch.life == server.epoch.life

    def time_is_counted(self, server: Server, accounts: Accounts) -> tuple[Server, Accounts]:
        """The server's clock moves only when it is called, and by a bounded step."""
        passed = max(0, server.unseen)
        server = server._replace(wait=max(0, server.wait - passed), unseen=0)
        if passed:
            accounts = tuple(
                account and account._replace(lease=account.lease - passed) for account in accounts
            )
        return server, accounts

    def sync(
        self, server: Server, accounts: Accounts, sender: int, statement: Statement
    ) -> list[Outcome]:
        """A statement changes its node's account; then `promote` grants what is free."""
        server, accounts = self.time_is_counted(server, accounts)
        account, status = self.updated(accounts[sender], statement, recovering=server.wait > 0)
        accounts = self.without_ended_leases(replaced(accounts, sender, account))
        outcomes = []
        for granted, told in self.promote(server, accounts):
            account = granted[sender]
            if status == "ok" and account:
                reply = Reply(statement.term, "ok", account.granted)
            else:  # an older statement finds an account whose lease is over
                reply = Reply(statement.term, "lost" if status == "ok" else status)
            open_accounts = tuple(None if is_empty(account) else account for account in granted)
            outcomes.append(Outcome(server, open_accounts, reply, told - {sender}))
        return outcomes

    def without_ended_leases(self, accounts: Accounts) -> Accounts:
        if not self.rules.leases_end:
            return accounts
        return tuple(account if account and account.lease > 0 else None for account in accounts)

    def updated(
        self, account: Account | None, statement: Statement, *, recovering: bool
    ) -> tuple[Account | None, Status]:
        """The account after a statement, or None where it is closed; and the reply's status."""
        rules = self.rules
        if account and statement.term < account.term:
            if rules.lower_terms_are_refused:
                return account, "old"
            account = None
        if account is None or statement.term > account.term:
            return self.opened(statement, recovering=recovering)
        if statement.seq < account.seq and rules.older_statements_change_nothing:
            return account, "ok"
        granted = account.granted
        if statement.believed > granted and rules.known_claims_are_checked:
            if not recovering:
                return None, "lost"
            granted = statement.believed
        returned = statement.returned
        if rules.older_statements_change_nothing:
            returned = max(returned, account.returned)
        if rules.returned_is_clamped:
            returned = min(returned, granted)
        return self.account_of(statement, returned, granted), "ok"

    def opened(self, statement: Statement, *, recovering: bool) -> tuple[Account | None, Status]:
        """The account of a term that the server does not know."""
        rules = self.rules
        believed = statement.believed
        if believed > statement.returned:
            if not recovering and rules.unknown_claim == "lost":
                return None, "lost"
            if not recovering and rules.unknown_claim == "opened at 0":
                return self.account_of(statement, 0, 0), "ok"
        return self.account_of(statement, statement.returned, believed), "ok"

    def account_of(self, statement: Statement, returned: int, granted: int) -> Account:
        lease = self.scenario.lease_ticks
        return Account(statement.term, statement.seq, statement.asked, returned, granted, lease)

    def promote(self, server: Server, accounts: Accounts) -> list[tuple[Accounts, frozenset[int]]]:
        """Grant while a permit is free: all outcomes, each with the nodes that were granted one."""
        outcomes: dict[tuple[Accounts, frozenset[int]], None] = {}  # a set that keeps its order
        todo: list[tuple[Accounts, frozenset[int]]] = [(accounts, frozenset())]
        while todo:
            accounts, told = todo.pop()
            held = sum(account.granted - account.returned for account in accounts if account)
            waiting = [
                (index, account)
                for index, account in enumerate(accounts)
                if account and account.asked > account.granted
            ]
            if server.wait or held >= self.scenario.limit or not waiting:
                outcomes[accounts, told] = None
                continue
            for index, account in waiting:
                one_more = account._replace(granted=account.granted + 1)
                todo.append((replaced(accounts, index, one_more), told | {index}))
        return list(outcomes)

    # The world ----------------------------------------------------------------------------------

    def world_steps(self, state: State) -> Iterator[WorldStep]:
        """All that may happen next beside the nodes' own steps and the passing of time."""
        for index, member in enumerate(state.members):
            if member.calm:
                yield from self.a_calm_node_calls(state, index)
                continue
            if member.call or member.stale:
                yield from self.messages_are_handled(state, index)
            if state.server.freezes:
                yield from self.the_node_freezes(state, index)
            if member.node.life != state.server.life:
                yield from self.the_node_looks(state, index)
            if self.scenario.looks_before_each_call:
                yield from self.the_node_looks_and_calls(state, index)
        for fault in self._faults:
            yield from fault(state)

    def _faults_of(self, scenario: Scenario) -> list[Callable[[State], Iterator[WorldStep]]]:
        """Those of this scenario, so that a search asks for no others."""
        faults: list[Callable[[State], Iterator[WorldStep]]] = []
        if scenario.clock_jumps:
            faults.append(self.the_clock_jumps)
        if scenario.restarts:
            faults += [self.the_replica_falls_behind, self.the_server_restarts]
        if scenario.flushes:
            faults.append(self.the_server_is_flushed)
        return faults

    def messages_are_handled(self, state: State, index: int) -> Iterator[WorldStep]:
        member = state.members[index]
        call = member.call
        if call and isinstance(call.message, Statement | Begin):
            for outcome in self.outcomes(state, index, call.message):
                answered = member._replace(call=call._replace(message=outcome.reply))
                answers = ("the server answers node", index, outcome)
                yield from self.published(answers, state, index, answered, outcome)
        for message in member.stale:
            for outcome in self.outcomes(state, index, message):
                rest = tuple(other for other in member.stale if other != message)
                handles = ("the server handles, late, node", index, message, outcome)
                handled = member._replace(stale=rest)
                yield from self.published(handles, state, index, handled, outcome)

    def a_calm_node_calls(self, state: State, index: int) -> Iterator[WorldStep]:
        """Call, answer and notifications in one step."""
        member = state.members[index]
        node = member.node
        if not self.has_something_to_say(node):
            return
        if needs_the_epoch(node):
            call = Call(Begin(node.life))
        else:
            node, call = self.say(node)
        assert isinstance(call.message, Statement | Begin)
        for outcome in self.outcomes(state, index, call.message):
            answered = Member(node, call=call._replace(message=outcome.reply), calm=True)
            answered = self.hear(answered)._replace(replica=member.replica)
            label = ("node", index, "calls and hears", call.message, outcome)
            yield from self.published(label, state, index, answered, outcome)

    def outcomes(self, state: State, index: int, message: Statement | Begin) -> list[Outcome]:
        accounts = tuple(member.account for member in state.members)
        return self.handle(state.server, accounts, index, message)

    def published(
        self,
        label: tuple[object, ...],
        state: State,
        index: int,
        member: Member,
        outcome: Outcome,
    ) -> Iterator[WorldStep]:
        """The states after an outcome: its notifications are on their way, or lost."""
        members = tuple(
            other if other.account == account else other._replace(account=account)
            for other, account in zip(
                replaced(state.members, index, member), outcome.accounts, strict=True
            )
        )
        after = [State(outcome.server, members)]
        for told in outcome.told:
            account = outcome.accounts[told]
            assert account is not None
            notification = Notification(account.term, account.granted)
            after = [
                State(
                    before.server,
                    replaced(
                        before.members,
                        told,
                        before.members[told]._replace(notifications=notifications),
                    ),
                )
                for before in after
                for notifications in remembered(
                    before.members[told].notifications,
                    notification,
                    0 if before.members[told].calm else self.scenario.notifications,
                )
            ]
        for state in after:
            yield label, state

    def the_node_freezes(self, state: State, index: int) -> Iterator[WorldStep]:
        member, server = state.members[index], state.server
        if not member.node.frozen:
            frozen = put(member, member.node._replace(frozen=True))
            server = server._replace(freezes=server.freezes - 1)
            members = replaced(state.members, index, frozen)
            yield ("node", index, "freezes"), State(server, members)

    def the_node_looks(self, state: State, index: int) -> Iterator[WorldStep]:
        """At a server whose life has changed under a link that lives on."""
        member, server = state.members[index], state.server
        if not member.call and not member.node.frozen:
            looked = put(member, member.node._replace(life=server.life))
            members = replaced(state.members, index, looked)
            yield ("node", index, "looks at the server's life"), State(server, members)

    def the_node_looks_and_calls(self, state: State, index: int) -> Iterator[WorldStep]:
        member, server = state.members[index], state.server
        if not member.node.frozen:
            looked = put(member, member.node._replace(life=server.life))
            for label, called in self.calls(looked):
                members = replaced(state.members, index, called)
                yield ("node", index, "looks, then", label), State(server, members)

    def the_clock_jumps(self, state: State) -> Iterator[WorldStep]:
        server = state.server
        if server.jumps:
            server = server._replace(jumps=server.jumps - 1)
            for unseen in (self.scenario.clock_step_ticks, BACKWARDS):
                direction = "back" if unseen == BACKWARDS else "forwards"
                after = State(server._replace(unseen=unseen), state.members)
                yield ("the server's clock jumps", direction), after

    def the_replica_falls_behind(self, state: State) -> Iterator[WorldStep]:
        """From here on a replica gets no more of the server's data."""
        server = state.server
        follows = {"lagging replica", "failover and back"} & set(self.scenario.restarts)
        if server.restarts and follows and server.replica is None:
            replica = Replica(server.epoch, server.wait, server.unseen)
            members = tuple(member._replace(replica=member.account) for member in state.members)
            after = State(server._replace(replica=replica), members)
            yield ("a replica falls behind",), after

    def the_server_restarts(self, state: State) -> Iterator[WorldStep]:
        server = state.server
        for how in self.scenario.restarts if server.restarts else ():
            if how in ("empty", "with data") or server.replica:
                yield ("the server restarts:", how), self.restarted(state, how)

    def restarted(self, state: State, how: Restart) -> State:
        server, members = state.server, state.members
        server = server._replace(life=server.life + 1, restarts=server.restarts - 1)
        if how == "empty":
            server = server._replace(epoch=None, wait=0, unseen=0, replica=None)
            members = tuple(member._replace(account=None, replica=None) for member in members)
        elif how != "with data":
            assert server.replica is not None
            epoch, wait, unseen = server.replica
            server = server._replace(epoch=epoch, wait=wait, unseen=unseen, replica=None)
            members = tuple(
                member._replace(account=member.replica, replica=None) for member in members
            )
        if how != "failover and back":  # there the links to the old master live on
            members = tuple(
                member._replace(node=member.node._replace(life=server.life), call=None, stale=())
                for member in members
            )
        return State(server, members)

    def the_server_is_flushed(self, state: State) -> Iterator[WorldStep]:
        server = state.server
        if server.flushes:
            server = server._replace(epoch=None, wait=0, unseen=0, flushes=server.flushes - 1)
            members = tuple(member._replace(account=None) for member in state.members)
            yield ("FLUSHALL",), State(server, members)

    # Time ---------------------------------------------------------------------------------------

    def server_after_tick(self, server: Server) -> Server:
        replica = server.replica
        if replica:
            replica = replica._replace(unseen=self.unseen_after_tick(replica.unseen))
        return server._replace(unseen=self.unseen_after_tick(server.unseen), replica=replica)

    def unseen_after_tick(self, unseen: int) -> int:
        if unseen == BACKWARDS:
            return BACKWARDS
        return min(unseen + 1, self.scenario.clock_step_ticks)

    def member_after_tick(self, member: Member) -> Member:
        longest = self.scenario.deadline_ticks  # beyond it an age makes no difference
        call, late = member.call, member.late
        if call:
            call = call._replace(age=min(longest, call.age + 1))
        if late:
            late = late._replace(age=min(longest, late.age + 1))
        return member._replace(node=self.node_after_tick(member.node), call=call, late=late)

    def node_after_tick(self, node: Node) -> Node:
        """Transfers that were told to end have ended; a deadline that is over ends the rest."""
        node = node._replace(closing=0)
        if node.deadline is not None:
            node = node._replace(deadline=max(-1, node.deadline - 1))
        return self.end_term(node) if is_over(node) and not node.frozen else node

    # What must never be -------------------------------------------------------------------------

    def transfers_of(self, member: Member) -> int:
        """How many transfers a node has open; those of a frozen node stand still."""
        node = member.node
        return 0 if node.frozen or is_over(node) else node.running + node.closing

    def wrong_with(self, member: Member) -> str | None:
        """A mistake in what concerns one node; None if there is none."""
        node, account = member.node, member.account
        if node.granted - node.returned < node.running:
            return "a transfer without a permit"
        if account and account.granted < account.returned:
            return "more returned than granted"
        message = member.call and member.call.message
        if isinstance(message, Reply) and message.status == "old" and message.term == node.term:
            return "a present term is called old"
        return None


def remembered(known: tuple[Value, ...], message: Value, most: int) -> Iterator[tuple[Value, ...]]:
    """What may still arrive after one more message: it is added, takes another's place, or is lost.

    Where there is room it is only added, since nothing makes it arrive.
    """
    if message not in known and len(known) < most:
        yield (*known, message)
        return
    yield known
    if message not in known:
        for lost in range(len(known)):
            yield (*known[:lost], *known[lost + 1 :], message)


def put(member: Member, node: Node) -> Member:
    return member._replace(node=node)


def use_permits(node: Node) -> Node:
    """Requests that wait get the permits that are in hand."""
    started = min(node.waiting, node.in_hand)
    if started <= 0:
        return node
    return node._replace(running=node.running + started, waiting=node.waiting - started)


def is_over(node: Node) -> bool:
    return node.deadline is not None and node.deadline <= 0


def needs_the_epoch(node: Node) -> bool:
    return node.epoch is None or node.epoch.life != node.life


def is_empty(account: Account | None) -> bool:
    """Nothing is held and nothing is asked."""
    return account is None or (
        account.granted == account.returned and account.asked <= account.granted
    )


def replaced(values: tuple[Value, ...], index: int, value: Value) -> tuple[Value, ...]:
    return (*values[:index], value, *values[index + 1 :])
