"""The table of searches: the protocol as built in many worlds, and then without each rule.

Rules have the numbers of docs/how-it-works.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.protocol.rules import AS_BUILT, Rules
from tests.protocol.scenario import Scenario
from tests.protocol.search import Search, Verdict


@dataclass(frozen=True)
class Run:
    """One search, and what it is to find."""

    name: str
    scenario: Scenario
    rules: Rules = AS_BUILT
    finds: str | None = None  # a violation; None: the protocol holds
    drain_every: int = 0
    slow: bool = False

    def search(self, *, states: int) -> Verdict:
        return Search(self.rules, self.scenario).run(states=states, drain_every=self.drain_every)


# The protocol as built --------------------------------------------------------------------------

CALM = Scenario(calm=1, plain=True, stale=0)
TWO = Scenario()
FIVE_TICKS = Scenario(lease_ticks=5, deadline_ticks=3)

WORLDS = {
    "one node disturbed, the other calm": CALM,
    "late messages": replace(CALM, plain=False, stale=1),
    "late messages and replies, statements twice": replace(
        CALM, stale=1, late_replies=True, twice=True
    ),
    "limit 2, two requests a node": replace(CALM, limit=2, requests=2, count_cap=3),
    "a transfer takes a tick to end, the clock jumps": replace(
        CALM, closing_takes_time=True, clock_jumps=1
    ),
    "a restart, empty": replace(CALM, restarts=("empty",)),
    "a restart with data": replace(CALM, restarts=("with data",)),
    "failover to a lagging replica": replace(CALM, restarts=("lagging replica",)),
    "a restart, empty, and a clock that jumps": replace(CALM, restarts=("empty",), clock_jumps=1),
    "two restarts": replace(CALM, restarts=("empty", "with data"), restart_count=2),
    "FLUSHALL": replace(CALM, flushes=1),
    "a frozen node": replace(CALM, freezes=1),
    "both disturbed": replace(TWO, plain=True, stale=0),
    "both disturbed, late messages": TWO,
    "both disturbed, late messages and replies, statements twice": replace(
        TWO, late_replies=True, twice=True
    ),
    "both disturbed, limit 2, two requests a node": replace(
        TWO, stale=0, limit=2, requests=2, count_cap=3
    ),
    "both disturbed, a restart of any kind": replace(
        TWO, restarts=("empty", "with data", "lagging replica")
    ),
    "both disturbed, FLUSHALL": replace(TWO, flushes=1),
    "both disturbed, a frozen node": replace(TWO, freezes=1),
    "both disturbed, the clock jumps": replace(TWO, clock_jumps=1, closing_takes_time=True),
    "three nodes": Scenario(nodes=3, calm=2, plain=True, stale=0),
    "three nodes, limit 2": Scenario(nodes=3, calm=2, plain=True, stale=0, limit=2),
    "three nodes, all disturbed": Scenario(nodes=3, plain=True, stale=0),
}
QUICK_WORLD = "one node disturbed, the other calm"


def runs_as_built() -> Iterator[Run]:
    for name, scenario in WORLDS.items():
        yield Run(name, scenario, drain_every=40, slow=name != QUICK_WORLD)


# Without a rule ---------------------------------------------------------------------------------

TOO_MANY = "too many at once"
SHORT = replace(FIVE_TICKS, calm=1, plain=True, stale=0)  # of few states
EMPTY = replace(SHORT, restarts=("empty",))
REPLICA = replace(SHORT, restarts=("lagging replica",))
FLUSHED = replace(SHORT, flushes=1)
FROZEN = replace(SHORT, freezes=1, notifications=0)  # rule 17 alone is not missed here

WITHOUT = (
    Run(
        "1, 3: epoch ids and new terms in a new epoch; restart",
        EMPTY,
        Rules(statements_name_their_epoch=False, new_term_in_new_epoch=False),
        TOO_MANY,
        slow=True,
    ),
    Run(
        "1, 3: epoch ids and new terms in a new epoch; FLUSHALL",
        FLUSHED,
        Rules(statements_name_their_epoch=False, new_term_in_new_epoch=False),
        TOO_MANY,
        slow=True,
    ),
    Run(
        "1: epoch ids; FLUSHALL",
        FLUSHED,
        Rules(statements_name_their_epoch=False),
        TOO_MANY,
        slow=True,
    ),
    Run(
        "3: new terms in a new epoch; restart",
        EMPTY,
        Rules(new_term_in_new_epoch=False),
        TOO_MANY,
        slow=True,
    ),
    Run(
        "3: new terms in a new epoch; FLUSHALL",
        FLUSHED,
        Rules(new_term_in_new_epoch=False),
        TOO_MANY,
        slow=True,
    ),
    Run(
        "4: claimed permits keep their deadline",
        replace(CALM, restarts=("empty",)),
        Rules(claimed_permits_keep_their_deadline=False),
        TOO_MANY,
        slow=True,
    ),
    Run("2: the recovery wait", EMPTY, Rules(recovery_wait=False), TOO_MANY),
    Run(
        "5: terms",
        SHORT,
        Rules(terms=False, new_term_in_new_epoch=False),
        TOO_MANY,
        slow=True,
    ),
    Run(
        "5: a new term at the deadline, though nothing is held",
        SHORT,
        Rules(new_term_at_deadline_of_an_empty_account=False),
        TOO_MANY,
        slow=True,
    ),
    Run(
        "5: a new term after an account was empty",
        SHORT,
        Rules(new_term_after_an_empty_account=False),
        TOO_MANY,
        slow=True,
    ),
    Run(
        "6: lower terms are refused",
        replace(SHORT, stale=1),
        Rules(lower_terms_are_refused=False),
        TOO_MANY,
    ),
    Run(
        "7: a new term waits for the transfers to end",
        replace(SHORT, closing_takes_time=True),
        Rules(new_term_waits_for_transfers_to_end=False),
        TOO_MANY,
    ),
    Run(
        "(17 alone, in the world of the next three)",
        FROZEN,
        Rules(deadlines_come_first=False),
        slow=True,
    ),
    Run(
        "8, 17: an unknown claim is lost; believed",
        FROZEN,
        Rules(unknown_claim="believed", deadlines_come_first=False),
        TOO_MANY,
        slow=True,
    ),
    Run(
        "8, 17: an unknown claim is lost; opened at 0",
        FROZEN,
        Rules(unknown_claim="opened at 0", deadlines_come_first=False),
        TOO_MANY,
        slow=True,
    ),
    Run(
        "9, 17: known claims are checked",
        replace(FROZEN, stale=1),
        Rules(known_claims_are_checked=False, deadlines_come_first=False),
        TOO_MANY,
        slow=True,
    ),
    Run(
        "10, 9, 3: returned is clamped; failover to a lagging replica",
        REPLICA,
        Rules(
            returned_is_clamped=False, known_claims_are_checked=False, new_term_in_new_epoch=False
        ),
        "more returned than granted",
    ),
    Run(
        "11: asked is never below granted",
        replace(CALM, plain=False, stale=1),
        Rules(asked_is_never_below_granted=False),
        "a lost wake-up",
        drain_every=40,
    ),
    Run(
        "12: older statements change nothing (no harm that lasts)",
        replace(SHORT, stale=1),
        Rules(older_statements_change_nothing=False),
        drain_every=40,
        slow=True,
    ),
    Run(
        "13: old terms are not heard",
        SHORT,
        Rules(old_terms_are_not_heard=False),
        TOO_MANY,
        slow=True,
    ),
    Run(
        "13: granted only grows",
        SHORT,
        Rules(granted_only_grows=False),
        "a transfer without a permit",
    ),
    Run(
        "15: leases end",
        SHORT,
        Rules(leases_end=False),
        "a leak",
        drain_every=10,
    ),
    Run(
        "16: the deadline of the latest answered; of the last sent",
        SHORT,
        Rules(deadline_from="last sent"),
        TOO_MANY,
    ),
    Run(
        "16: the deadline of the latest answered; of hearing the reply",
        CALM,
        Rules(deadline_from="hearing the reply"),
        TOO_MANY,
        slow=True,
    ),
    Run(
        "17: deadlines come before messages",
        replace(FROZEN, notifications=1),
        Rules(deadlines_come_first=False),
        TOO_MANY,
        slow=True,
    ),
    Run(
        "18: permits in hand end at the deadline",
        replace(SHORT, plain=False),
        Rules(permits_in_hand_end_at_deadline=False),
        TOO_MANY,
    ),
)

# What stays open --------------------------------------------------------------------------------

FAILOVER_AND_BACK = replace(SHORT, restarts=("failover and back",))

OPEN = (
    Run(
        "failover and back on links that live on",
        FAILOVER_AND_BACK,
        finds=TOO_MANY,
        slow=True,
    ),
    Run(
        "the same, with a look at the server's life before each call",
        replace(FAILOVER_AND_BACK, calm=0, looks_before_each_call=True),
        finds=TOO_MANY,
        slow=True,
    ),
)
