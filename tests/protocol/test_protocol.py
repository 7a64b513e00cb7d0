"""The protocol as built holds in all states of the model; without a rule it does not."""

from __future__ import annotations

import pytest

from tests.protocol.grant_order import a_waiter_may_starve
from tests.protocol.runs import OPEN, WITHOUT, Run, runs_as_built
from tests.protocol.scope_order import a_deadlock

STATES = 150_000  # seen in a search of the protocol as built; `python -m tests.protocol` sees more
STATES_WITHOUT = 500_000  # in which a violation is found without a rule


def of_runs(*runs: Run) -> list[object]:
    return [
        pytest.param(run, id=run.name, marks=[pytest.mark.slow] if run.slow else []) for run in runs
    ]


@pytest.mark.parametrize("run", of_runs(*runs_as_built()))
def test_the_protocol_as_built_holds(run: Run) -> None:
    verdict = run.search(states=STATES)
    assert verdict.violation is None, "\n".join(verdict.trace)
    assert verdict.drained


@pytest.mark.parametrize("run", of_runs(*WITHOUT))
def test_a_rule_that_is_off_is_missed(run: Run) -> None:
    assert run.search(states=STATES_WITHOUT).violation == run.finds


@pytest.mark.parametrize("run", of_runs(*OPEN))
def test_what_stays_open_is_known(run: Run) -> None:
    assert run.search(states=STATES_WITHOUT).violation == run.finds


def test_nodes_that_come_and_go_do_not_starve_one_that_waits() -> None:
    assert not a_waiter_may_starve(newcomers_count_as_served=True)
    assert a_waiter_may_starve(newcomers_count_as_served=False)


def test_requests_that_take_their_scopes_in_the_order_of_names_never_wait_for_each_other() -> None:
    assert a_deadlock(by_name=True) is None
    assert a_deadlock(by_name=False) is not None
