"""From a state on nothing fails any more: all must come free, and each waiter must be granted."""

from __future__ import annotations

from tests.protocol.protocol import (
    Accounts,
    Protocol,
    is_over,
    needs_the_epoch,
    put,
    replaced,
    use_permits,
)
from tests.protocol.state import Begin, Begun, Call, Node, Reply, State, Statement

ROUNDS_A_TICK = 3  # in which each node says all that it has to say


class Drains:
    """Runs a state to its end without faults, and looks whether the end comes."""

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        self._most_ticks = 5 * protocol.scenario.lease_ticks

    def violation(self, state: State) -> str | None:
        """A leak or a lost wake-up; None if there is neither."""
        if not self.everything_comes_free(state):
            return "a leak"
        for index, member in enumerate(state.members):
            waits = member.node.waiting and not member.node.frozen
            if waits and not self.is_granted(state, index):
                return "a lost wake-up"
        return None

    def everything_comes_free(self, state: State) -> bool:
        """All requests end; then nobody holds anything on the server's books."""
        state = self._healed(state)
        for _ in range(self._most_ticks):
            state = self._after_lease_ends(self._all_spoken(state, waiter=None))
            accounts = accounts_of(state)
            if all(account is None or account.granted == account.returned for account in accounts):
                return True
            state = self._after_tick(state)
        return False

    def is_granted(self, state: State, waiter: int) -> bool:
        """All requests end but those that wait on one node; then one of these is granted."""
        state = self._healed(state)
        for _ in range(self._most_ticks):
            state = self._all_spoken(state, waiter)
            if state.members[waiter].node.running:
                return True
            state = self._after_tick(state)
        return False

    def _healed(self, state: State) -> State:
        """All links are new, all nodes awake; what was on its way has been handled, or is gone."""
        for index in range(len(state.members)):
            for message in state.members[index].stale:
                state, _ = self._handled(state, index, message)
        life = state.server.life
        return State(
            state.server,
            tuple(
                member._replace(
                    node=member.node._replace(life=life, frozen=False),
                    call=None,
                    stale=(),
                    notifications=(),
                    late=None,
                )
                for member in state.members
            ),
        )

    def _all_spoken(self, state: State, waiter: int | None) -> State:
        for _ in range(ROUNDS_A_TICK):
            for index in range(len(state.members)):
                node = self._at_rest(state.members[index].node, waits=index == waiter)
                state = with_node(state, index, node)
                if node.running:
                    return state
                if self.protocol.has_something_to_say(node):
                    state = self._exchanged(state, index)
        return state

    def _at_rest(self, node: Node, *, waits: bool) -> Node:
        """The node with its transfers ended and, unless it waits, without requests."""
        if is_over(node):
            node = self.protocol.end_term(node)
        node = node._replace(closing=0)
        if not waits:
            return node._replace(running=0, waiting=0, returned=node.granted)
        node = use_permits(node)
        return node if node.running else self.protocol.give_back_unused(node)

    def _exchanged(self, state: State, index: int) -> State:
        """One call of a node's and its answer, with a call before it where the epoch is unknown."""
        node = state.members[index].node
        if needs_the_epoch(node):
            state = self._answered(state, index, Call(Begin(node.life)))
            node = state.members[index].node
            if not self.protocol.has_something_to_say(node):
                return state
        node, call = self.protocol.say(node)
        return self._answered(with_node(state, index, node), index, call)

    def _answered(self, state: State, index: int, call: Call) -> State:
        assert isinstance(call.message, Statement | Begin)
        state, reply = self._handled(state, index, call.message)
        answered = state.members[index]._replace(call=call._replace(message=reply))
        return State(state.server, replaced(state.members, index, self.protocol.hear(answered)))

    def _handled(
        self, state: State, index: int, message: Statement | Begin
    ) -> tuple[State, Reply | Begun]:
        """A message is handled, and the nodes that were granted something hear of it at once."""
        outcome = self.protocol.handle(state.server, accounts_of(state), index, message)[0]
        state = with_accounts(State(outcome.server, state.members), outcome.accounts)
        for told in outcome.told:
            account, node = outcome.accounts[told], state.members[told].node
            if account and account.term == node.term and node.deadline is not None:
                state = with_node(state, told, self.protocol.count_granted(node, account.granted))
        return state, outcome.reply

    def _after_tick(self, state: State) -> State:
        members = tuple(self.protocol.member_after_tick(member) for member in state.members)
        return State(self.protocol.server_after_tick(state.server), members)

    def _after_lease_ends(self, state: State) -> State:
        """Somebody else's statement is handled, so that the server's clock moves."""
        server, accounts = self.protocol.time_is_counted(state.server, accounts_of(state))
        accounts = self.protocol.without_ended_leases(accounts)
        return with_accounts(State(server, state.members), accounts)


def accounts_of(state: State) -> Accounts:
    return tuple(member.account for member in state.members)


def with_accounts(state: State, accounts: Accounts) -> State:
    members = tuple(
        member if member.account == account else member._replace(account=account)
        for member, account in zip(state.members, accounts, strict=True)
    )
    return State(state.server, members)


def with_node(state: State, index: int, node: Node) -> State:
    return State(state.server, replaced(state.members, index, put(state.members[index], node)))
