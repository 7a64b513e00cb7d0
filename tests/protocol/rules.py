"""The protocol's rules, each of which can be switched off to see what breaks without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Rules:
    """Which rules hold; the defaults are the protocol as it is built."""

    # Epochs
    statements_name_their_epoch: bool = True  # without: only the server's life is compared
    new_term_in_new_epoch: bool = True
    claimed_permits_keep_their_deadline: bool = True
    recovery_wait: bool = True

    # Terms
    terms: bool = True  # without: an account that ended goes on counting where it was
    new_term_at_deadline_of_an_empty_account: bool = True
    new_term_after_an_empty_account: bool = True  # without: the same term, counted from 0 again
    lower_terms_are_refused: bool = True  # without: any other term replaces the account
    new_term_waits_for_transfers_to_end: bool = True
    unknown_claim: Literal["lost", "believed", "opened at 0"] = "lost"  # after the recovery wait
    known_claims_are_checked: bool = True  # raised in the recovery wait, lost after it

    # Counts
    returned_is_clamped: bool = True
    asked_is_never_below_granted: bool = True  # without: requests made so far, less those given up
    older_statements_change_nothing: bool = True
    old_terms_are_not_heard: bool = True  # replies and notifications
    granted_only_grows: bool = True

    # Time
    deadline_from: Literal["latest answered", "last sent", "hearing the reply"] = "latest answered"
    deadlines_come_first: bool = True  # on a node that wakes
    permits_in_hand_end_at_deadline: bool = True
    leases_end: bool = True


AS_BUILT = Rules()
