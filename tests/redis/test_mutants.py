"""The tests can convict: each way to break the scripts is caught, by the model or by a verb's test.

A mutant is a script with one line changed; it lives only as long as its test.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from semaphore_middleware.redis import scripts
from tests.core import test_leases
from tests.redis import (
    test_adaptive,
    test_clocks,
    test_epoch,
    test_line,
    test_refusals,
    test_rules,
    test_scripts,
    test_spacing,
)
from tests.redis.test_model import EXAMPLES
from tests.support.nodes import Outside
from tests.support.servers import RedisServer
from tests.support.state_machine import Playground, machine_on

pytestmark = pytest.mark.slow

Mutant = tuple[str, str, str]  # which script, what it says, what it says instead

SEEN_BY_THE_MODEL: dict[str, Mutant] = {
    "notify without granting": (
        "shared/promote",
        "scope.held, unpack(members)",
        "scope.line, unpack(members)",
    ),
    "grant without telling": ("shared/promote", "tell(id, 'granted ' .. number_of(id))", ""),
    "the dead keep what they held": (
        "shared/promote",
        "drop_dead(scope, 'held')",
        "",
    ),
    "the dead wait for ever": (
        "shared/promote",
        "drop_dead(scope, 'waiting')",
        "",
    ),
    "a node's clock": (
        "shared/prelude",
        "epoch.now = bucket_clock",
        "epoch.now = (NODE == 'b' and LEASE or 0) + bucket_clock",
    ),
    "leases that end are forgotten": (
        "shared/scope",
        "keep(scope, 'due', math.min(scope.due or ends, ends))",
        "keep(scope, 'due', scope.now + 2 * LEASE)",
    ),
    "asking twice takes two": ("acquire", "if held[i] then", "if false then"),
    "asking again loses the place": ("acquire", "elseif waits[i] then", "elseif false then"),
    "giving back twice frees two": (
        "release",
        "leave(",
        "count(scope, 'held', -#redis.call('ZPOPMIN', scope.held) / 2) leave(",
    ),
    "who cancels keeps the place": (
        "shared/line",
        "if held < #ids then leave_line(scope, ids) end",
        "",
    ),
    "hello does not wait": ("begin_epoch", "from = now + WAIT", "from = now"),
    "no recovery wait": ("shared/prelude", "epoch.from = tonumber(from)", "epoch.from = 0"),
    "no turns between nodes": (
        "shared/line",
        "math.max(scope.virtual, scope['last:' .. NODE] or 0)",
        "scope.joined",
    ),
    "virtual time stands still": (
        "shared/promote",
        "keep(scope, 'virtual', place_of(tonumber(popped[#popped])))",
        "",
    ),
    "ties by name": ("shared/line", "place * TIES + joined", "place * TIES"),
    "gaps in the line stay": ("shared/promote", "  close_gaps(scope)\n", ""),
    "the latest limit wins": ("shared/scope", "math.min(scope.limit or asked.limit, ", "("),
    "a limit outlives its use": (
        "shared/scope",
        "scope.count.held + scope.count.line == 0",
        "false",
    ),
    "one more than the limit": (
        "shared/promote",
        "local free = scope.in_force.limit",
        "local free = 1 + scope.in_force.limit",
    ),
    "one grant a call": (
        "shared/promote",
        "MOST)))\n    free, wait = grantable(scope)",
        "1)))\n    free = 0",
    ),
    "no promotion": (
        "shared/promote",
        "      promote(scope)\n",
        "      drop_the_dead(scope)\n      stand_in_line(scope)\n",
    ),
    "the loser is not told": ("renew", "table.insert(scope.lost, number_of(id))", ""),
    "claims at any time": ("renew", "scope.now < scope.from", "true"),
    "claims at no time": ("renew", "scope.now < scope.from", "false"),
    "keys for ever": ("shared/scope", "(all or scope.endless[counted])", "false"),
}

SEEN_BY_A_TEST: dict[str, tuple[Mutant, Callable[..., None]]] = {
    "a grant lengthens the lease": (
        ("shared/promote", "ends[i] or lease_end(scope)", "lease_end(scope)"),
        test_leases.test_a_grant_does_not_lengthen_the_lease,
    ),
    "the dead may renew": (
        ("renew", "> scope.now then", "> 0 then"),
        test_scripts.test_a_permit_whose_lease_is_over_cannot_be_renewed,
    ),
    "renewing does not": (
        ("renew", "lengthen(scope, 'held', alive)", ""),
        test_scripts.test_renewing_lengthens_the_lease,
    ),
    "asking again does not keep alive": (
        ("acquire", "lengthen(scope, 'waiting', to_wait)", ""),
        test_leases.test_asking_again_keeps_a_waiter_alive,
    ),
    "keys end before the leases": (
        ("shared/scope", "'expires', scope.epoch.expires + KEPT)", "'expires', WALL + 10000)"),
        test_leases.test_keys_outlive_every_lease,
    ),
    "a jump ahead ends leases": (
        ("shared/clock", "math.min(WALL - wall, step)", "WALL - wall"),
        lambda server, outside: test_clocks.test_a_jump_of_the_server_s_clock_ends_no_living_lease(
            server, outside, seconds=20.0
        ),
    ),
    "every life is known": (
        ("shared/prelude", "known = life == LIFE", "known = life"),
        test_epoch.test_nothing_is_granted_under_another_life,
    ),
    "inspect shows the dead": (
        ("inspect", "if lease_end > now", "if lease_end > 0"),
        test_leases.test_inspect_leaves_out_the_dead,
    ),
    "no delay": (
        ("shared/promote", "if scope.in_force.delay > 0 then space_next_start(scope) end", ""),
        test_spacing.test_with_a_delay_one_starts_at_a_time,
    ),
    "all that is due starts at once": (
        ("shared/promote", "if scope.in_force.delay > 0 then return 1, 0 end", ""),
        test_spacing.test_with_a_delay_one_starts_at_a_time,
    ),
    "the shortest delay wins": (
        ("shared/scope", "if not scope.delay then", "if asked.delay < (scope.delay or 1e9) then"),
        test_spacing.test_the_longest_delay_in_use_wins,
    ),
    "an idle scope forgets its delay": (
        ("shared/scope", "if kept == 0 then return end", "do return end"),
        test_spacing.test_a_delay_outlives_the_idle_scope,
    ),
    "told again and again": (
        ("shared/promote", "elseif scope.told ~= head then", "else"),
        test_spacing.test_the_head_of_the_line_is_told_once_over_its_channel_when_to_come_back,
    ),
    "never told when": (
        ("shared/promote", "    tell_when(scope, wait)\n", ""),
        test_spacing.test_the_next_head_is_told_when_the_first_one_leaves,
    ),
    "told when before the grant": (
        (
            "shared/promote",
            "    free, wait = grantable(scope)\n",
            "    free, wait = grantable(scope), nil\n",
        ),
        test_spacing.test_the_next_head_is_told_when_the_first_one_starts,
    ),
    "a second beginning lengthens the wait": (
        ("begin_epoch", "if life ~= LIFE then", "do"),
        test_epoch.test_beginning_an_epoch_again_never_lengthens_the_wait,
    ),
    "an epoch in use expires": (
        ("shared/prelude", "if epoch.expires < WALL + KEPT / 2 then", "if false then"),
        test_epoch.test_an_epoch_in_use_is_kept,
    ),
    "a claim keeps its place in line": (
        ("renew", "leave(scope, claimed)", ""),
        test_epoch.test_a_claim_takes_the_permit_out_of_the_line,
    ),
    "a node pays for what it cancelled": (
        ("shared/line", "forget(scope, 'last:' .. node)", ""),
        test_line.test_a_node_that_cancelled_many_waiters_is_not_punished_afterwards,
    ),
    "a refusal is not heeded": (
        ("shared/promote", "scope.next, scope.site.quiet)", "scope.next)"),
        test_refusals.test_a_refusal_does_not_hand_the_permit_to_the_next_in_line,
    ),
    "each refusal is an incident": (
        ("shared/answers", "if scope.now - report.bad_age >= scope.site.quiet then", "do"),
        test_refusals.test_many_refusals_of_one_incident_are_one_step,
    ),
    "the last refusal decides": (
        ("shared/answers", "math.max(scope.site.quiet, scope.now + pause)", "scope.now + pause"),
        test_refusals.test_of_one_incident_the_longest_wait_that_the_site_asks_for_counts,
    ),
    "a report counts each time": (
        ("report", "if leave(scope, scope.ids) and", "leave(scope, scope.ids) if"),
        test_refusals.test_a_report_that_is_sent_twice_counts_once,
    ),
    "an idle site is forgiven": (
        (
            "shared/scope",
            "learn(scope, 'quiet', scope.now + math",
            "learn(scope, 'quiet', 0 * math",
        ),
        test_refusals.test_a_pause_outlives_the_idle_scope,
    ),
    "no answer is thought slow": (
        ("shared/adaptive", "mean > site.base + WELL_ABOVE", "false"),
        test_adaptive.test_it_is_one_value_for_all_nodes_and_outlives_the_idle_scope,
    ),
    "refused, and goes on as before": (
        ("shared/answers", "    shrink(scope, AFTER_REFUSAL)\n", ""),
        test_adaptive.test_not_now_halves_it_at_once_and_it_grows_back_slowly,
    ),
    "a pattern before the name": (
        ("shared/site", "rule[part] or found[i] or nil", "found[i] or rule[part]"),
        test_rules.test_the_most_exact_name_wins_part_by_part,
    ),
    "a pause is not heeded": (
        ("shared/promote", "if scope.in_force.paused then return 0 end", ""),
        test_rules.test_a_scope_goes_on_although_its_pattern_is_paused,
    ),
}


def plant(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    script, says, instead = mutant
    source = scripts.source_of
    if says not in source(script):
        pytest.fail("the script has changed: so must its mutant")

    def mutated(name: str) -> str:
        return source(name).replace(says, instead) if name == script else source(name)

    monkeypatch.setattr(scripts, "source_of", mutated)
    for cached in ("script", "sha1_of"):
        uncached = getattr(scripts, cached).__wrapped__
        monkeypatch.setattr(scripts, cached, cache(uncached))


@pytest.mark.parametrize("name", SEEN_BY_THE_MODEL)
def test_the_model_convicts(
    name: str, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(SEEN_BY_THE_MODEL[name], monkeypatch)
    ground = Playground(server)
    try:
        with pytest.raises(AssertionError):
            run_state_machine_as_test(
                machine_on(ground),
                settings=settings(EXAMPLES, phases=[Phase.generate], max_examples=400),
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
