"""The tests can convict: each way to break the scripts is caught, by the model or by another test.

A mutant is a script with one thing changed; it lives only as long as its test.
"""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import Phase

from semaphore_middleware.model.limits import Limit
from tests.core import test_leases
from tests.redis import (
    test_adaptive,
    test_clocks,
    test_down,
    test_epoch,
    test_loops,
    test_model,
    test_pending_starts,
    test_refusals,
    test_robotstxt,
    test_rules,
    test_scripts,
    test_spacing,
    test_turn_order,
)
from tests.support.mutants import Mutant, Test, assert_convicted, plant_in_lua

pytestmark = pytest.mark.slow

AREA = "Lua scripts"

SEEN_BY_THE_MODEL: dict[str, Mutant] = {
    # Statements
    "an older statement counts": ("sync", "elseif said.seq >= own.seq then", "elseif true then"),
    "which statement it was is forgotten": (
        "sync",
        "own.seq, own.asked = said.seq, said.asked",
        "own.asked = said.asked",
    ),
    "what is asked for is forgotten": (
        "sync",
        "own.seq, own.asked = said.seq, said.asked",
        "own.seq = said.seq",
    ),
    "what was granted is forgotten": (
        "sync",
        "own.granted = math.max(own.granted, said.believed)",
        "own.granted = said.believed",
    ),
    "what is given back stays held": (
        "sync",
        "own.returned = math.max(own.returned, ",
        "own.returned = math.min(own.returned, ",
    ),
    "a claim is not believed": ("sync", "granted = said.believed,", "granted = said.returned,"),
    "an empty account stays open": (
        "sync",
        "if own and own.returned == own.granted and own.asked <= own.granted then",
        "if false then",
    ),
    "what was said in another epoch counts": ("sync", "if EPOCH ~= ARGV[3] or ", "if "),
    "nonsense counts": ("sync", "if said and makes_sense(said) then", "if said then"),
    "the latest limit wins": (
        "sync",
        "scope.concurrency = math.min(scope.concurrency, said.concurrency)",
        "scope.concurrency = said.concurrency",
    ),
    # Grants
    "told without granting": (
        "shared/promote",
        "account.granted, account.served = account.granted + permits, next_tick(scope)",
        "account.served = next_tick(scope)",
    ),
    "a grant is not written down": ("shared/promote", "      account.has_changed = true\n", ""),
    "granted without telling": (
        "shared/promote",
        "if node ~= NODE then notify(node, 'granted'",
        "if false then notify(node, 'granted'",
    ),
    "one more than the limit": (
        "shared/promote",
        "force.limit) - scope.held\n",
        "force.limit) - scope.held + 1\n",
    ),
    "nobody else is granted anything": (
        "shared/promote",
        "  if free > 0 and scope.waiting > 0 then wait = grant_to_queue(scope) end\n",
        "",
    ),
    "a pause is not heeded": ("shared/promote", " or force.paused then return 0", " then return 0"),
    "a backoff is not heeded": (
        "shared/promote",
        "learned and math.max(FROM, learned.backoff_end) or FROM",
        "FROM",
    ),
    "the recovery wait is not heeded": (
        "shared/promote",
        "learned and math.max(FROM, learned.backoff_end) or FROM",
        "learned and learned.backoff_end or 0",
    ),
    "a new epoch does not wait": (
        "begin_epoch",
        "NOW + (empty_run_id == run_id and WAIT_IF_EMPTY or WAIT)",
        "NOW",
    ),
    # Whose turn it is
    "whoever was served longest ago, however much it holds": (
        "shared/promote",
        "math.min(held_by(account), 2097151) * TICKS + account.served",
        "account.served",
    ),
    "ties by name": ("shared/promote", "* TICKS + account.served", "* TICKS"),
    "newcomers come first": ("sync", "served = next_tick(scope), is", "served = 0, is"),
    "who gives up keeps the place": (
        "shared/promote",
        "elseif account.is_queued then",
        "elseif false then",
    ),
    "who is gone keeps the place": (
        "shared/promote",
        "  if account.is_queued then redis.call('ZREM', scope.queue, node) end\n",
        "",
    ),
    # When to ask again
    "told again and again": (
        "shared/promote",
        "elseif first and scope.told ~= first then",
        "elseif first then",
    ),
    "never told when": ("shared/promote", "    tell_when(scope, wait)\n", ""),
    "everyone is told": ("shared/promote", "  if first == NODE then\n", "  if true then\n"),
    # Leases, and what is written down
    "the dead keep what they held": (
        "shared/promote",
        "if account.lease_end <= NOW then",
        "if false then",
    ),
    "leases that end are not looked for": (
        "sync",
        "scope.due = math.min(scope.due, own.lease_end)",
        "scope.due = math.huge",
    ),
    "only the first lease that ends is looked for": (
        "shared/promote",
        "due = math.min(due, account.lease_end)",
        "due = math.huge",
    ),
    "the dead are not deleted": (
        "shared/scope",
        "      redis.call('HDEL', scope.key, 'node:' .. node)\n",
        "",
    ),
    "an account that is closed is not deleted": (
        "shared/scope",
        "    redis.call('HDEL', scope.key, OWN)\n",
        "",
    ),
    "a limit outlives its use": (
        "shared/scope",
        "if scope.held == 0 and scope.waiting == 0 then return write_idle(scope) end",
        "",
    ),
    "an idle scope keeps its accounts": (
        "shared/scope",
        "if not scope.is_new then redis.call('DEL', scope.key) end",
        "",
    ),
    "scopes for ever": (
        "shared/scope",
        "  if is_ending then redis.call('PEXPIREAT', scope.key, scope.expires) end\n",
        "",
    ),
    "queues for ever": (
        "shared/promote",
        "    if is_new then redis.call('PEXPIRE', scope.queue, KEPT) end\n",
        "",
    ),
    "a refusal is forgotten": (
        "shared/scope",
        "  if scope.has_learned then\n",
        "  if false then\n",
    ),
    # Operators
    "a rule changes nothing": (
        "shared/limit",
        "concurrency = rule.concurrency or scope.concurrency",
        "concurrency = scope.concurrency",
    ),
    "rules are not counted": ("change_rule", "redis.call('HLEN', KEYS[2])", "0"),
    "who is evicted stays": ("evict", "    close_account(scope, NODE, account)\n", ""),
    "what is evicted goes to nobody": ("evict", "    promote(scope)\n", ""),
}

SEEN_BY_A_TEST: dict[str, tuple[Mutant, Test]] = {
    # Seldom, or late, seen by the model
    "a lower term counts": (
        ("sync", "if own and said.term < own.term then return 2 end", ""),
        test_scripts.test_a_lower_term_is_refused_and_told_which_one_is_known,
    ),
    "a higher term finds the old account": (
        ("sync", "if own and said.term > own.term then", "if false then"),
        test_scripts.test_a_higher_term_frees_what_the_account_held,
    ),
    "a higher term leaves the old account's permits": (
        ("sync", "    close_account(scope, NODE, own)\n    own = nil\n", "    own = nil\n"),
        test_scripts.test_a_higher_term_frees_what_the_account_held,
    ),
    "claims at any time": (
        ("sync", "if claims and NOW >= FROM then", "if false then"),
        test_epoch.test_nothing_is_claimed_once_the_wait_is_over,
    ),
    "claims at no time": (
        ("sync", "if claims and NOW >= FROM then", "if claims then"),
        test_epoch.test_an_epoch_that_vanishes_is_a_loss,
    ),
    "what is lost stays": (
        (
            "sync",
            "    if own then close_account(scope, NODE, own) end\n    return 1",
            "    return 1",
        ),
        test_scripts.test_who_believes_in_more_than_was_granted_has_lost_all,
    ),
    "one grant a call": (
        ("shared/promote", "and grants < MOST_GRANTS do", "and grants < 1 do"),
        test_turn_order.test_thousands_of_permits_that_two_nodes_wait_for_are_shared_in_few_calls,
    ),
    "the caller comes first": (
        (
            "shared/promote",
            "own_waits > 0 and scope.waiting == own_waits then",
            "own_waits > 0 then",
        ),
        test_turn_order.test_a_node_that_wants_one_permit_of_a_site_that_another_floods_keeps_it,
    ),
    "all to the first": (
        ("shared/promote", "waiting_at(account), math.max(1, ahead))", "waiting_at(account))"),
        test_turn_order.test_the_next_permit_goes_to_the_node_that_holds_the_fewest,
    ),
    "who asks again passes those that came meanwhile": (
        (
            "sync",
            "if not waited and waiting_at(own) > 0 then own.served = next_tick(scope) end",
            "",
        ),
        test_turn_order.test_a_node_that_asks_while_it_gives_back_does_not_pass_those_that_came_meanwhile,
    ),
    "a limit outlives its use where the site has taught something": (
        ("shared/scope", "scope.concurrency, scope.idle_since = 0, 0", "scope.idle_since = 0"),
        test_refusals.test_what_a_site_has_taught_keeps_no_limit,
    ),
    "an idle site is forgiven": (
        ("shared/scope", "if lesson > 0 or", "if"),
        test_refusals.test_each_incident_without_a_word_of_the_site_doubles_the_pause,
    ),
    "nobody is told of a refusal": (
        ("shared/feedback", "      warn_holders()\n", ""),
        test_refusals.test_a_refusal_does_not_hand_the_permit_to_the_next_in_the_queue,
    ),
    "resuming does not end a backoff": (
        ("clear_backoff", "learned.backoff_end, learned.backoff = 0, 0", "learned.backoff = 0"),
        test_refusals.test_resuming_ends_a_pause_at_once,
    ),
    "told once and for all": (
        ("shared/promote", "    scope.told = ''\n", ""),
        lambda server, outside: (
            test_spacing.test_who_came_back_in_vain_is_told_again_when_time_is_in_its_way(
                server, outside, action="pause"
            )
        ),
    ),
    # Leases and clocks
    "a grant lengthens the lease": (
        (
            "shared/promote",
            "account.granted, account.served =",
            "account.lease_end = NOW + LEASE; account.granted, account.served =",
        ),
        test_leases.test_a_grant_does_not_lengthen_the_lease,
    ),
    "renewing does not": (
        (
            "sync",
            "own.lease_end = NOW + LEASE",
            "if own.lease_end == 0 then own.lease_end = NOW + LEASE end",
        ),
        test_scripts.test_renewing_lengthens_the_lease,
    ),
    "a late statement renews": (
        ("sync", "  else\n    return 0\n  end", "  else own.lease_end = NOW + LEASE return 0 end"),
        test_scripts.test_a_statement_that_comes_late_lengthens_no_lease,
    ),
    "keys end before the leases": (
        ("shared/scope", "local KEPT = 86400000", "local KEPT = 10000"),
        test_leases.test_keys_outlive_every_lease_and_are_gone_within_a_day,
    ),
    "inspect shows the dead": (
        ("inspect", "if account.lease_end > NOW then", "if true then"),
        test_leases.test_inspect_tells_what_each_living_node_holds_and_waits_for_and_changes_nothing,
    ),
    "a jump ahead ends leases": (
        ("shared/clock", "math.min(ADVANCE, STEP) or", "ADVANCE or"),
        partial(test_clocks.test_a_jump_of_the_server_s_clock_ends_no_living_lease, seconds=20.0),
    ),
    "the clock goes back": (
        ("shared/clock", "math.max(0, WALL - wall)", "WALL - wall"),
        test_clocks.test_the_clock_does_not_go_back_when_the_server_s_does,
    ),
    # Epochs
    "every life is known": (
        (
            "begin_epoch",
            "if known_life ~= life or version ~= VERSION then",
            "if not known_life then",
        ),
        test_epoch.test_nothing_is_granted_under_another_life,
    ),
    "a second beginning lengthens the wait": (
        ("begin_epoch", "if known_life ~= life or version ~= VERSION then", "do"),
        test_epoch.test_beginning_an_epoch_again_never_lengthens_the_wait,
    ),
    "any version is let in": (
        ("begin_epoch", "if version and version ~= VERSION and", "if false and"),
        test_epoch.test_a_node_of_another_version_is_refused_with_one_clear_line,
    ),
    "another version is kept out for ever": (
        ("begin_epoch", "math.abs(WALL - wall) < UNUSED", "true"),
        test_epoch.test_a_server_that_another_version_no_longer_uses_is_taken_over,
    ),
    "a failover and back goes unnoticed": (
        ("begin_epoch", "told('master_replid') or ''", "''"),
        test_epoch.test_a_server_that_was_a_replica_for_a_while_is_in_another_life,
    ),
    "evicting that is turned on goes unnoticed": (
        ("begin_epoch", "(told('maxmemory') or '0') ~= '0'", "false"),
        partial(
            test_epoch.test_a_server_that_may_evict_keys_and_has_a_bound_is_in_another_life,
            policy="allkeys-lru",
            maxmemory=10**9,
            evicts=True,
        ),
    ),
    "a bound is taken for evicting": (
        ("begin_epoch", "(told('maxmemory_policy') or 'noeviction') ~= 'noeviction'", "true"),
        partial(
            test_epoch.test_a_server_that_may_evict_keys_and_has_a_bound_is_in_another_life,
            policy="noeviction",
            maxmemory=10**9,
            evicts=False,
        ),
    ),
    "a policy without a bound is taken for evicting": (
        ("begin_epoch", "(told('maxmemory') or '0') ~= '0'", "true"),
        partial(
            test_epoch.test_a_server_that_may_evict_keys_and_has_a_bound_is_in_another_life,
            policy="allkeys-lru",
            maxmemory=0,
            evicts=False,
        ),
    ),
    "a replica that takes writes is used": (
        ("begin_epoch", "if told('role') ~= 'master' then", "if false then"),
        test_epoch.test_a_master_that_becomes_a_replica_under_a_connection_is_left,
    ),
    "a new server need not wait": (
        ("begin_epoch", "(empty_run_id == run_id and", "(not empty_run_id and"),
        test_epoch.test_a_node_that_knows_no_epoch_waits_on_a_server_that_may_have_lost_it,
    ),
    "a new server waits although it is known to be empty": (
        ("begin_epoch", "(empty_run_id == run_id and", "(false and"),
        test_epoch.test_a_server_that_was_started_empty_grants_at_once,
    ),
    "any process with the mark was started empty": (
        ("begin_epoch", "(empty_run_id == run_id and", "(empty_run_id and"),
        test_epoch.test_a_mark_of_another_process_says_nothing,
    ),
    "the mark of a server that was started empty lasts": (
        ("begin_epoch", "  redis.call('HDEL', KEYS[1], 'started_empty')\n", ""),
        test_epoch.test_that_a_server_was_started_empty_counts_for_its_first_epoch_alone,
    ),
    "what was evicted is not noticed": (
        ("sync", " or has_evicted() then", " then"),
        test_epoch.test_one_evicted_key_is_a_loss_though_the_epoch_is_still_there,
    ),
    "rules are forgotten in a new epoch": (
        ("begin_epoch", "'rules', redis.call('HLEN', KEYS[2])", "'rules', 0"),
        test_epoch.test_the_rules_are_known_in_a_new_epoch,
    ),
    "a queue that was lost stays so": (
        ("shared/promote", "        line_up(scope, waiting, account)\n", ""),
        test_turn_order.test_a_queue_that_was_lost_is_made_anew,
    ),
    "a vouched-for server waits all the same": (
        ("begin_epoch", "if IS_TRUSTED and FROM > NOW then", "if false then"),
        test_epoch.test_trust_ends_the_wait_at_once_and_for_all,
    ),
    "each node that comes ends the wait": (
        ("begin_epoch", "if IS_TRUSTED and FROM > NOW then", "if known_life == life then"),
        test_epoch.test_beginning_an_epoch_again_never_lengthens_the_wait,
    ),
    "who is vouched for shares with another version": (
        (
            "begin_epoch",
            "if version and version ~= VERSION and",
            "if version and version ~= VERSION and not IS_TRUSTED and",
        ),
        test_epoch.test_trust_does_not_let_two_versions_of_the_protocol_share_a_server,
    ),
    # Loops
    "strangers stay in the queue": (
        (
            "shared/promote",
            "      redis.call('ZREM', scope.queue, node)\n    end\n  end\n",
            "    end\n  end\n",
        ),
        partial(
            test_loops.test_every_call_returns_and_in_the_end_somebody_is_served,
            misfortunes=[test_loops.queue_strangers],
        ),
    ),
    "a call goes on until all is done": (
        ("shared/promote", "and grants < MOST_GRANTS do", "do"),
        test_loops.test_a_call_does_so_much_and_the_next_goes_on,
    ),
    "a label more, a lookup more": (
        ("shared/limit", "for _ = 1, MOST_LABELS do", "while true do"),
        partial(
            test_rules.test_a_name_of_many_labels_costs_no_more_lookups,
            name=".".join("a" * 127),
            lookups=11,
        ),
    ),
    "names that are no hosts are looked up": (
        ("shared/limit", "#name <= LONGEST_HOST and name or ''", "name"),
        partial(
            test_rules.test_a_name_of_many_labels_costs_no_more_lookups,
            name=".".join("a" * 1000),
            lookups=1,
        ),
    ),
    "only the deepest patterns are looked up": (
        (
            "shared/limit",
            "string.match(rest, '^(.*)%.(.*)$')",
            "string.match(rest, '^(.-)%.(.*)$')",
        ),
        test_rules.test_a_pattern_fits_names_of_any_number_of_labels,
    ),
    # Delays and rates
    "no delay": (
        (
            "shared/promote",
            "  if not is_paced(scope) and NOW",
            "  if true or NOW",
        ),
        test_spacing.test_with_a_delay_one_starts_at_a_time,
    ),
    "starts are not spaced": (
        ("shared/promote", "    space_next_start(scope, permits)\n", ""),
        test_spacing.test_with_a_delay_one_starts_at_a_time,
    ),
    "all that is due starts at once": (
        ("shared/promote", "math.floor((NOW - earliest) / interval) + 1)", "math.huge)"),
        test_spacing.test_after_a_pause_as_many_start_at_once_as_fit_and_never_more_than_the_burst,
    ),
    "a pending start lets others start": (
        ("shared/promote", "if free > scope.pending then", "if free > 0 then"),
        test_pending_starts.test_nothing_starts_between_a_start_and_its_beginning,
    ),
    "a pending start is spaced at its grant": (
        ("shared/promote", "  if account.pending >= 0 then\n", "  if false then\n"),
        test_pending_starts.test_nothing_starts_between_a_start_and_its_beginning,
    ),
    "a pending start that begins is not spaced": (
        ("sync", "scope.begun + math.max(0, said.started - own.started)", "scope.begun"),
        test_pending_starts.test_a_beginning_that_is_told_late_counts_from_then,
    ),
    "a start that was taken back before is taken for the next": (
        (
            "sync",
            "said.pending < 0 and math.max(own.started, said.started) or said.started",
            "math.max(own.started, said.started)",
        ),
        test_pending_starts.test_a_start_that_was_taken_back_before_is_not_taken_for_the_next,
    ),
    "pending starts of a node that is gone are forgotten": (
        ("shared/promote", "scope.begun + pending_at(account)", "scope.begun"),
        lambda server, outside: (
            test_pending_starts.test_a_node_that_is_gone_may_have_begun_what_was_pending(
                server, outside, end="lease"
            )
        ),
    ),
    "what is granted later is not pending": (
        ("sync", "said.pending + math.max(0, own.granted - said.believed)", "said.pending"),
        test_pending_starts.test_what_is_granted_later_is_pending_too,
    ),
    "a pending start that is returned moves an arrival time": (
        ("sync", "  if own.pending >= 0 then return end\n", ""),
        test_pending_starts.test_a_start_that_was_never_pending_is_not_taken_back,
    ),
    "no pattern of a kind": (
        ("shared/limit", "has_kind and kind .. ':*' or nil", "nil"),
        test_rules.test_a_pattern_of_a_kind_fits_its_scopes_and_no_pattern_of_hosts_does,
    ),
    "a host's pattern fits scopes of a kind": (
        ("shared/limit", "not has_kind and #name", "#name"),
        test_rules.test_a_pattern_of_a_kind_fits_its_scopes_and_no_pattern_of_hosts_does,
    ),
    "bursts of any size": (
        ("shared/promote", "or math.min(burst, math.floor(", "or math.max(1, math.floor("),
        test_spacing.test_after_a_pause_as_many_start_at_once_as_fit_and_never_more_than_the_burst,
    ),
    "no bursts": (
        ("shared/promote", "arrival - (burst - 1) * interval", "arrival"),
        test_spacing.test_a_rate_lets_a_burst_start_at_once_and_then_one_after_another,
    ),
    "a burst counts as one start": (
        ("shared/promote", "+ starts * force.interval", "+ force.interval"),
        test_spacing.test_a_rate_lets_a_burst_start_at_once_and_then_one_after_another,
    ),
    "a delay lifts the rate": (
        ("shared/promote", "return math.min(by_delay, by_rate), ", "return by_delay, "),
        test_spacing.test_a_delay_and_a_rate_hold_together,
    ),
    "the shorter wait is told": (
        ("shared/promote", "math.max(delay_left, rate_left)", "math.min(delay_left, rate_left)"),
        test_spacing.test_a_delay_and_a_rate_hold_together,
    ),
    "no jitter": (
        ("shared/promote", "(2 * RANDOM - 1)", "0"),
        partial(
            test_spacing.test_jitter_varies_the_delay_by_its_share_either_way,
            jitter=0.5,
            least=30,
            most=90,
        ),
    ),
    "the first delay wins": (
        ("sync", "if said.delay > scope.delay or said_gap > gap then", "if false then"),
        partial(
            test_spacing.test_the_longest_of_the_least_gaps_in_use_wins,
            first=Limit(5, delay=60, jitter=1),
            then=Limit(5, delay=60),
        ),
    ),
    "the highest rate wins": (
        ("sync", "scope.interval = math.max(", "scope.interval = math.min("),
        test_spacing.test_the_lowest_rate_and_the_smallest_burst_in_use_win,
    ),
    "the largest burst wins": (
        ("sync", "math.min(scope.burst, said.burst)", "math.max(scope.burst, said.burst)"),
        test_spacing.test_the_lowest_rate_and_the_smallest_burst_in_use_win,
    ),
    "a first rate has no burst": (
        ("sync", "scope.burst = scope.interval == 0 and said.burst or", "scope.burst ="),
        test_spacing.test_the_first_rate_brings_its_own_burst,
    ),
    "who asks for no delay does not wait for the last one": (
        (
            "shared/promote",
            "if not is_paced(scope) and NOW >= scope.next_start and",
            "if not is_paced(scope) or",
        ),
        test_rules.test_a_delay_that_no_operator_changed_is_kept_for_who_does_not_know_it,
    ),
    "a backoff ends when its scope wakes": (
        ("shared/scope", "learned.backoff_end > 0 and over or 0, true", "0, true"),
        test_refusals.test_a_pause_outlives_the_idle_scope,
    ),
    "a backoff is forgotten when its scope wakes": (
        ("shared/scope", "> 0 and over or 0, true", "> 0 and over or 0, nil"),
        test_refusals.test_a_pause_outlives_the_idle_scope,
    ),
    "feedback that makes no sense counts": (
        ("shared/feedback", "report[part] < math.huge", "true"),
        test_scripts.test_feedback_that_makes_no_sense_changes_nothing,
    ),
    "an idle scope forgets its delay": (
        ("shared/scope", "  if kept == 0 then return end\n", "  do return end\n"),
        test_spacing.test_a_delay_outlives_the_idle_scope,
    ),
    "an idle scope forgets its rate": (
        ("shared/scope", "  if scope.next_at_rate > NOW then", "  if false then"),
        test_spacing.test_a_rate_outlives_the_idle_scope,
    ),
    "an idle scope's time stands still": (
        ("shared/scope", "scope.idle_since - QUIET", "NOW"),
        test_spacing.test_the_delay_of_an_idle_scope_goes_by_real_time_though_nobody_called,
    ),
    "a jump ahead ends what idle sites wait for": (
        ("shared/clock", "math.min(ADVANCE, SILENT) - STEP", "ADVANCE - STEP"),
        partial(
            test_clocks.test_a_jump_ahead_does_not_end_what_an_idle_site_waits_for,
            feedback=None,
            reconnects=False,
        ),
    ),
    "while nobody calls, idle sites' time stands still": (
        ("shared/clock", "math.min(ADVANCE, SILENT) - STEP", "-STEP"),
        partial(
            test_clocks.test_what_an_idle_site_waits_for_goes_on_while_nobody_calls, feedback=None
        ),
    ),
    "a jump ahead ends an idle site's key with its backoff": (
        ("shared/scope", "learned.backoff_end > 0 and KEPT or MEMORY", "MEMORY"),
        partial(test_clocks.test_nor_does_its_key_expire_in_a_jump, feedback=test_clocks.REFUSED),
    ),
    "a pause is remembered for ever": (
        ("shared/scope", "if NOW > over + MEMORY then", "if false then"),
        partial(
            test_refusals.test_after_ten_idle_minutes_the_next_pause_is_the_first_again,
            minutes=11,
            backoff=test_refusals.START,
        ),
    ),
    "a start that did not begin is lost": (
        ("sync", "  scope.next_start = math.min(scope.next_start, NOW) -- a delay", "  -- a delay"),
        partial(
            test_spacing.test_a_start_that_did_not_begin_is_the_next_one_s, limit=test_spacing.SLOW
        ),
    ),
    "of a burst, starts that did not begin are lost": (
        ("sync", "scope.next_at_rate - unused * scope.force.interval", "scope.next_at_rate"),
        test_spacing.test_of_a_burst_as_many_may_start_as_did_not_begin,
    ),
    "a start that did not begin is taken back each time that it is said": (
        ("sync", "  own.unused = own.unused + unused\n", ""),
        test_spacing.test_a_start_that_did_not_begin_is_taken_back_once,
    ),
    "a start that did not begin is taken back by a late statement": (
        ("sync", " and said.term == own.term and said.seq == own.seq then", " then"),
        test_spacing.test_a_start_that_did_not_begin_is_not_taken_back_by_a_late_statement,
    ),
    "a start that did not begin is taken back after another node's": (
        ("sync", "own.pace == scope.pace and", "true and"),
        test_spacing.test_a_start_that_did_not_begin_is_gone_once_another_was_granted,
    ),
    "a start that did not begin is taken back after the node's own next": (
        ("sync", " and own.granted == said.believed\n", "\n"),
        test_spacing.test_a_start_that_did_not_begin_is_gone_once_its_node_was_granted_another,
    ),
    "a scope that wakes ends with its delay": (
        ("shared/scope", "  scope.expires = 0 -- a scope", "  -- a scope"),
        test_spacing.test_a_scope_that_wakes_outlives_its_delay,
    ),
    "a start that was told before is told to the wrong one": (
        ("shared/promote", "  scope.told = first or ''\n", "  scope.told = ''\n"),
        test_spacing.test_the_first_in_the_queue_is_told_once_over_its_channel_when_to_come_back,
    ),
    # Rules
    "a pattern before the name": (
        (
            "shared/limit",
            "if rule[part] == nil then rule[part] = value end",
            "rule[part] = value",
        ),
        test_rules.test_the_most_exact_name_wins_part_by_part,
    ),
    "a pause that is lifted for a name is not": (
        ("shared/limit", "paused = rule.paused == true", "paused = rule.paused ~= nil"),
        test_rules.test_a_scope_goes_on_although_its_pattern_is_paused,
    ),
    "an operator's rate changes nothing": (
        ("shared/limit", "  if rule.rate then\n", "  if false then\n"),
        test_rules.test_a_rate_that_an_operator_sets_holds_for_all_nodes,
    ),
    "an operator's burst changes nothing": (
        ("shared/limit", "burst = rule.burst or scope.burst", "burst = scope.burst"),
        test_rules.test_a_burst_alone_is_that_of_the_rate_that_nodes_ask_for,
    ),
    "a long delay outlives its rule": (
        ("shared/limit", "if is_ruled or scope.is_ruled then", "if is_ruled then"),
        partial(
            test_rules.test_a_shorter_delay_holds_for_the_next_start,
            name=test_rules.HOST,
            idle=False,
            then=None,
        ),
    ),
    "a low rate outlives its rule": (
        (
            "shared/limit",
            "math.min(scope.next_at_rate, NOW +",
            "math.max(scope.next_at_rate, NOW +",
        ),
        partial(
            test_rules.test_a_higher_rate_holds_for_the_next_start,
            name=test_rules.HOST,
            idle=False,
            then={"rate": "1/s"},
        ),
    ),
    # Feedback
    "feedback counts each time": (
        ("sync", "own == before and own.returned > returned then", "own == before then"),
        test_refusals.test_feedback_that_is_heard_twice_counts_once,
    ),
    "each refusal is an incident": (
        ("shared/feedback", "NOW - report.bad_age >= learned.backoff_end", "true"),
        test_refusals.test_many_refusals_of_one_incident_are_one_step,
    ),
    "the last refusal decides": (
        ("shared/feedback", "math.max(learned.backoff_end, NOW + pause)", "NOW + pause"),
        test_refusals.test_of_one_incident_the_longest_wait_that_the_site_asks_for_counts,
    ),
    "pauses do not double": (
        ("shared/feedback", "2 * learned.backoff", "learned.backoff"),
        test_refusals.test_each_incident_without_a_word_of_the_site_doubles_the_pause,
    ),
    "good answers forgive nothing": (
        ("shared/feedback", "    recover(report)\n", ""),
        test_refusals.test_enough_answers_forgive_all,
    ),
    "failures are not counted": (
        ("shared/feedback", "learned.failures + report.failed", "learned.failures"),
        test_refusals.test_failures_in_a_row_count_as_a_refusal,
    ),
    # Sites that do not respond, and what a site says though it answers
    "a site that does not respond is tried by all at once": (
        ("shared/promote", "is_failing(learned) and 1 or ", ""),
        test_down.test_a_site_that_does_not_respond_is_tried_by_one_request_at_a_time,
    ),
    "no site is down": (
        ("shared/feedback", "    set_learned('is_down', 1)\n", ""),
        test_down.test_five_failures_in_a_row_that_took_long_mean_that_it_is_down,
    ),
    "a few failures mean that a site is down": (
        ("shared/feedback", "learned.failures >= DOWN_IN_A_ROW and ", ""),
        partial(
            test_down.test_few_failures_or_a_short_time_do_not,
            failures=3,
            seconds=test_down.A_WHILE_S,
        ),
    ),
    "some failures mean it at once": (
        ("shared/feedback", "NOW - learned.failing_since >= report.down_after", "true"),
        partial(test_down.test_few_failures_or_a_short_time_do_not, failures=4, seconds=30.0),
    ),
    "one burst of failures means it": (
        ("shared/feedback", "if scope.backoff_begun and learned", "if learned"),
        test_down.test_failures_of_one_burst_do_not_however_many,
    ),
    "who waits does not hear that a site is down": (
        ("shared/feedback", "if node ~= NODE and waiting_at(account) > 0 then", "if false then"),
        test_down.test_nodes_that_wait_hear_that_a_site_is_down,
    ),
    "pauses of a site that is down do not vary": (
        ("shared/feedback", "scope.backoff_begun * (1 - RANDOM / 2)", "scope.backoff_begun"),
        test_down.test_a_site_that_is_down_is_tried_again_in_growing_pauses_that_vary,
    ),
    "only good answers show that a site is there": (
        (
            "shared/feedback",
            "if report.good + report.errors + report.refused > 0",
            "if report.good > 0",
        ),
        partial(test_down.test_any_response_shows_that_it_is_up_again, outcome=test_down.ERROR),
    ),
    "a site that was down stays so": (
        ("shared/feedback", "    set_learned('is_down', 0)\n", ""),
        partial(test_down.test_any_response_shows_that_it_is_up_again, outcome=test_down.GOOD),
    ),
    "a row of failures goes on after an answer": (
        ("shared/feedback", "    set_learned('failures', 0)\n", ""),
        test_refusals.test_an_answer_ends_a_row_of_failures,
    ),
    "a resumed site is still down": (
        ("clear_backoff", "learned.is_down = 0, 0, 0", "learned.is_down = 0, 0, 1"),
        test_down.test_resuming_a_site_that_is_down_lets_its_requests_begin,
    ),
    "an exhausted quota is not heeded": (
        ("shared/feedback", "elseif asked > 0 then", "elseif false then"),
        test_down.test_a_site_that_allows_no_more_requests_gets_none_until_then,
    ),
    "each answer with an exhausted quota is a new pause": (
        (
            "shared/feedback",
            "hold_back(asked, NOW >= learned.backoff_end)",
            "hold_back(asked, true)",
        ),
        test_down.test_a_site_that_allows_no_more_requests_gets_none_until_then,
    ),
    "it is not noted which request was answered well": (
        ("shared/feedback", "math.max(learned.answered, NOW - report.good_age)", "0"),
        test_down.test_all_nodes_hear_when_the_youngest_request_began_that_was_answered_well,
    ),
    "it is noted of the oldest": (
        (
            "shared/feedback",
            "math.max(learned.answered, NOW - report.good_age)",
            "NOW - report.good_age",
        ),
        test_down.test_all_nodes_hear_when_the_youngest_request_began_that_was_answered_well,
    ),
    "after a pause nobody wants to know of answers": (
        ("sync", "or learned.answered < learned.backoff_end))", "))"),
        test_down.test_after_a_pause_the_first_good_answer_is_wanted,
    ),
    "an idle site forgets when it answered": (
        ("shared/scope", " or (learned.answered > 0 and NOW < learned.answered + MEMORY)", ""),
        test_down.test_when_it_last_answered_is_known_for_ten_minutes_though_it_is_idle,
    ),
    "no answer is thought slow": (
        ("shared/feedback", "learned.base > 0 and mean > learned.base + WELL_ABOVE", "false"),
        test_adaptive.test_it_is_one_value_for_all_nodes_and_outlives_the_idle_scope,
    ),
    "refused, and goes on as before": (
        ("shared/feedback", "      shrink(AFTER_REFUSAL)\n", ""),
        test_adaptive.test_not_now_halves_it_at_once_and_it_grows_back_slowly,
    ),
    "it grows where it is not used": (
        ("shared/feedback", "if scope.used >= scope.force.limit then grow() end", "grow()"),
        test_adaptive.test_it_does_not_grow_where_it_is_not_used,
    ),
    # robots.txt
    "every node fetches": (
        ("ask_robotstxt", "record.fetcher == ASKER or record.fetcher == '' or", "true or"),
        test_robotstxt.test_one_node_fetches_and_the_others_are_told,
    ),
    "who fetches is not to fetch": (
        ("ask_robotstxt", "record.fetcher == ASKER or record", "record"),
        test_robotstxt.test_who_fetches_keeps_the_lease_by_asking_again,
    ),
    "a dead node fetches for ever": (
        ("ask_robotstxt", "or lease_left == 0 then", "then"),
        test_robotstxt.test_of_a_node_that_is_not_heard_of_another_takes_over,
    ),
    "nobody is told": (
        ("put_robotstxt", "ipairs(record.waiters)", "ipairs({})"),
        test_robotstxt.test_one_node_fetches_and_the_others_are_told,
    ),
    "who waits is told twice": (
        ("ask_robotstxt", "if not is_known then", "if true then"),
        test_robotstxt.test_one_node_fetches_and_the_others_are_told,
    ),
    "whoever comes late replaces what is newer": (
        ("put_robotstxt", "if record.fetcher ~= ASKER then return 0 end", ""),
        test_robotstxt.test_of_a_node_that_is_not_heard_of_another_takes_over,
    ),
    "what was given up is nobody's": (
        ("put_robotstxt", "record.fetcher, record.lease_end, record.waiters = '', 0, {}", ""),
        test_robotstxt.test_a_fetch_that_is_given_up_is_the_next_one_s,
    ),
    "a robots.txt is valid for ever": (
        ("put_robotstxt", "WALL + VALID", "WALL + DAY"),
        test_robotstxt.test_what_is_no_longer_valid_is_fetched_again_by_one,
    ),
    "a clock set back keeps it for longer": (
        ("shared/robotstxt", "left <= most and math.max(0, left) or 0", "math.max(0, left)"),
        test_robotstxt.test_a_clock_that_is_set_back_keeps_nothing_for_longer,
    ),
    "there may be too much of it": (
        ("shared/robotstxt", " or bytes > MOST_BYTES", ""),
        test_robotstxt.test_there_are_not_too_many_and_each_is_gone_in_a_day,
    ),
    "it is never removed": (
        ("shared/robotstxt", "tonumber(ending) <= WALL or", ""),
        test_robotstxt.test_there_are_not_too_many_and_each_is_gone_in_a_day,
    ),
    "it outlives all nodes": (
        ("shared/robotstxt", "  redis.call('PEXPIRE', RECORDS, DAY)\n", ""),
        test_robotstxt.test_there_are_not_too_many_and_each_is_gone_in_a_day,
    ),
    "its size is counted wrong": (
        ("shared/robotstxt", " - record.size + #ORIGIN", " + #ORIGIN"),
        test_robotstxt.test_there_are_not_too_many_and_each_is_gone_in_a_day,
    ),
    "an adaptive limit begins at its most": (
        ("shared/limit", "math.max(1, math.floor(working))", "math.huge"),
        test_adaptive.test_it_grows_to_the_configured_limit_and_never_past_it,
    ),
}


@pytest.mark.parametrize("name", SEEN_BY_THE_MODEL)
def test_the_model_convicts(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_in_lua(SEEN_BY_THE_MODEL[name], monkeypatch)
    test = partial(test_model.run_model, examples=1200, phases=[Phase.generate])
    assert_convicted(AREA, name, test, request)


@pytest.mark.parametrize("name", SEEN_BY_A_TEST)
def test_another_test_convicts(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant, test = SEEN_BY_A_TEST[name]
    plant_in_lua(mutant, monkeypatch)
    assert_convicted(AREA, name, test, request)
