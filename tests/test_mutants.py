"""The tests can convict: each way to break the scripts is caught, by the model or by a verb's test.

A mutant is a script with one line changed; it lives only as long as its test.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from semaphore_middleware import store
from tests import test_epoch, test_leases, test_line, test_scripts, test_spacing
from tests.machine import Playground, machine_on
from tests.nodes import Outside
from tests.servers import RedisServer
from tests.test_model import EXAMPLES

Mutant = tuple[str, str, str]  # which script, what it says, what it says instead

SEEN_BY_THE_MODEL: dict[str, Mutant] = {
    "notify without granting": ("prelude", "scope.held, lease_end or", "scope.line,"),
    "grant without telling": ("prelude", "tell(id, 'granted ' .. number_of(id))", ""),
    "the dead keep what they held": (
        "prelude",
        "scope.held, '-inf', scope.now",
        "scope.held, '-inf', 0",
    ),
    "the dead wait for ever": (
        "prelude",
        "scope.waiting, '-inf', scope.now",
        "scope.waiting, '-inf', 0",
    ),
    "a node's clock": (
        "prelude",
        "epoch.now = bucket_clock",
        "epoch.now = (NODE == 'b' and LEASE or 0) + bucket_clock",
    ),
    "asking twice takes two": ("acquire", "redis.call('ZSCORE', scope.held, id)", "false"),
    "asking again loses the place": ("acquire", "redis.call('ZSCORE', scope.line, id)", "false"),
    "giving back twice frees two": (
        "release",
        "leave(",
        "redis.call('ZPOPMIN', scope.held) leave(",
    ),
    "who cancels keeps the place": ("prelude", "  else\n    leave_line(scope, id)\n", ""),
    "hello does not wait": ("hello", "from = now + WAIT", "from = now"),
    "no recovery wait": ("prelude", "epoch.from = tonumber(from)", "epoch.from = 0"),
    "no turns between nodes": ("prelude", "math.max(scope.virtual, last)", "scope.joined"),
    "virtual time stands still": ("prelude", "scope.virtual = math.floor(score / TIES)", ""),
    "ties by name": ("prelude", "place * TIES + scope.joined", "place * TIES"),
    "gaps in the line stay": ("prelude", "  close_gaps(scope)\n", ""),
    "the latest limit wins": ("prelude", "math.min(scope.limit or scope.asked.limit, ", "("),
    "a limit outlives its use": ("prelude", "scope.held, scope.line) == 0", "scope.held) == 2"),
    "one more than the limit": (
        "prelude",
        "local free = scope.limit",
        "local free = 1 + scope.limit",
    ),
    "one grant a call": ("prelude", "  return free\n", "  return 1\n"),
    "no promotion": ("prelude", "      promote(scope)\n", "      drop_the_dead(scope)\n"),
    "the loser is not told": ("renew", "table.insert(scope.lost, number_of(id))", ""),
    "claims at any time": ("renew", "scope.now < scope.from", "true"),
    "claims at no time": ("renew", "scope.now < scope.from", "false"),
    "keys for ever": ("prelude", "  if scope.fresh then", "  if false then"),
}

SEEN_BY_A_TEST: dict[str, tuple[Mutant, Callable[..., None]]] = {
    "a grant lengthens the lease": (
        ("prelude", "lease_end or scope.now + LEASE", "scope.now + LEASE"),
        test_leases.test_a_grant_does_not_lengthen_the_lease,
    ),
    "the dead may renew": (
        ("renew", "lease_end > scope.now", "lease_end > 0"),
        test_scripts.test_a_permit_whose_lease_is_over_cannot_be_renewed,
    ),
    "renewing does not": (
        ("renew", "redis.call('ZADD', scope.held, scope.now + LEASE, id)", ""),
        test_scripts.test_renewing_lengthens_the_lease,
    ),
    "asking again does not keep alive": (
        ("acquire", "redis.call('ZADD', scope.waiting, scope.now + LEASE, id)", ""),
        test_leases.test_asking_again_keeps_a_waiter_alive,
    ),
    "keys end before the leases": (
        ("prelude", "scope.expires = scope.epoch.expires + KEPT", "scope.expires = WALL + 10000"),
        test_leases.test_keys_outlive_every_lease,
    ),
    "every life is known": (
        ("prelude", "known = life == LIFE", "known = life"),
        test_epoch.test_nothing_is_granted_under_another_life,
    ),
    "inspect shows the dead": (
        ("inspect", "if lease_end > now", "if lease_end > 0"),
        test_leases.test_inspect_leaves_out_the_dead,
    ),
    "no delay": (
        ("prelude", "if scope.delay > 0 then space_next_start(scope) end", ""),
        test_spacing.test_with_a_delay_one_starts_at_a_time,
    ),
    "all that is due starts at once": (
        ("prelude", "if scope.delay > 0 then return 1, 0 end", ""),
        test_spacing.test_with_a_delay_one_starts_at_a_time,
    ),
    "the shortest delay wins": (
        ("prelude", "scope.asked.delay > scope.delay", "scope.asked.delay < scope.delay"),
        test_spacing.test_the_longest_delay_in_use_wins,
    ),
    "an idle scope forgets its delay": (
        ("prelude", "if wait > 0 then", "if false then"),
        test_spacing.test_a_delay_outlives_the_idle_scope,
    ),
    "told again and again": (
        ("prelude", "elseif scope.told ~= head then", "else"),
        test_spacing.test_the_head_of_the_line_is_told_once_over_its_channel_when_to_come_back,
    ),
    "never told when": (
        ("prelude", "if wait then tell_when(scope, wait) end", ""),
        test_spacing.test_the_next_head_is_told_when_the_first_one_leaves,
    ),
    "told when before the grant": (
        ("prelude", "if wait then wait = select(2, grantable(scope)) end", "wait = nil"),
        test_spacing.test_the_next_head_is_told_when_the_first_one_starts,
    ),
    "hello lengthens the wait": (
        ("hello", "if life ~= LIFE then", "do"),
        test_epoch.test_hello_tells_what_is_left_of_the_wait_and_never_lengthens_it,
    ),
    "an epoch in use expires": (
        ("prelude", "if epoch.expires < WALL + KEPT / 2 then", "if false then"),
        test_epoch.test_an_epoch_in_use_is_kept,
    ),
    "a claim keeps its place in line": (
        ("renew", "leave_line(scope, id)", ""),
        test_epoch.test_a_claim_takes_the_permit_out_of_the_line,
    ),
    "a node pays for what it cancelled": (
        ("prelude", "'waiters:' .. node, 'last:' .. node)", "'waiters:' .. node)"),
        test_line.test_a_node_that_cancelled_many_waiters_is_not_punished_afterwards,
    ),
}


def plant(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    script, says, instead = mutant
    source = store._source
    if says not in source(script):
        pytest.fail("the script has changed: so must its mutant")

    def mutated(name: str) -> str:
        return source(name).replace(says, instead) if name == script else source(name)

    monkeypatch.setattr(store, "_source", mutated)


@pytest.mark.parametrize("name", SEEN_BY_THE_MODEL)
def test_the_model_convicts(
    name: str, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(SEEN_BY_THE_MODEL[name], monkeypatch)
    ground = Playground(server)
    try:
        with pytest.raises(AssertionError):
            run_state_machine_as_test(
                machine_on(ground), settings=settings(EXAMPLES, phases=[Phase.generate])
            )
    finally:
        ground.close()


@pytest.mark.parametrize("name", SEEN_BY_A_TEST)
def test_a_verb_s_test_convicts(
    name: str, server: RedisServer, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant, test = SEEN_BY_A_TEST[name]
    plant(mutant, monkeypatch)
    fixtures = {"server": server, "outside": outside}
    wanted = {name: fixtures[name] for name in inspect.signature(test).parameters}
    with pytest.raises(AssertionError):
        test(**wanted)
