"""One form for all members that behave alike, so that a search over endless counters has an end.

Of terms and statements only the order matters, of counts only the differences within a term. What
can no longer make a difference (a notification of an old term) is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from tests.protocol.rules import Rules
from tests.protocol.scenario import Scenario
from tests.protocol.state import (
    Account,
    Begin,
    Begun,
    Call,
    LateReply,
    Member,
    Node,
    Notification,
    Reply,
    Statement,
)

Spoken: TypeAlias = Node | Account | Statement  # what has a term, a seq and counts

UNHEARD = Reply(-1, "ok")  # a reply to a term that is over
MOST_TERMS = 6  # where old terms are heard, so that they cannot be numbered anew


class Numbering:
    """Brings members into a normal form."""

    def __init__(self, rules: Rules, scenario: Scenario) -> None:
        self.rules = rules
        self.scenario = scenario

    def normal(self, member: Member) -> Member | None:
        """The member in its normal form; None if its counts are beyond the scenario's cap."""
        if self.rules.old_terms_are_not_heard:
            member = renumbered(
                self.without_the_unheard(member), not self.rules.new_term_after_an_empty_account
            )
        member = member._replace(
            stale=tuple(sorted(set(member.stale), key=repr)),
            notifications=tuple(sorted(set(member.notifications))),
        )
        return None if self.is_beyond_the_cap(member) else member

    def without_the_unheard(self, member: Member) -> Member:
        node, call, late = member.node, member.call, member.late
        if call:
            call = without_the_unread(call, node)
        if late and not self.late_reply_may_matter(late, node):
            late = None
        return member._replace(
            call=call,
            late=late,
            notifications=tuple(
                notification
                for notification in member.notifications
                if self.may_matter(notification, node)
            ),
        )

    def late_reply_may_matter(self, late: LateReply, node: Node) -> bool:
        if late.term != node.term or node.deadline is None:
            return False
        return late.granted > node.granted or late.age < self.scenario.deadline_ticks

    def may_matter(self, notification: Notification, node: Node) -> bool:
        if notification.term != node.term:
            return False
        if not self.rules.granted_only_grows or not self.rules.new_term_after_an_empty_account:
            return True
        return notification.granted > node.granted

    def is_beyond_the_cap(self, member: Member) -> bool:
        cap = self.scenario.count_cap
        node, account = member.node, member.account
        if node.granted + node.waiting > cap or node.term > MOST_TERMS:
            return True
        if account and account.granted > cap:
            return True
        return any(
            isinstance(message, Statement) and message.asked > cap for message in member.stale
        )


def without_the_unread(call: Call, node: Node) -> Call:
    """The call with nothing but what the node will read of it."""
    message = call.message
    if isinstance(message, Begin | Begun):
        return Call(message)
    if isinstance(message, Reply):
        if message.status == "other epoch":
            return Call(Reply(UNHEARD.term, "other epoch"))
        if message.term != node.term:
            return Call(UNHEARD)
        if message.status != "ok":
            return Call(Reply(message.term, message.status))
    elif message.term != node.term:
        return Call(message)
    return call


def spoken_in(member: Member) -> Iterator[Spoken]:
    """All that has a term, a seq and counts."""
    yield member.node
    if member.account:
        yield member.account
    if member.replica:
        yield member.replica
    if member.call and isinstance(member.call.message, Statement):
        yield member.call.message
    for message in member.stale:
        if isinstance(message, Statement):
            yield message


def renumbered(member: Member, counts_from_zero: bool) -> Member:
    """Terms and statements are numbered in their order, and the least count of a term is 0."""
    seqs: dict[int, set[int]] = {}
    least: dict[int, int] = {}
    for spoken in spoken_in(member):
        seqs.setdefault(spoken.term, set()).add(spoken.seq)
        least[spoken.term] = min(least.get(spoken.term, spoken.returned), spoken.returned)
    terms = {term: number for number, term in enumerate(sorted(seqs))}
    ranks = {
        term: {seq: rank for rank, seq in enumerate(sorted(known))} for term, known in seqs.items()
    }
    if counts_from_zero:
        least = dict.fromkeys(least, 0)

    node = member.node
    base = least[node.term]

    def of_statement(message: Statement) -> Statement:
        term, least_count = message.term, least[message.term]
        return Statement(
            message.epoch,
            terms[term],
            ranks[term][message.seq],
            message.asked - least_count,
            message.returned - least_count,
            message.believed - least_count,
        )

    def of_account(account: Account | None) -> Account | None:
        if account is None:
            return None
        term, least_count = account.term, least[account.term]
        return Account(
            terms[term],
            ranks[term][account.seq],
            account.asked - least_count,
            account.returned - least_count,
            account.granted - least_count,
            account.lease,
        )

    def of_call(call: Call) -> Call:
        message = call.message
        if isinstance(message, Begin | Begun) or message.term == UNHEARD.term:
            return call
        if isinstance(message, Statement):
            of_this_term = message.term == node.term
            message = of_statement(message)
        else:
            of_this_term = message.status == "ok"
            granted = message.granted - base if of_this_term else 0
            message = Reply(terms[message.term], message.status, granted)
        if not of_this_term:
            return call._replace(message=message)
        return Call(message, call.asked - base, call.returned - base, call.age)

    return Member(
        node._replace(
            term=terms[node.term],
            seq=ranks[node.term][node.seq],
            returned=node.returned - base,
            granted=node.granted - base,
        ),
        of_account(member.account),
        of_account(member.replica),
        member.call and of_call(member.call),
        tuple(
            of_statement(message) if isinstance(message, Statement) else message
            for message in member.stale
        ),
        tuple(
            Notification(terms[notification.term], notification.granted - base)
            for notification in member.notifications
        ),
        member.late
        and member.late._replace(term=terms[member.late.term], granted=member.late.granted - base),
        member.calm,
    )
