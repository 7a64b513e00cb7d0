"""The tests can convict: each way to break accounts, sessions and permits is caught by one of them.

A mutant is a module of `core` with some text replaced; it lives only as long as its test. Each has
a test that convicts it. Some of those that break the protocol are convicted by the state machine of
`test_delivery` as well; the others need a chain of events that is too long to be met by chance.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module

import pytest
from hypothesis import Phase

from semaphore_middleware.model.limits import Limit
from tests.core import (
    test_account,
    test_admin,
    test_cancellation,
    test_delivery,
    test_forks,
    test_losses,
    test_robotstxt,
    test_semaphore,
    test_session,
    test_several_scopes,
)
from tests.core.lone_node import FULL, SPARE
from tests.redis import test_connection, test_epoch, test_rights
from tests.support.mutants import Mutant, Test, assert_convicted, plant_in_python

pytestmark = pytest.mark.slow

AREA = "Python core"

guarded = test_rights.guarded  # a fixture

MUTANTS: dict[str, tuple[Mutant, Test]] = {
    # Permits that no request has begun under
    "unused permits are said to be used": (
        ("account", "            self._unused += 1\n", "            pass\n"),
        test_account.test_a_permit_that_no_request_has_begun_under_is_returned_as_unused,
    ),
    "unused permits count as starts": (
        (
            "account",
            "            self._started = max(0, self._started - 1)\n",
            "            pass\n",
        ),
        test_account.test_a_permit_that_no_request_has_begun_under_is_returned_as_unused,
    ),
    "permits of earlier grants are unused": (
        ("account", "        if permit.grant_number == self._granted:\n", "        if True:\n"),
        test_account.test_a_permit_is_unused_only_while_it_is_of_the_latest_grant,
    ),
    "unused permits are said to be of a later grant": (
        ("account", "        self._unused = self._heard_unused  # others", "        # others"),
        test_account.test_what_is_returned_unused_is_not_said_of_a_later_grant,
    ),
    "what is known to be unused is forgotten": (
        (
            "account",
            "        self._heard_unused = max(self._heard_unused, statement.unused)\n",
            "",
        ),
        test_account.test_what_is_known_to_be_unused_is_said_again_with_a_later_grant,
    ),
    "what was known to be unused in the old term counts in the new one": (
        (
            "account",
            "        self._heard_unused = 0\n        self._in_hand",
            "        self._in_hand",
        ),
        test_account.test_in_a_new_term_nothing_is_unused_yet,
    ),
    "unused permits are handed on": (
        (
            "account",
            "        permit.turn_end = 0.0\n        if not self._begin_later",
            "        if not self._begin_later",
        ),
        test_account.test_what_is_returned_unused_serves_no_request_of_the_same_node,
    ),
    # Requests that begin later
    "a start counts before its request begins": (
        (
            "account",
            "        if not permit.begins_later:\n            self._note_start()",
            "        if True:\n            self._note_start()",
        ),
        test_account.test_a_start_counts_when_its_request_begins,
    ),
    "nobody hears that a request begins": (
        ("account", "if self._begin_later and self.starts_count:", "if False:"),
        test_account.test_a_start_counts_when_its_request_begins,
    ),
    "a start that never began counts": (
        (
            "account",
            "if permit in self._held:\n            self._note_start()",
            "self._note_start()",
        ),
        test_account.test_a_start_that_never_began_is_not_counted,
    ),
    "a start that counts is taken back": (
        ("account", "if not self._begin_later:  # else", "if not permit.begins_later:  # else"),
        partial(
            test_account.test_where_requests_begin_later_no_start_that_counts_is_taken_back,
            begins_later=False,
        ),
    ),
    "no start is pending": (
        ("account", "sum(one.begins_later for one in self._held) if", "0 if"),
        test_account.test_a_start_counts_when_its_request_begins,
    ),
    "priorities do not count": (
        ("account", "(-permit.priority, next", "(0.0, next"),
        test_account.test_the_request_with_the_highest_priority_is_served_first,
    ),
    "who gave up stays in line": (
        ("account", "> 2 * len(self._waiting) + LINE_SLACK", "> 10**9"),
        test_account.test_the_request_with_the_highest_priority_is_served_first,
    ),
    "an epoch that was joined by a call that failed is not begun": (
        ("session", "if self._recovery.epoch != self._epoch:", "if False:"),
        test_session.test_an_epoch_that_a_call_has_joined_before_it_failed_is_begun,
    ),
    "who gave up is still to be announced": (
        (
            "account",
            "self._newcomers = [one for one in self._newcomers if one[1] in self._waiting]",
            "pass",
        ),
        test_account.test_who_gave_up_is_forgotten_while_nobody_answers,
    ),
    "the other permits stay when one does not come": (
        (
            "semaphore",
            "for permit in permits:\n                permit.return_unused()\n            raise",
            "raise",
        ),
        partial(
            test_several_scopes.test_nothing_is_left_when_a_later_permit_does_not_come,
            way="timeout",
        ),
    ),
    "a permit that waits for others is not watched": (
        ("semaphore", "                if not is_last:\n", "                if False:\n"),
        test_several_scopes.test_one_that_is_lost_while_it_waits_is_asked_for_again,
    ),
    # Starts that count
    "a delay's starts do not count": (
        ("account", "bool(limit.delay or limit.rate", "bool(limit.rate"),
        partial(
            test_account.test_starts_count_under_a_delay_a_rate_or_an_adaptive_limit,
            limit=Limit(9, delay=1.0),
        ),
    ),
    # Counts and terms
    "a surplus grant is kept": (
        ("account", "        self._returned += new\n", ""),
        test_account.test_of_a_full_site_a_surplus_grant_is_returned,
    ),
    "a lost account goes on": (
        ("account", "        self.lose_all(above=reply.term)\n", ""),
        partial(test_account.test_what_the_server_does_not_know_is_lost, "lost"),
    ),
    "the deadline passes unnoticed": (
        ("account", "        if now >= self.deadline:\n", "        if False:\n"),
        test_account.test_at_the_deadline_all_is_lost_what_is_in_hand_too,
    ),
    "the deadline is a grant's": (
        (
            "account",
            "            self._take(granted, now)\n\n    def on_backoff",
            (
                "            self.deadline = now + self._owner.grace\n"
                "            self._take(granted, now)\n\n    def on_backoff"
            ),
        ),
        test_account.test_a_grant_does_not_lengthen_the_lease,
    ),
    "the deadline counts from the last sent statement": (
        ("account", "        if self.deadline == math.inf:\n", "        if True:\n"),
        test_account.test_a_deadline_counts_from_the_latest_answered_statement_not_from_the_last_sent,
    ),
    "a term is not renewed at the deadline": (
        (
            "account",
            "        self._begin_term(above)\n",
            "        term = self._term; self._begin_term(above); self._term = max(term, above)\n",
        ),
        test_account.test_after_the_deadline_the_term_is_new_even_if_nothing_was_held,
    ),
    "a term is not renewed after it was idle": (
        (
            "account",
            "            self._begin_term()  # the server",
            "            term = self._term; self._begin_term(); self._term = term  # the server",
        ),
        test_account.test_after_it_was_idle_the_term_is_new,
    ),
    "a term is not renewed in a new epoch": (
        (
            "account",
            "        deadline = self.deadline\n        self._begin_term()\n",
            (
                "        deadline = self.deadline\n        term = self._term\n"
                "        self._begin_term()\n        self._term = term\n"
            ),
        ),
        test_account.test_in_a_new_epoch_the_term_is_new_and_what_is_held_is_claimed,
    ),
    "what is held is not claimed in a new epoch": (
        ("account", "            self._granted = len(self._held)\n", ""),
        test_account.test_in_a_new_epoch_the_term_is_new_and_what_is_held_is_claimed,
    ),
    "a new term is spoken before the old transfers have ended": (
        ("account", "        if self._ending or self.is_empty:\n", "        if self.is_empty:\n"),
        test_account.test_the_new_term_is_not_spoken_before_the_last_transfer_of_the_old_one_has_ended,
    ),
    "replies of an old term count": (
        ("account", "        if statement.term != self._term:\n            return\n", ""),
        test_account.test_after_the_deadline_the_term_is_new_even_if_nothing_was_held,
    ),
    "grants of an old term count": (
        (
            "account",
            "        if term == self._term and self.deadline < math.inf:\n",
            "        if self.deadline < math.inf:\n",
        ),
        test_account.test_after_it_was_idle_the_term_is_new,
    ),
    "a grant counts each time it is heard": (
        (
            "account",
            "        new = granted - self._granted\n",
            "        new = granted\n",
        ),
        partial(test_account.test_a_grant_counts_once_however_often_it_is_said, 2),
    ),
    "a grant may be taken back": (
        ("account", "        if new <= 0:\n            return  # heard already\n", ""),
        partial(test_account.test_a_grant_counts_once_however_often_it_is_said, 1),
    ),
    "what is in hand outlives the term": (
        (
            "account",
            "        self._in_hand = self._always_in_hand = 0\n        self._feedback",
            "        self._feedback",
        ),
        test_account.test_at_the_deadline_all_is_lost_what_is_in_hand_too,
    ),
    "what was handed on is returned as well": (
        (
            "account",
            "                self._wants_fewer()\n                return\n",
            "                self._wants_fewer(); self._returned += 1\n                return\n",
        ),
        partial(
            test_account.test_within_a_turn_a_permit_is_handed_to_the_next_request_without_a_call,
            SPARE,
        ),
    ),
    "what is kept in hand is returned as well": (
        (
            "account",
            "                self._keep(1)\n",
            "                self._keep(1); self._returned += 1\n",
        ),
        test_account.test_with_permits_to_spare_one_is_kept_in_hand_for_the_next_request,
    ),
    "what is returned stays in hand": (
        (
            "account",
            "            self._in_hand = self._always_in_hand = 0\n            self._owner",
            "            self._owner",
        ),
        partial(
            test_account.test_what_is_in_hand_is_returned_when_the_server_says_that_the_site_is_full,
            {"available": FULL},
        ),
    ),
    "what is in hand is never returned": (
        ("account", "        self._always_in_hand = self._in_hand\n", ""),
        test_account.test_what_no_request_has_used_in_a_whole_turn_is_returned_at_its_end,
    ),
    "a permit is never returned": (
        ("account", "        self._returned += 1\n        outcome", "        outcome"),
        partial(test_account.test_of_a_full_site_what_nobody_here_uses_is_returned_at_once, FULL),
    ),
    "asked may be below granted": (
        (
            "account",
            "        self._asked = self._granted + len(self._waiting)\n",
            "        self._asked = min(self._started, self._granted) + len(self._waiting)\n",
        ),
        test_account.test_asked_is_never_below_granted,
    ),
    "who gives up goes on waiting": (
        ("account", "            self._waiting.pop(permit, None)\n", ""),
        test_account.test_giving_up_lowers_what_is_asked_for,
    ),
    "who comes does not speak": (
        (
            "account",
            "            self._owner.speak(self, self.is_at_limit)\n",
            "            pass\n",
        ),
        test_session.test_who_asks_for_little_asks_at_once,
    ),
    "no one is told to come again": (
        ("account", "            self._owner.retry(self, reply.retry_in)\n", "            pass\n"),
        test_account.test_it_speaks_again_when_the_server_says_that_only_time_is_in_the_way,
    ),
    "a node that is served does not ask for those that came later": (
        ("account", " or (self._waiting and self._asked <= granted):", ":"),
        test_account.test_a_node_that_gets_all_it_has_asked_for_asks_at_once_for_those_that_came_later,
    ),
    "a node in the queue never asks for more": (
        ("account", "(permit)\n            self._owner.speak_at_turns_end(self)\n", "(permit)\n"),
        test_account.test_a_node_in_the_queue_says_at_the_turn_s_end_how_many_more_wait,
    ),
    "all statements have one number": (
        ("account", "        self._seq += 1\n", "        self._seq = 1\n"),
        test_account.test_a_statement_counts_from_the_opening_of_the_account,
    ),
    # Time
    "a deadline counts from after the call, in the account": (
        ("account", "max(self.deadline, sent + self._owner.grace)", "now + self._owner.grace"),
        test_account.test_a_deadline_counts_from_the_latest_answered_statement_not_from_the_last_sent,
    ),
    "a deadline counts from after the call, in the session": (
        ("session", "account.on_reply(reply, sent)", "account.on_reply(reply, self.now())"),
        test_session.test_a_permit_is_lost_when_its_deadline_comes_counted_from_before_the_call,
    ),
    "a late reply shortens the lease": (
        ("account", "max(self.deadline, sent + self._owner.grace)", "sent + self._owner.grace"),
        test_account.test_a_late_reply_does_not_shorten_the_lease,
    ),
    "the deadline is at 0.95 of the lease": (
        ("session", "self.grace = GRACE * lease", "self.grace = 0.95 * lease"),
        test_session.test_a_permit_is_lost_when_its_deadline_comes_counted_from_before_the_call,
    ),
    "a call may take for ever": (
        (
            "redis.connection",
            "timeout(self._call_timeout):\n                await self._connection.send",
            "timeout(None):\n                await self._connection.send",
        ),
        partial(
            test_connection.test_a_server_that_hangs_is_given_up_when_the_time_of_a_call_is_over,
            "call",
        ),
    ),
    "connecting may take for ever": (
        (
            "redis.connection",
            "timeout(self._call_timeout):\n                await self._connection.connect",
            "timeout(None):\n                await self._connection.connect",
        ),
        partial(
            test_connection.test_a_server_that_hangs_is_given_up_when_the_time_of_a_call_is_over,
            "connect",
        ),
    ),
    "what was returned is forgotten once it was said": (
        (
            "account",
            "        if feedback:\n            self._unanswered.append",
            "        self._returned = 0\n        if feedback:\n            self._unanswered.append",
        ),
        test_account.test_what_was_returned_is_said_until_the_end_of_the_term,
    ),
    "there is no deadline before the first reply": (
        (
            "account",
            "            self.deadline = now + self._owner.grace\n",
            "            pass\n",
        ),
        test_account.test_the_first_deadline_counts_from_before_the_first_statement,
    ),
    "carried holds get a new deadline": (
        (
            "account",
            "            self.deadline = deadline\n",
            "            self.deadline = self._owner.now() + self._owner.grace\n",
        ),
        test_account.test_carried_holds_keep_the_old_deadline_until_the_new_term_is_answered,
    ),
    "carried holds have no deadline": (
        ("account", "            self.deadline = deadline\n", ""),
        test_account.test_carried_holds_keep_the_old_deadline_until_the_new_term_is_answered,
    ),
    "replies come before deadlines": (
        ("account", "        self.end_if_over(now)  # before any message", "        #"),
        partial(test_account.test_what_is_over_ends_before_any_message_is_heard, "reply"),
    ),
    "grants come before deadlines": (
        (
            "account",
            "        self.end_if_over(now)\n        if term ==",
            "        if term ==",
        ),
        partial(test_account.test_what_is_over_ends_before_any_message_is_heard, "grant"),
    ),
    "statements come before deadlines": (
        (
            "account",
            "        self.end_if_over(now)\n        if self._ending",
            "        if self._ending",
        ),
        test_account.test_what_is_over_ends_before_anything_is_said,
    ),
    "leases are renewed every two": (
        ("session", "call_later(RENEWAL * self._lease", "call_later(2 * self._lease"),
        test_session.test_what_is_held_is_renewed_every_third_of_a_lease,
    ),
    "leases are renewed once": (
        (
            "session",
            "            self._say_all()\n            self._renewal =",
            "            self._say_all()\n            renewal =",
        ),
        test_session.test_what_is_held_is_renewed_every_third_of_a_lease,
    ),
    "a deadline has no timer but the first": (
        ("session", "        if next_deadline < math.inf:\n", "        if False:\n"),
        test_session.test_each_account_ends_at_its_own_deadline,
    ),
    "the session does not look at the server's life": (
        ("session", "            self._is_look_due = True\n", ""),
        test_session.test_a_server_in_another_life_is_noticed_at_the_next_renewal,
    ),
    "another epoch is not heard of": (
        (
            "session",
            "                await self._begin_epoch()\n",
            "                self._say_all()\n",
        ),
        test_session.test_a_reply_from_another_epoch_has_everything_said_again_under_new_terms,
    ),
    "a new epoch leaves the subscription where it is": (
        ("session", "            await self._subscription.close()\n", "            pass\n"),
        test_session.test_a_server_in_another_life_is_noticed_at_the_next_renewal,
    ),
    "a failover that a proxy hides goes unnoticed until the next renewal": (
        ("redis.scripts", "if before_loading is not None:", "if False:"),
        test_epoch.test_a_server_that_lacks_the_scripts_is_looked_at_before_it_gets_them,
    ),
    "to look needs the right to write": (
        ("admin", "read_only=True", "read_only=False"),
        test_rights.needs_no_right_to_write,
    ),
    "trust tells nobody": (
        (
            "admin",
            "        Begun.read(reply, connection.server_name)\n",
            "        return\n",
        ),
        partial(
            test_admin.test_commands_of_each_action,
            action=lambda admin: admin.trust(),
            sent=["EVALSHA", "PUBLISH"],
        ),
    ),
    "who waits does not look whether an operator has ended that": (
        (
            "session",
            "        self._is_look_due |= self._recovery.is_waiting",
            "        pass",
        ),
        partial(
            test_session.test_a_change_in_the_recovery_wait_has_the_server_looked_at,
            is_waiting=True,
        ),
    ),
    "who comes from another life need not wait": (
        (
            "redis.recovery",
            "wait_if_empty = self._wait if self.epoch else 0.0",
            "wait_if_empty = 0.0",
        ),
        test_epoch.test_a_node_from_another_life_never_shortens_the_wait,
    ),
    "trust ends no wait": (
        ("admin", "wait_if_empty=0, is_trusted=True", "wait_if_empty=0"),
        test_epoch.test_trust_ends_the_wait_at_once_and_for_all,
    ),
    "the log says that a wait is over where none was": (
        ("redis.recovery", "elif self._over_at is not None:", "else:"),
        test_losses.test_the_log_counts_nothing_down_where_there_is_no_wait,
    ),
    # Openings and processes
    "an opening has the name of the one before": (
        ("semaphore", "        if not self._is_name_new:\n", "        if False:\n"),
        test_semaphore.test_each_opening_has_a_name_of_its_own,
    ),
    "forked workers share a name": (
        ("semaphore", "            self._is_name_new = False\n\n", "\n"),
        test_forks.test_one_made_at_import_and_opened_in_forked_workers_holds_its_limit,
    ),
    "a child uses what its parent has opened": (
        (
            "semaphore",
            "        if self._pid != os.getpid():\n            raise",
            "        if False:\n            raise",
        ),
        test_forks.test_in_a_forked_child_one_that_the_parent_has_opened_is_refused_and_left_alone,
    ),
    "a child closes what its parent has opened": (
        ("semaphore", "            self._session = self._admin = None\n", ""),
        test_forks.test_in_a_forked_child_one_that_the_parent_has_opened_is_refused_and_left_alone,
    ),
    "a child speaks over its parent's connection": (
        (
            "redis.connection",
            "self._connection.is_connected) and not self._is_parents",
            "self._connection.is_connected)",
        ),
        partial(
            test_forks.test_what_an_operator_s_program_does_in_a_forked_child_leaves_the_parent_s_connection,
            use_it=test_forks.look,
        ),
    ),
    "a child closes its parent's connection": (
        ("redis.connection", "        if self._is_parents:\n", "        if False:\n"),
        partial(
            test_forks.test_what_an_operator_s_program_does_in_a_forked_child_leaves_the_parent_s_connection,
            use_it=test_forks.close,
        ),
    ),
    "a child collects its parent's connection": (
        ("redis.connection", "        _of_parent.append(connection)\n", ""),
        partial(
            test_forks.test_what_an_operator_s_program_does_in_a_forked_child_leaves_the_parent_s_connection,
            use_it=test_forks.look,
        ),
    ),
    # Time-outs
    "after a time-out as much is sent again": (
        ("session", "max(1, len(accounts) // 2)", "ACCOUNTS_AT_ONCE"),
        test_session.test_what_has_run_into_a_time_out_is_sent_again_in_smaller_parts,
    ),
    "after a time-out the parts stay small": (
        ("session", "self._accounts_at_once + 1)", "self._accounts_at_once)"),
        test_session.test_after_a_time_out_the_parts_grow_again_when_they_are_answered,
    ),
    "one round trip carries everything": (
        ("session", "islice(self._to_speak, self._accounts_at_once)", "self._to_speak"),
        test_session.test_one_round_trip_carries_no_more_than_can_be_answered_soon,
    ),
    "what one round trip does not carry waits for something else": (
        ("session", "        if self._to_speak:\n            self._work.set()\n", ""),
        test_session.test_one_round_trip_carries_no_more_than_can_be_answered_soon,
    ),
    # Turns
    "a turn never ends": (
        ("account", "if now < permit.turn_end and not is_reported", "if not is_reported"),
        test_account.test_at_a_full_site_a_turn_ends_so_long_after_the_grant,
    ),
    "a turn begins with each request": (
        (
            "account",
            "self._start(self._next_waiting(), permit.turn_end, now",
            "self._start(self._next_waiting(), now + self._owner.turn, now",
        ),
        test_account.test_at_a_full_site_a_turn_ends_so_long_after_the_grant,
    ),
    "a turn begins with each reply": (
        (
            "account",
            "            self._return_in_hand()\n        else:\n",
            "            self._return_in_hand()\n        if True:\n",
        ),
        test_account.test_at_a_full_site_a_turn_ends_so_long_after_the_grant,
    ),
    "turns do not end together": (
        ("account", "return now + turn if self.is_at_limit else", "return now + turn if True else"),
        test_account.test_with_permits_to_spare_all_turns_end_together,
    ),
    "the end of turns is not the common one": (
        (
            "session",
            "end = common_turn_end(self.now(), self.turn)",
            "end = self.now() + self.turn",
        ),
        test_session.test_what_nobody_has_used_is_returned_when_the_turn_of_all_accounts_ends,
    ),
    "permits are handed on past the deadline": (
        ("account", "self._is_draining) and now < self.deadline", "self._is_draining)"),
        partial(test_account.test_at_the_deadline_nothing_is_handed_on, False),
    ),
    "permits are handed on under a delay": (
        ("account", "limit.delay or ", ""),
        partial(
            test_account.test_under_a_delay_a_rate_or_an_adaptive_limit_nothing_is_handed_on,
            Limit(9, delay=0.1),
        ),
    ),
    "permits are handed on under a rate": (
        ("account", "limit.rate or ", ""),
        partial(
            test_account.test_under_a_delay_a_rate_or_an_adaptive_limit_nothing_is_handed_on,
            Limit(9, rate="60/m", burst=5),
        ),
    ),
    "permits are handed on under an adaptive limit": (
        ("account", " or limit.rate or limit.adaptive", " or limit.rate"),
        partial(
            test_account.test_under_a_delay_a_rate_or_an_adaptive_limit_nothing_is_handed_on,
            Limit(9, adaptive=True),
        ),
    ),
    "permits are handed on where each start counts": (
        ("account", "self._is_counted = reply.is_counted", "self._is_counted = False"),
        partial(test_account.test_nothing_is_handed_on, test_account.counted),
    ),
    "permits are handed on after a backoff": (
        (
            "account",
            "            permit.withdrawn = True\n        self.stop_turns()\n",
            "            permit.withdrawn = True\n",
        ),
        partial(test_account.test_nothing_is_handed_on, test_account.told_of_a_backoff),
    ),
    "permits are handed on while the semaphore drains": (
        ("account", "(self.starts_count or self._is_draining)", "self.starts_count"),
        partial(test_account.test_nothing_is_handed_on, test_account.draining),
    ),
    "permits are handed on in another epoch": (
        (
            "account",
            "        self.stop_turns()\n        if self._held or",
            "        if self._held or",
        ),
        partial(test_account.test_nothing_is_handed_on, test_account.in_another_epoch),
    ),
    "permits are handed on after a changed rule": (
        ("session", "                account.stop_turns()\n", "                pass\n"),
        test_session.test_a_changed_rule_stops_all_turns_and_is_asked_for,
    ),
    "permits are handed on after a refusal": (
        ("account", "        if is_urgent:\n            self.stop_turns()\n", ""),
        test_account.test_a_node_whose_request_was_refused_hands_nothing_on_until_the_server_is_heard,
    ),
    "an exhausted quota is not reported": (
        ("account", "outcome.failed or outcome.retry_after > 0", "outcome.failed"),
        test_account.test_an_exhausted_quota_is_reported_at_once_and_nothing_is_handed_on,
    ),
    "an exhausted quota can wait": (
        ("account", "(outcome.refused or outcome.retry_after > 0)", "outcome.refused"),
        test_account.test_an_exhausted_quota_is_reported_at_once_and_nothing_is_handed_on,
    ),
    "what other nodes' requests were answered is not heard": (
        ("account", "        if reply.answered_ago is not None:\n", "        if False:\n"),
        test_account.test_of_all_nodes_requests_the_youngest_that_was_answered_well_is_known,
    ),
    "a node does not know of its own good answers": (
        ("account", "self.answered_at = max(self.answered_at, permit.granted_at)", "pass"),
        test_account.test_of_all_nodes_requests_the_youngest_that_was_answered_well_is_known,
    ),
    "requests of a site that is down wait": (
        ("account", "            self.on_down(reply.down_for)\n", "            pass\n"),
        test_account.test_requests_for_a_site_that_is_down_fail_at_once_but_for_the_one_that_tries_it,
    ),
    "the server is not told who waits no more": (
        ("account", "        if waiting:\n            self._owner.speak(self, True)\n", ""),
        test_account.test_requests_for_a_site_that_is_down_fail_at_once_but_for_the_one_that_tries_it,
    ),
    "whose request fails at once is not said": (
        ("account", "FailedAtOnce(permit)", "FailedAtOnce(self.scope)"),
        test_account.test_requests_for_a_site_that_is_down_fail_at_once_but_for_the_one_that_tries_it,
    ),
    "a site that is down is news each time": (
        (
            "account",
            "if reply.backoff is not None and not was_down:",
            "if reply.backoff is not None:",
        ),
        test_account.test_the_node_that_finds_a_site_down_says_so_once,
    ),
    "permits are kept in hand at a full site": (
        ("account", "            if not self.is_at_limit:\n", "            if True:\n"),
        partial(test_account.test_of_a_full_site_what_nobody_here_uses_is_returned_at_once, 0),
    ),
    "permits stay in hand when the site is full": (
        (
            "account",
            "            self._return_in_hand()\n        else:\n            turn_end",
            "            pass\n        else:\n            turn_end",
        ),
        partial(
            test_account.test_what_is_in_hand_is_returned_when_the_server_says_that_the_site_is_full,
            {"available": 0},
        ),
    ),
    "permits stay in hand while the semaphore drains": (
        (
            "account",
            "        self._is_draining = True\n        self._return_in_hand()\n",
            "        self._is_draining = True\n",
        ),
        partial(test_account.test_nothing_stays_in_hand, test_account.draining),
    ),
    "the node does not ask whether others wait by now": (
        (
            "account",
            "or has_news or (self._has_handed_on and not self.is_at_limit):\n",
            "or has_news:\n",
        ),
        test_account.test_at_the_end_of_a_turn_the_node_asks_whether_there_is_still_some_to_spare,
    ),
    "last come, first served": (
        ("account", "next(self._numbers), permit)", "-next(self._numbers), permit)"),
        test_account.test_the_request_that_asked_first_is_served_first,
    ),
    "permits in hand serve without a word from the server": (
        ("account", "self._in_hand and now < self._spare_until and", "self._in_hand and"),
        test_account.test_what_is_in_hand_serves_nobody_after_those_two_turns,
    ),
    "the turn of a permit from the hand outlives that word": (
        ("account", "min(self._turn_end(now), self._spare_until)", "self._turn_end(now) + 1"),
        test_account.test_the_hand_serves_for_two_turns_since_the_server_said_that_there_is_some_to_spare,
    ),
    "the word of the server counts for ever": (
        ("account", "self._spare_until = turn_end + self._owner.turn", "self._spare_until = 1e9"),
        test_account.test_what_is_in_hand_serves_nobody_after_those_two_turns,
    ),
    "a new word of the server counts for nothing": (
        ("account", "self._spare_until = turn_end", "self._spare_until = self._owner.turn"),
        test_account.test_a_word_that_there_is_some_to_spare_lets_the_hand_serve_for_two_turns_more,
    ),
    # Waiting
    "a node without a use for it stays in the queue": (
        (
            "account",
            "        elif self._asked > self._granted and self.is_at_limit:\n",
            "        elif False:\n",
        ),
        partial(test_account.test_a_node_that_no_longer_waits_leaves_the_queue, "given up"),
    ),
    "after handing on it stays in the queue": (
        (
            "account",
            "                self._wants_fewer()\n                return\n",
            "                return\n",
        ),
        partial(test_account.test_a_node_that_no_longer_waits_leaves_the_queue, "handed on"),
    ),
    "who is said to wait was not asked for": (
        ("account", "if first_seq <= seq]", "]"),
        test_account.test_a_reply_does_not_say_that_a_request_waits_of_which_its_statement_knew_nothing,
    ),
    # Terms
    "a reply that is not the newest closes the account": (
        (
            "account",
            "statement.seq == self._seq and statement.asked == statement.returned",
            "True",
        ),
        test_account.test_it_is_not_idle_while_the_server_believes_that_a_request_waits,
    ),
    "a term that the server knows is not gone above": (
        ("account", "self._begin_term(above)", "self._begin_term()"),
        test_account.test_a_node_goes_above_the_term_that_the_server_knows,
    ),
    # Feedback
    "feedback is sent twice": (
        (
            "account",
            "for outcome, granted_at in self._feedback]\n        self._feedback.clear()\n",
            "for outcome, granted_at in self._feedback]\n",
        ),
        test_account.test_feedback_that_was_not_answered_is_said_again_word_for_word_before_the_next,
    ),
    "feedback that was answered is said again": (
        ("account", "if one.seq != statement.seq]", "]"),
        test_account.test_feedback_that_was_not_answered_is_said_again_word_for_word_before_the_next,
    ),
    "feedback that was not answered is forgotten": (
        ("account", "statements = [*self._unanswered, statement]", "statements = [statement]"),
        test_account.test_feedback_that_was_not_answered_is_said_again_word_for_word_before_the_next,
    ),
    "any reply answers all feedback": (
        ("account", "if one.seq != statement.seq]", "if one.seq > statement.seq]"),
        test_account.test_feedback_that_was_not_answered_is_said_again_word_for_word_before_the_next,
    ),
    "feedback outlives its term": (
        ("account", "        self._unanswered.clear()\n", ""),
        test_account.test_feedback_of_an_old_term_is_not_said_in_the_new_one,
    ),
    "a backoff withdraws nothing": (
        ("account", "            permit.withdrawn = True\n", "            pass\n"),
        test_account.test_a_backoff_withdraws_what_has_been_granted,
    ),
    # Releases
    "no release if the request is cancelled": (
        (
            "semaphore",
            "        except BaseException:\n            permit.release()\n            raise\n",
            "        except BaseException:\n            raise\n",
        ),
        test_cancellation.test_cancelled_while_it_waits_a_request_leaves_the_queue,
    ),
    "no release if the request times out": (
        (
            "semaphore",
            "            permit.release()\n            raise self._timed_out",
            "            raise self._timed_out",
        ),
        test_semaphore.test_who_waits_too_long_gets_an_error_and_leaves_the_queue,
    ),
    "no release if the body raises": (
        (
            "semaphore",
            "        finally:\n            permit.release()\n",
            "            permit.release()\n        finally:\n            pass\n",
        ),
        test_semaphore.test_an_exception_in_the_body_gives_the_permit_back,
    ),
    "a permit is released each time": (
        ("permit", "        if self.stage is not Stage.RELEASED:\n", "        if True:\n"),
        test_account.test_a_request_is_released_once,
    ),
    "what runs under a lost permit is not told": (
        ("permit", "        if self._when_lost is not None:\n", "        if False:\n"),
        test_account.test_at_the_deadline_all_is_lost_what_is_in_hand_too,
    ),
    "work begins under a permit that is over": (
        ("permit", "        if self._loop.time() >= self.deadline:\n", "        if False:\n"),
        test_account.test_nothing_begins_under_a_permit_that_is_over,
    ),
    "a lost transfer that has ended is not forgotten": (
        ("account", "            if not self._ending:\n", "            if False:\n"),
        test_session.test_closing_waits_for_what_was_lost_to_end_and_no_longer,
    ),
    # The session
    "after an error nothing is said again": (
        (
            "session",
            "                    failures += 1\n                    self._say_all()\n",
            "                    failures += 1\n                    self._work.set()\n",
        ),
        test_session.test_after_an_error_all_is_said_again_over_a_new_connection,
    ),
    "after a new subscription nothing is said again": (
        (
            "session",
            "_look_if_waiting()\n            self._say_all()\n            return\n",
            "_look_if_waiting()\n            return\n",
        ),
        test_session.test_a_new_subscription_has_everything_said_again,
    ),
    "after a new subscription the recovery wait may be over, unnoticed": (
        (
            "session",
            "            self._look_if_waiting()\n            self._say_all()\n            return",
            "            self._say_all()\n            return",
        ),
        test_session.test_a_new_subscription_has_everything_said_again,
    ),
    "what nobody waits for is said at once": (
        (
            "session",
            "if at_once or (account.waiting",
            "if True or (account.waiting",
        ),
        test_session.test_a_busy_node_gathers_what_nobody_waits_for,
    ),
    "what somebody waits for is held back": (
        ("session", "if at_once or (account", "if (account"),
        test_session.test_of_a_full_site_all_is_said_at_once,
    ),
    "what is lost is waited for to the end": (
        ("session", "            if not self.accounts:\n                self._settled.set()\n", ""),
        test_session.test_closing_takes_no_longer_than_the_server_does,
    ),
}


SEEN_BY_THE_MACHINE = (
    "a surplus grant is kept",
    "a term is not renewed at the deadline",
    "what is held is not claimed in a new epoch",
    "replies of an old term count",
    "a grant counts each time it is heard",
    "what was handed on is returned as well",
    "a permit is never returned",
    "asked may be below granted",
    "who comes does not speak",
    "no one is told to come again",
)
"""Those that the state machine of `test_delivery` finds by itself, within some hundred examples."""


WAITING_IN_VAIN: dict[str, tuple[Mutant, Test]] = {
    # robots.txt
    "a fetch that failed stays with its node": (
        ("robotstxt", "            self._ends.add(end)\n", "            end.cancel()\n"),
        test_robotstxt.test_if_the_fetch_is_cancelled_another_node_asks,
    ),
    "a long fetch is taken over": (
        (
            "robotstxt",
            "await self._reach(lambda: self._store.ask(self._semaphore.node, origin))",
            "pass",
        ),
        test_robotstxt.test_a_node_that_fetches_for_long_keeps_its_lease,
    ),
    "a dead node is waited for": (
        ("robotstxt", "asyncio.timeout(reply.left)", "asyncio.timeout(None)"),
        test_robotstxt.test_a_dead_node_is_waited_for_no_longer_than_its_lease,
    ),
    "the news of a robots.txt is not heard": (
        ("robotstxt", "                self._news[event.origin].set()\n", "                pass\n"),
        test_robotstxt.test_one_node_asks_the_site_and_wakes_the_others,
    ),
    "lost news of a robots.txt is never made good": (
        ("session", "            self.emit(Subscribed())\n", ""),
        test_robotstxt.test_whoever_is_subscribed_anew_asks_again,
    ),
    "what came from a cache is for all": (
        ("robotstxt", "            if fetched.for_others:\n", "            if True:\n"),
        test_robotstxt.test_what_comes_from_a_cache_is_not_for_others,
    ),
    "without the server the site is asked": (
        (
            "robotstxt",
            "                self._log_unavailable(error)\n",
            '                return [b"fetch", b"", 0]\n',
        ),
        test_robotstxt.test_while_the_server_is_away_nobody_asks_the_site,
    ),
    "who waits for another node's fetch is not sent back": (
        (
            "robotstxt",
            "        for news in self._news.values():\n            news.set()\n        for",
            "        for",
        ),
        test_robotstxt.test_nobody_waits_for_others_past_the_end,
    ),
}
"""Those that a test convicts by waiting too long."""


def plant(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    name, says, instead = mutant
    path = name if "." in name else f"core.{name}"
    plant_in_python(import_module(f"semaphore_middleware.{path}"), says, instead, monkeypatch)


@pytest.mark.parametrize("name", SEEN_BY_THE_MACHINE)
def test_the_machine_convicts(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(MUTANTS[name][0], monkeypatch)
    test = partial(test_delivery.run_accounts, examples=1000, phases=[Phase.generate])
    assert_convicted(AREA, name, test, request)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_test_convicts(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant, test = MUTANTS[name]
    plant(mutant, monkeypatch)
    assert_convicted(AREA, name, test, request)


@pytest.mark.parametrize("name", WAITING_IN_VAIN)
def test_a_long_wait_convicts(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant, test = WAITING_IN_VAIN[name]
    plant(mutant, monkeypatch)
    assert_convicted(AREA, name, test, request)
